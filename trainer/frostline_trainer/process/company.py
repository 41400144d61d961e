"""The company of a measuring process: as many processes as the run will have workers on this machine, measuring at the same time.

Work amid other workers takes longer than alone: they share caches and memory, and workers with shares of a processor take turns
on it. So what a run's numbers are chosen by is measured as the run will compute. The company also measures the link between its
members, by the same probes as a run's workers.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from frostline_contract.cpu_groups import enter_from
from frostline_contract.exit_codes import USER_MISTAKE
from frostline_contract.job import Job
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile
from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.device_clock import HostClock, quota_clock_of
from frostline_trainer.step.link import Endpoint, measure_links
from frostline_trainer.transport.collectives import Group, broadcast_bytes
from frostline_trainer.transport.transport import GlooTransport

MEETING = "meeting"


class Company:
    """The measuring processes of one machine, seen by one of them. group: of all of them; a process may be alone in it."""

    def __init__(self, group: Group) -> None:
        self._group = group

    @staticmethod
    def alone() -> "Company":
        """Return the company of a process that measures by itself."""
        return Company(Group(None, MEETING, 0, 1))

    def take_share(self) -> None:
        """Take this process's share of a processor, where workers have shares: from now on it computes as a worker."""
        enter_from(os.environ, f"measuring-{self._group.index}")

    def go_on(self, wanted: bool) -> bool:
        """Return whether all go on: what the first member wants. Nobody goes on before all have come here."""
        said = torch.tensor([wanted], dtype=torch.int64)
        self._group.broadcast(said, 0)
        return bool(said.item())

    def link(self, job: Job) -> LinkProfile | None:
        """Measure the link between members as between a run's workers; None for a process that is alone."""
        size = self._group.size
        groups = Groups(None, self._group, self._group, {"pp": self._group}, GlooTransport(self._group))
        here = Endpoint("here", torch.device("cpu"), quota_clock_of(job, torch.device("cpu")) or HostClock())
        return measure_links(groups, ParallelShape(size, 1).mesh, here).near

    def gather(self, own: bytes) -> list[bytes]:
        """Return what all members give, by index; all of them call it."""
        return [broadcast_bytes(self._group, own, index) for index in range(self._group.size)]

    def close(self) -> None:
        """Close the connections to the others."""
        self._group.close()


def in_company(folder: Path, members: int, work: Callable[[Company], bytes]) -> list[bytes]:
    """Do the same work in several processes at once: in this one and in forks of it. Returns what each of them gives, by index.

    Call it before this process has other threads.

    Args:
        folder: in which they meet; no other company does.
        members: number of processes.
        work: is called once in each process.

    Raises:
        RuntimeError: another process has failed; its own error is on standard error.
        Exception: what the work raises in this process.
    """
    forking = multiprocessing.get_context("fork")
    others = [forking.Process(target=_fork, args=(folder, index, members, work), daemon=True) for index in range(1, members)]
    for other in others:
        other.start()
    found = _member(folder, 0, members, work)
    for other in others:
        other.join()
    return found


def _fork(folder: Path, index: int, members: int, work: Callable[[Company], bytes]) -> None:
    try:
        _member(folder, index, members, work)
    except ValueError:  # a mistake of the user, which the first member meets as well and reports
        sys.exit(USER_MISTAKE)


def _member(folder: Path, index: int, members: int, work: Callable[[Company], bytes]) -> list[bytes]:
    store = dist.FileStore(str(folder / MEETING), members) if members > 1 else None
    company = Company(Group(store, MEETING, index, members))
    try:
        return company.gather(work(company))
    finally:
        company.close()
