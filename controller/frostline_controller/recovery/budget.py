"""The retry budget: deaths that nobody caused are free, a crash that comes back at the same step is not. Pure."""

from frostline_contract.record import Frozen

ERROR_CHARACTERS = 4000
"""Of the first error, its end: the budget is a part of the durable state, which has little room."""


class RetryBudget(Frozen):
    """Counts failures of the run's own making (errors, processes that crash in a pod that stays) without progress between them.

    Progress is a committed step beyond the furthest that any failure had seen: steps that are done again after going back to a
    checkpoint are none. A guard's rollback starts anew. first_error: of the series.
    """

    furthest: int = -1
    rollbacks: int = 0
    count: int = 0
    first_error: str = ""

    def charged(self, step: int, rollbacks: int, of_its_own: bool, error: str) -> "RetryBudget":
        """After a failure with `step` committed before it. error: a traceback where there is one."""
        anew = step > self.furthest or rollbacks != self.rollbacks
        since = RetryBudget(furthest=step, rollbacks=rollbacks) if anew else self
        if not of_its_own:
            return since
        first = since.first_error or error[-ERROR_CHARACTERS:]
        return since.model_copy(update={"count": since.count + 1, "first_error": first})

    def exhausted(self, limit: int) -> str:
        """What to say where recoveries no longer help; empty otherwise. limit: how many failures are recovered from."""
        if self.count <= limit:
            return ""
        first = self.first_error.strip() or "none was reported; see the workers' logs"
        return f"{limit} recoveries in a row without one step beyond step {self.furthest}; first error: {first}"
