"""The retry budget: how many failures of the run's own making may follow each other without progress. Pure.

A lost node or pod is not charged: the run did not cause it. A crash that comes back at the same step is.
"""

from frostline_contract.record import Frozen

ERROR_CHARACTERS = 4000
"""How much is kept of the first error, from its end: the budget is part of the durable state, which is small."""


class RetryBudget(Frozen):
    """Counts failures of the run's own making (errors, processes that crash in a pod that stays) without progress between them.

    Progress is a committed step beyond the furthest step of all earlier failures. Steps that are computed again after a restore
    are no progress. The count starts again after a rollback by the guard.

    Args:
        furthest: the last step that had been committed before any failure so far.
        rollbacks: how many rollbacks the run has had; another number starts the count again.
        count: failures in a row.
        first_error: the error of the first of them.
    """

    furthest: int = -1
    rollbacks: int = 0
    count: int = 0
    first_error: str = ""

    def charged(self, step: int, rollbacks: int, of_its_own: bool, error: str) -> "RetryBudget":
        """The budget after one more failure. step: the last committed one. error: a traceback, where there is one."""
        anew = step > self.furthest or rollbacks != self.rollbacks
        since = RetryBudget(furthest=step, rollbacks=rollbacks) if anew else self
        if not of_its_own:
            return since
        first = since.first_error or error[-ERROR_CHARACTERS:]
        return since.model_copy(update={"count": since.count + 1, "first_error": first})

    def exhausted(self, limit: int) -> str:
        """Why the run has to fail; empty while it may recover again. limit: the most failures in a row."""
        if self.count <= limit:
            return ""
        first = self.first_error.strip() or "none was reported; see the workers' logs"
        return f"{limit} recoveries in a row without one step beyond step {self.furthest}; first error: {first}"
