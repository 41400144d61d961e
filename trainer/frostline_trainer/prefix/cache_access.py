"""How a worker reaches the cache server: its address, token and name there."""

from dataclasses import dataclass
from pathlib import Path

from frostline_contract.run_directory import RunDirectory


@dataclass(frozen=True)
class CacheAccess:
    """A worker's access to the cache server of its run, or to one that the runs of a sweep share.

    Attributes:
        address: host:port; empty: it is in the run directory, once the server has started.
        token: for the cache server, or the path of a file that holds it.
        worker_id: for which the cache server counts the use.
        run_dir: the run directory.
        is_shared: whether other runs use the cache server too.
    """

    address: str
    token: str
    worker_id: str
    run_dir: Path
    is_shared: bool

    @classmethod
    def of(cls, address: str, token: str, worker_id: str, run_dir: Path) -> "CacheAccess":
        """The access to the run's own cache by its worker's token, or to a shared one by the token that the run was given for
        it."""
        shared = RunDirectory(run_dir).cache_token
        return cls(address, str(shared) if shared.exists() else token, worker_id, run_dir, shared.exists())
