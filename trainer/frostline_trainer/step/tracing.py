"""Traces: begin and end of each computation in a few steps, drawn in the report beside the planned schedule.

A trace costs two marks a computation (three if it waits for a message), so steps are traced ever more seldom: the 4th, 8th,
16th, ... of a generation under one freeze point. So even a long run has few traces. Because the clocks of machines differ, a
trace's times count from the result of the vote before its step, which all members see at nearly the same moment.
"""

from collections.abc import Callable

from frostline_contract.statistics import TRACED_OPERATIONS_MAX, OperationTime, StepTrace
from frostline_trainer.step.device_clock import DeviceClock, Mark
from frostline_trainer.step.programs import Instruction

FIRST_TRACED = 4
"""The first step that is traced in a generation under one freeze point; earlier steps warm up."""


class Trace:
    """A step's computations on this rank, by marks of its device. since: the vote's mark."""

    def __init__(self, clock: DeviceClock, since: Mark) -> None:
        self._clock, self._since = clock, since
        self._began = since
        self._marks: list[tuple[Instruction, Mark, Mark]] = []

    def begins(self) -> None:
        """Mark the begin of a computation; called again when a message that it waited for has arrived."""
        self._began = self._clock.mark()

    def ends(self, instruction: Instruction) -> None:
        """Mark the end of the computation that began last."""
        self._marks.append((instruction, self._began, self._clock.mark()))

    def read(self) -> tuple[OperationTime, ...]:
        """Begin and end of every computation in seconds; the device must have reached all marks."""
        return tuple(
            OperationTime(
                kind=one.kind.value, stage=one.stage, micro_batch=one.micro_batch, slice=one.slice,
                start=self._seconds(began), end=self._seconds(ended),
            )
            for one, began, ended in self._marks
        )  # fmt: skip

    def _seconds(self, mark: Mark) -> float:
        return round(self._clock.seconds(self._since, mark), 7)


class NoTrace(Trace):
    """The trace of a step that is not traced: it records nothing."""

    def __init__(self) -> None:
        pass

    def begins(self) -> None:
        pass

    def ends(self, instruction: Instruction) -> None:
        pass


NO_TRACE = NoTrace()


class Tracing:
    """Decides which steps of a generation are traced, and passes their traces on.

    Args:
        clock: called for the device's clock.
        generation: the traces' generation, as they write it.
        pp_rank: the traces' pipeline rank.
        wanted: whether this member traces at all: one replica does, if it is a pipeline.

    Attributes:
        send: called with the trace of a committed step; None: no step is traced.
    """

    def __init__(self, clock: Callable[[], DeviceClock], generation: str, pp_rank: int, wanted: bool) -> None:
        self._clock, self._generation, self._pp_rank, self._wanted = clock, generation, pp_rank, wanted
        self.send: Callable[[StepTrace], None] | None = None
        self.freeze_to(0, 0)

    def freeze_to(self, freeze_point: int, computations: int) -> None:
        """Count steps anew: another freeze point has another program. computations: how many that program has."""
        self._freeze_point, self._fits = freeze_point, computations <= TRACED_OPERATIONS_MAX
        self._steps = 0
        self._since: Mark | None = None
        self._trace: Trace | None = None

    def voted(self) -> None:
        """Mark the moment at which a vote's result is known, if the next step is to be traced."""
        due = self._steps + 1 >= FIRST_TRACED and (self._steps + 1) & self._steps == 0
        self._since = self._clock().mark() if due and self._wanted and self._fits and self.send is not None else None

    def begin(self) -> Trace:
        """The trace of the step that begins."""
        self._steps += 1
        since, self._since = self._since, None
        self._trace = Trace(self._clock(), since) if since is not None else None
        return self._trace or NO_TRACE

    def committed(self, lineage: int, step: int) -> None:
        """Pass on the trace of the step, if it has one."""
        trace, self._trace = self._trace, None
        if trace is not None and self.send is not None:
            self.send(
                StepTrace(
                    lineage=lineage, step=step, generation=self._generation, freeze_point=self._freeze_point,
                    pp_rank=self._pp_rank, operations=trace.read(),
                )
            )  # fmt: skip
