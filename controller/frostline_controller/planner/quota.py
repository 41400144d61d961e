"""A worker's share of a processor as a control group deals it: at full speed up to a quota, then nothing until the next period.

Work that goes on and on takes its processor time over the share. Work that begins after a wait finds the period's quota unused
and is done sooner: at full speed where it needs less than the quota. What fills and drains a pipeline is such work.
"""

from dataclasses import dataclass

import numpy as np

from frostline_contract.job import Job


@dataclass(frozen=True)
class Quota:
    """A worker's quota.

    share: of the time in which all of its threads compute, above 0 and below 1. period_seconds: of the control group.
    """

    share: float
    period_seconds: float

    def after_a_wait(self, sustained: np.ndarray) -> np.ndarray:
        """Seconds of work that begins anywhere in a period whose quota is unused, on average.

        sustained: seconds of the same work where it goes on and on.

        With c seconds at full speed, of period P and quota q, and c = n q + r for 0 < r <= q: at once where n is 0. Begun in the
        first P - q of a period, it uses that quota up, waits for the period's end, and ends n periods and r after the period's
        begin. Begun in the last q, it goes on into the next period's quota, and stands still n or n - 1 times.
        """
        period, quota = self.period_seconds, self.share * self.period_seconds
        full = sustained * self.share
        periods = np.maximum(np.ceil(full / quota) - 1, 0.0)
        rest = full - periods * quota
        early = periods * period + rest - (period - quota) / 2
        late = full + (period - quota) * (periods - 1 + rest / quota)
        return np.where(periods == 0, full, (1 - self.share) * early + self.share * late)


def quota_of(job: Job, period_seconds: float) -> Quota | None:
    """What a worker has, by the period that it measured under (0: none); None where nothing makes it stand still."""
    cpus = job.placement.worker_cpus
    share = cpus / job.training.threads if cpus is not None else 1.0
    return Quota(share, period_seconds) if share < 1 and period_seconds > 0 else None
