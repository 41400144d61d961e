"""Authentication and authorisation of calls: every call carries `authorization: Bearer <token>`, and a token stands for one role.

A local run has one random token for each role, in a file that only its user can read (`Tokens`). On a cluster the callers are
service accounts with projected tokens (`frostline_rpc.projected`).
"""

import hmac
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from frostline_contract.durable_files import PRIVATE, replace_durably
from frostline_contract.worker_id import pod_uid_of
from frostline_rpc.errors import PermissionDenied, Unauthenticated

WORKER, OPERATOR, CONTROLLER = "worker", "operator", "controller"

ALLOWED = {
    "DescribeJob": {WORKER},
    "Register": {WORKER},
    "Heartbeat": {WORKER},
    "Heartbeats": {WORKER},
    "ReportStatistics": {WORKER},
    "ReportRecords": {WORKER},
    "WatchPlan": {WORKER},
    "Ready": {WORKER},
    "ReportRecovery": {WORKER},
    "Leave": {WORKER},
    "Command": {OPERATOR},
    "Status": {OPERATOR, WORKER, CONTROLLER},
    "DescribeShards": {WORKER, CONTROLLER, OPERATOR},
    "Admit": {WORKER},
    "AdvanceBoundary": {WORKER},
    "Lease": {WORKER},
    "ReportUse": {WORKER},
    "Statistics": {CONTROLLER, OPERATOR, WORKER},
    "Check": {WORKER, OPERATOR, CONTROLLER},
    "Watch": {WORKER, OPERATOR, CONTROLLER},
}


@dataclass(frozen=True)
class Caller:
    """The authenticated caller.

    Attributes:
        role: the role that the caller's token stands for.
        pod_uid: uid of the pod that the caller's token is bound to; empty where tokens are not bound to pods, as in a local run.
    """

    role: str
    pod_uid: str = ""


class Callers(Protocol):
    """Identifies callers by their tokens."""

    async def identify(self, token: str) -> Caller | None:
        """The caller; None for a token that is wrong, or of a caller outside this run. Raises Unavailable where it may pass."""
        ...


@dataclass(frozen=True)
class Tokens:
    """The tokens of a local run, one for each role."""

    by_role: dict[str, str]

    @staticmethod
    def create() -> "Tokens":
        """New random tokens, one a role, each of 192 bits."""
        return Tokens({role: secrets.token_urlsafe(24) for role in (WORKER, OPERATOR, CONTROLLER)})

    def write(self, path: Path) -> None:
        """Write to a file that only its user can read."""
        replace_durably(path, json.dumps(self.by_role), PRIVATE)

    @staticmethod
    def read(path: Path) -> "Tokens":
        """The tokens in a file that `write` made. Raises OSError, and ValueError for a damaged file."""
        try:
            by_role = json.loads(path.read_bytes())
            return Tokens({role: str(by_role[role]) for role in (WORKER, OPERATOR, CONTROLLER)})
        except (ValueError, KeyError, TypeError) as error:
            remedy = "remove it while the run is stopped: `frostline resume` makes another"
            raise ValueError(f"{path}: is damaged ({error!r}); {remedy}") from None

    async def identify(self, token: str) -> Caller | None:
        """The role that a token stands for, compared in constant time; None where it is nobody's."""
        said = token.encode("utf-8", "surrogatepass")
        for role, known in self.by_role.items():
            if hmac.compare_digest(known.encode("utf-8", "surrogatepass"), said):
                return Caller(role)
        return None


async def authorise(callers: Callers, method: str, metadata: dict[str, str]) -> Caller:
    """The caller. Raises Unauthenticated for a wrong token, PermissionDenied for a role that may not call `method`."""
    scheme, _, token = metadata.get("authorization", "").partition(" ")
    caller = await callers.identify(token) if scheme == "Bearer" else None
    if caller is None:
        raise Unauthenticated(f"{method}: wrong or missing token; send 'authorization: Bearer <token>' of this run")
    allowed = ALLOWED.get(method, set())
    if caller.role not in allowed:
        raise PermissionDenied(f"{method}: role {caller.role} may not call it; allowed: {', '.join(sorted(allowed))}")
    return caller


def check_speaker(caller: Caller, method: str, request: object) -> None:
    """Check that a request of a worker names a worker of the caller's own pod. Raises PermissionDenied.

    The pod and not the worker is compared because agent and workers share a token. Nothing is compared where tokens are not bound
    to pods: all processes are then one user's.
    """
    message = getattr(request, "heartbeat", request)  # in a stream of heartbeats a request wraps the heartbeat's message
    for field in ("worker_id", "holder"):
        worker_id = str(getattr(message, field, ""))
        if caller.pod_uid and worker_id and pod_uid_of(worker_id) != caller.pod_uid:
            raise PermissionDenied(f"{method}: {field} is {worker_id!r}, the caller's token is of pod {caller.pod_uid!r}")
