"""A worker's identity, from its pod's environment."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frostline_contract.run_directory import RunDirectory
from frostline_contract.worker_id import make_worker_id, ordinal_of


@dataclass(frozen=True)
class Identity:
    """A worker's identity: pod UID and process nonce, never a pod's name (docs/protocols.md 5.1).

    The agent chooses the nonce (FROSTLINE_WORKER_NONCE), so that other processes can report the worker's end.

    Attributes:
        controller, token: Address and token, or the paths of files that hold them (`frostline_rpc.current_text`).
        node: The worker's failure domain.
        host: The address at which other workers reach its store and its groups.
        joined_file: Created when the worker has joined, for the pod's probes.
    """

    run_dir: Path
    controller: str
    token: str
    pod_name: str
    worker_id: str
    node: str
    host: str
    joined_file: Path | None = None

    @property
    def ordinal(self) -> int:
        """The pod's number in its StatefulSet; 0 for a pod of another kind."""
        return ordinal_of(self.pod_name)

    @staticmethod
    def from_environment() -> "Identity":
        """The identity from the environment variables of pod and agent. Raises KeyError if one is missing."""
        run_dir = Path(os.environ["FROSTLINE_RUN_DIR"])
        return Identity(
            run_dir=run_dir,
            controller=os.environ.get("FROSTLINE_CONTROLLER") or str(RunDirectory(run_dir).controller_address),
            token=os.environ["FROSTLINE_TOKEN"],
            pod_name=os.environ.get("FROSTLINE_POD_NAME", "worker"),
            worker_id=worker_id_of(os.environ, secrets.token_hex(4)),
            node=os.environ.get("FROSTLINE_NODE", "local"),
            host=os.environ.get("FROSTLINE_HOST", "127.0.0.1"),
            joined_file=Path(joined) if (joined := os.environ.get("FROSTLINE_JOINED")) else None,
        )


def worker_id_of(env: Mapping[str, str], nonce: str = "") -> str:
    """The id of the worker that was started with this environment. The default `nonce` is used if the environment has none."""
    return make_worker_id(env.get("FROSTLINE_POD_UID", "pod"), env.get("FROSTLINE_WORKER_NONCE", nonce))
