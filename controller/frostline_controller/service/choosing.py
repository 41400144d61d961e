"""Asks the planner: for whom, for what shape, and whether a change pays. Holds what the planner was told last."""

import asyncio
import logging

from frostline_contract.plan import Placement
from frostline_controller.membership import Worker
from frostline_controller.planning import Choice, Situation, choose_placement
from frostline_controller.service.run import Run

log = logging.getLogger(__name__)


class Choosing:
    def __init__(self, run: Run) -> None:
        self._run = run

    def wanted_workers(self) -> int:
        """Workers that the run wants: the job's number, below a user's request where there is one."""
        wanted = self._run.job.placement.workers
        requested = self._run.state.requested_workers
        if requested > 0:
            wanted = max(self._run.job.placement.min_workers, min(wanted, requested))
        return wanted

    async def choose(self, workers: list[Worker], freeze_point: int, current: Placement | None, step: int) -> Choice:
        """The placement for these workers; a pinned shape that they cannot fill is left out. ValueError where none fits."""
        run = self._run
        assert run.identity is not None
        pinned = run.state.pinned
        if pinned is not None and (pinned.freeze_point != freeze_point or pinned.pp_degree * pinned.dp_degree > len(workers)):
            pinned = None
        members = [worker for worker in workers if current is not None and worker.worker_id in current.workers]
        others = [worker for worker in workers if worker not in members]
        situation = Situation(
            num_units=run.identity.num_units,
            freeze_point=freeze_point,
            workers=tuple([*members, *others][: self.wanted_workers()]),
            current=current,
            start=(run.state.start_pp_degree, run.state.start_dp_degree),
            pinned=pinned,
            steps_left=max(0, run.total_steps - step),
            reshape_seconds=run.reshape_seconds,
            boundary_bytes_per_sample=run.identity.boundary_bytes_per_sample,
            cacheable=run.identity.cacheable,
            cache_reachable=(run.folder / "cache.address").exists(),
            parallel_slots=run.parallel_slots,
            train_samples=run.identity.train_samples,
            tied=run.identity.tied,
        )
        return await asyncio.to_thread(choose_placement, run.job, situation)
