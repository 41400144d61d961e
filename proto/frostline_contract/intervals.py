"""The calendar of decisions: at which steps statistics are read and decisions take effect (docs/protocols.md 6.2).

Steps are numbered from 1. Interval k covers the steps (k-1) * length + 1 .. k * length; decision k reads interval k
and takes effect at step k * length + lag, that is: the first step computed under it has that number.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecisionCalendar:
    """Maps steps to the decisions that are due. A decision that would take effect after the last step does not exist.

    Attributes:
        interval_steps: steps of an interval.
        lag_steps: steps from an interval's last step to the first step under its decision.
        total_steps: steps of the run.
    """

    interval_steps: int
    lag_steps: int
    total_steps: int

    def __post_init__(self) -> None:
        if self.lag_steps < 3:
            raise ValueError(f"decisions.lag_steps is {self.lag_steps}; statistics leave when stable, so it must be at least 3")
        check_lag(self.interval_steps, self.lag_steps)

    def interval_of(self, step: int) -> int:
        """The number of the interval that contains `step`."""
        return (step - 1) // self.interval_steps + 1

    def ends_interval(self, step: int) -> bool:
        """True where `step` is the last of its interval."""
        return step % self.interval_steps == 0

    def effective_step(self, number: int) -> int:
        """The first step computed under decision `number`."""
        return self.last_step_of(number) + self.lag_steps

    def complete_at(self, step: int) -> int:
        """The number of the last interval that ends at `step` or before; 0 where none does."""
        return step // self.interval_steps

    def first_step_of(self, interval: int) -> int:
        """The first step of an interval."""
        return self.last_step_of(interval - 1) + 1

    def last_step_of(self, interval: int) -> int:
        """The last step of an interval: what decision `interval` reads is known once that step is committed."""
        return interval * self.interval_steps

    def due_before(self, step: int) -> int:
        """The number of the newest decision that must be known before `step` is computed; 0 where none is."""
        return max(0, (min(step, self.total_steps) - self.lag_steps) // self.interval_steps)

    def due_after(self, step: int) -> int:
        """The number of the first decision that takes effect later than at `step`."""
        return self.due_before(step) + 1


def check_lag(interval_steps: int, lag_steps: int) -> None:
    """Raise ValueError where an interval is not longer than the lag of its decision."""
    if interval_steps <= lag_steps:
        raise ValueError(
            f"freeze.interval_steps is {interval_steps} and decisions.lag_steps is {lag_steps}; "
            "an interval must be longer than the lag, so that decisions take effect in order"
        )
