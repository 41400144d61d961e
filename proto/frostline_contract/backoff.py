"""Waiting longer after each failure in a row: the one back-off of restarts, reconnections and repeated questions."""

import random
from dataclasses import dataclass

HEALTHY_SECONDS = 30.0
"""A process that lived this long has not failed soon after its start: its back-off begins anew."""
DOUBLINGS_MAX = 60
"""Beyond any max_seconds; keeps the product a number however often something has failed."""


@dataclass
class Backoff:
    """Counts failures in a row and says how long to wait after the latest of them.

    first_seconds: after the first failure; doubled with each further one, up to max_seconds. spread: share of the wait that is
    drawn at random (0.5: from half of it to all of it), so that many that failed together do not come back together.
    healthy_seconds: what succeeded for longer than that before it failed does not count as one more failure in a row.
    """

    first_seconds: float
    max_seconds: float
    spread: float = 0.0
    healthy_seconds: float = HEALTHY_SECONDS
    failures: int = 0

    def failed(self, lived_seconds: float = 0.0) -> float:
        """Note a failure after lived_seconds of success; returns the seconds to wait."""
        self.failures = 0 if lived_seconds > self.healthy_seconds else self.failures + 1
        doublings = min(max(0, self.failures - 1), DOUBLINGS_MAX)
        return min(self.max_seconds, self.first_seconds * 2**doublings) * (1.0 - self.spread * random.random())

    def reset(self) -> None:
        """A success: the next failure waits first_seconds again."""
        self.failures = 0
