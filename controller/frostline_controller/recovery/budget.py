"""The retry budget: the number of failures caused by the run itself that may follow each other without progress. Pure.

A lost node or pod is not charged, since the run did not cause it. A crash that comes back at the same step is charged.
"""

from frostline_contract.record import Frozen

ERROR_CHARACTERS = 4000
"""Characters kept of the first error, from its end: the budget is part of the durable state, which is small."""


class RetryBudget(Frozen):
    """Counts failures caused by the run itself (errors, processes that crash in a pod that stays) without progress between them.

    Progress is a committed step beyond the furthest step of all earlier failures. Steps that are computed again after a restore
    are no progress. The count starts again after a rollback by the guard.

    Args:
        furthest: the last step that had been committed before any failure so far.
        rollbacks: how many rollbacks the run has had; another number starts the count again.
        count: failures in a row.
        first_error: the error of the first of these failures.
    """

    furthest: int = -1
    rollbacks: int = 0
    count: int = 0
    first_error: str = ""

    def charged(self, step: int, rollbacks: int, of_its_own: bool, error: str) -> "RetryBudget":
        """Return the budget after one more failure.

        Args:
            step: the last committed step.
            rollbacks: how many rollbacks the run has had.
            of_its_own: whether the run itself caused the failure; else it is not counted.
            error: a traceback, or empty.
        """
        anew = step > self.furthest or rollbacks != self.rollbacks
        since = RetryBudget(furthest=step, rollbacks=rollbacks) if anew else self
        if not of_its_own:
            return since
        first = since.first_error or error[-ERROR_CHARACTERS:]
        return since.model_copy(update={"count": since.count + 1, "first_error": first})

    def exhausted(self, limit: int) -> str:
        """Return why the run has to fail; empty while the run may recover again, after at most `limit` failures in a row."""
        if self.count <= limit:
            return ""
        first = self.first_error.strip() or "none was reported; see the workers' logs"
        return f"{limit} recoveries in a row without one step beyond step {self.furthest}; first error: {first}"
