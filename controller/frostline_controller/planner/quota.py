"""A worker's share of a processor under a control group: full speed up to a quota, then a standstill until the next period.

Sustained work takes its processor time divided by the share. Work that begins after a wait finds the period's quota unused and
ends sooner: it runs at full speed if it needs less than the quota. The work that fills and drains a pipeline begins after a wait.
"""

from dataclasses import dataclass

import numpy as np

from frostline_contract.job import Job


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


def quota_of(job: Job, period_seconds: float) -> Quota | None:
    """Return a worker's quota, with the period under which it measured (0: none); None where its threads are never halted."""
    cpus = job.placement.worker_cpus
    share = cpus / job.training.threads if cpus is not None else 1.0
    return Quota(share, period_seconds) if share < 1 and period_seconds > 0 else None
