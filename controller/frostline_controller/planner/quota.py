"""A worker's share of a processor under a control group: full speed up to a quota, then a standstill until the next period.

Sustained work takes its processor time divided by the share. Work that begins after a wait finds the period's quota unused and
ends sooner: it runs at full speed if it needs less than the quota. The work that fills and drains a pipeline begins after a wait.

The closed form of a step's cost knows only these two cases. In between, ranks of a pipeline wait for each other while some of
them are halted, and a wait longer than the rest of a period loses quota, which no later work can use. So the plan that is
chosen, and every plan beside measured steps, is simulated, with each rank's quota (`HaltedRanks`).
"""

import math
from dataclasses import dataclass, field

import numpy as np

from frostline_contract.job import Job

TINY_SECONDS = 1e-12
"""Work that is left by rounding alone does not wait for the next period."""


@dataclass(frozen=True)
class Quota:
    """A worker's quota.

    Attributes:
        share: part of the time in which all of the worker's threads may compute, above 0 and below 1.
        period_seconds: period of the control group.
    """

    share: float
    period_seconds: float

    def after_a_wait(self, sustained: np.ndarray) -> np.ndarray:
        """Return the mean seconds of work that begins at a random time of a period with an unused quota.

        Let c be the work's seconds at full speed, P the period, q the quota, and c = n q + r with 0 < r <= q. With n = 0 the
        work takes c. Work that begins in the first P - q of a period uses up that quota, waits for the period's end, and ends
        n periods and r after the period's begin. Work that begins in the last q goes on with the next period's quota, and
        stands still n or n - 1 times.

        Args:
            sustained: seconds of the same work as a part of sustained work.
        """
        period, quota = self.period_seconds, self.share * self.period_seconds
        full = sustained * self.share
        periods = np.maximum(np.ceil(full / quota) - 1, 0.0)
        rest = full - periods * quota
        early = periods * period + rest - (period - quota) / 2
        late = full + (period - quota) * (periods - 1 + rest / quota)
        return np.where(periods == 0, full, (1 - self.share) * early + self.share * late)


@dataclass
class HaltedRanks:
    """The quotas of a pipeline's ranks in simulated steps.

    Attributes:
        quota: of each rank.
        offsets: the moment at which a period of each rank begins, in seconds since the step's start.
    """

    quota: Quota
    offsets: list[float]
    _used: dict[int, tuple[int, float]] = field(default_factory=dict, init=False)  # by rank: period, seconds used in it

    def end(self, pp_rank: int, start: float, sustained: float) -> float:
        """Return the moment when a rank has done work that begins at `start` (`schedule_figures.End`).

        Args:
            pp_rank: the rank; its work is given in order.
            start: seconds since the step's start.
            sustained: seconds of the same work as a part of sustained work.
        """
        length, share, offset = self.quota.period_seconds, self.quota.share, self.offsets[pp_rank]
        last, used = self._used.get(pp_rank, (0, 0.0))
        now, work = start, sustained * share
        period = math.floor((now - offset) / length)
        if period > last:
            used = 0.0
        while True:
            ends = offset + (period + 1) * length
            room = max(0.0, min(share * length - used, ends - now))
            if work <= room + TINY_SECONDS:
                self._used[pp_rank] = period, used + work
                return now + work
            work, now, used, period = work - room, ends, 0.0, period + 1

    def go_on(self, seconds: float) -> None:
        """Begin the next step, that many seconds after the start of the one before."""
        length = self.quota.period_seconds
        for pp_rank, offset in enumerate(self.offsets):
            periods = math.ceil((seconds - offset) / length)
            last, used = self._used.get(pp_rank, (0, 0.0))
            self.offsets[pp_rank] = offset + periods * length - seconds
            self._used[pp_rank] = last - periods, used


def spread_offsets(quota: Quota, ranks: int, turns: int) -> list[list[float]]:
    """Return offsets for several simulations of one step: in no turn do the ranks' periods begin together, as those of machines.

    The offsets are fractional parts of consecutive multiples of the golden ratio, which are spread evenly.

    Args:
        quota: of each rank.
        ranks: of the pipeline.
        turns: simulations.
    """
    golden, length = (math.sqrt(5) - 1) / 2, quota.period_seconds
    return [[-length * (number * golden % 1) for number in range(turn * ranks, (turn + 1) * ranks)] for turn in range(turns)]


def quota_of(job: Job, period_seconds: float) -> Quota | None:
    """Return a worker's quota, with the period under which it measured (0: none); None where its threads are never halted."""
    cpus = job.placement.worker_cpus
    share = cpus / job.training.threads if cpus is not None else 1.0
    return Quota(share, period_seconds) if share < 1 and period_seconds > 0 else None
