"""The retry budget: deaths that nobody caused are free, a crash that comes back at the same step is not. Pure."""

from dataclasses import dataclass


@dataclass
class RetryBudget:
    """Counts failures of the run's own making (errors, processes that crash in a pod that stays) without progress between them.

    limit: how many are recovered from. Progress is a committed step beyond the furthest that any failure had seen: steps that
    are done again after going back to a checkpoint are none. A guard's rollback starts anew. first_error: of the series.
    """

    limit: int
    furthest: int = -1
    rollbacks: int = 0
    count: int = 0
    first_error: str = ""

    def note(self, step: int, rollbacks: int, of_its_own: bool, error: str) -> None:
        """A failure with `step` committed before it. error: a traceback where there is one."""
        if step > self.furthest or rollbacks != self.rollbacks:
            self.count, self.first_error = 0, ""
            self.furthest, self.rollbacks = step, rollbacks
        if of_its_own:
            self.count += 1
            self.first_error = self.first_error or error

    @property
    def exhausted(self) -> str:
        """What to say where recoveries no longer help; empty otherwise."""
        if self.count <= self.limit:
            return ""
        first = self.first_error.strip() or "none was reported; see the workers' logs"
        return f"{self.limit} recoveries in a row without one step beyond step {self.furthest}; first error: {first}"
