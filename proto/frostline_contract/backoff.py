"""Exponential back-off, used for all restarts, reconnections and repeated requests."""

import random
from dataclasses import dataclass

HEALTHY_SECONDS = 30.0
"""Seconds after which a process counts as well started: if it fails later, its back-off begins anew."""
DOUBLINGS_MAX = 60
"""The most doublings that are computed: enough to exceed any max_seconds, few enough for the product to stay finite."""


@dataclass
class Backoff:
    """Counts failures in a row and says how long to wait after the latest of them.

    Args:
        first_seconds: wait after the first failure; it doubles with each further failure, up to max_seconds.
        spread: share of the wait that is drawn at random (0.5: from half of the wait to all of it), so that processes that failed
            together do not retry together.
        healthy_seconds: a failure after a longer success than this is the first of a new row.
    """

    first_seconds: float
    max_seconds: float
    spread: float = 0.0
    healthy_seconds: float = HEALTHY_SECONDS
    failures: int = 0

    def failed(self, lived_seconds: float = 0.0) -> float:
        """Count a failure that followed lived_seconds of success. Returns the seconds to wait."""
        self.failures = 0 if lived_seconds > self.healthy_seconds else self.failures + 1
        doublings = min(max(0, self.failures - 1), DOUBLINGS_MAX)
        return min(self.max_seconds, self.first_seconds * 2**doublings) * (1.0 - self.spread * random.random())

    def reset(self) -> None:
        """Count a success: the wait after the next failure is first_seconds again."""
        self.failures = 0
