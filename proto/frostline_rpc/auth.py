"""Who may call what. Every call carries `authorization: Bearer <token>`; a token stands for one role.

Locally a run has one random token a role, kept in a file that only its user can read (`Tokens`). On a cluster the callers are
service accounts, known by projected tokens (`frostline_rpc.projected`).
"""

import hmac
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from frostline_rpc.errors import PermissionDenied, Unauthenticated

WORKER, OPERATOR, CONTROLLER = "worker", "operator", "controller"

ALLOWED = {
    "DescribeJob": {WORKER},
    "Register": {WORKER},
    "Heartbeat": {WORKER},
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


class Callers(Protocol):
    """Knows callers by their tokens."""

    async def role_of(self, token: str) -> str | None:
        """The caller's role; None for a token that is wrong, too old, or of somebody who is not of this run."""
        ...


@dataclass(frozen=True)
class Tokens:
    """One token a role."""

    by_role: dict[str, str]

    @staticmethod
    def create() -> "Tokens":
        return Tokens({role: secrets.token_urlsafe(24) for role in (WORKER, OPERATOR, CONTROLLER)})

    def write(self, path: Path) -> None:
        """Write to a new file that only its user can read."""
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump(self.by_role, file)

    @staticmethod
    def read(path: Path) -> "Tokens":
        return Tokens(json.loads(path.read_text()))

    async def role_of(self, token: str) -> str | None:
        for role, known in self.by_role.items():
            if hmac.compare_digest(known, token):
                return role
        return None


async def authorise(callers: Callers, method: str, metadata: dict[str, str]) -> str:
    """The caller's role. Raises Unauthenticated for a wrong token, PermissionDenied for a role that may not call `method`."""
    scheme, _, token = metadata.get("authorization", "").partition(" ")
    role = await callers.role_of(token) if scheme == "Bearer" else None
    if role is None:
        raise Unauthenticated(f"{method}: wrong or missing token; send 'authorization: Bearer <token>' of this run")
    if role not in ALLOWED.get(method, set()):
        raise PermissionDenied(f"{method}: role {role} may not call it; allowed: {', '.join(sorted(ALLOWED.get(method, set())))}")
    return role
