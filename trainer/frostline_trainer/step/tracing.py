"""Traces: when each computation of a few steps began and ended, for the picture of the step beside the planned one.

A trace costs two marks a computation (three where it waits for a message), so steps are traced ever more seldom: the 4th, 8th,
16th, ... of a generation under one freeze point. However long a run is, its traces stay few. Clocks of machines differ; all
members learn a vote's result at nearly the same moment, and a trace counts from the vote before its step.
"""

from collections.abc import Callable

from frostline_contract.statistics import TRACED_OPERATIONS_MAX, OperationTime, StepTrace
from frostline_trainer.step.device_clock import DeviceClock, Mark
from frostline_trainer.step.programs import Instruction

FIRST_TRACED = 4
"""Of a generation under one freeze point: the steps before it warm up."""


class Trace:
    """A step's computations on this rank, by marks of its device. since: the vote's mark."""

    def __init__(self, clock: DeviceClock, since: Mark) -> None:
        self._clock, self._since = clock, since
        self._began = since
        self._marks: list[tuple[Instruction, Mark, Mark]] = []

    def begins(self) -> None:
        """A computation begins; said again where what it waited for has come."""
        self._began = self._clock.mark()

    def ends(self, instruction: Instruction) -> None:
        """The computation that began last has ended."""
        self._marks.append((instruction, self._began, self._clock.mark()))

    def read(self) -> tuple[OperationTime, ...]:
        """Every computation in seconds; the device has come to all of them."""
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
    """Of a step that is not traced."""

    def __init__(self) -> None:
        pass

    def begins(self) -> None:
        pass

    def ends(self, instruction: Instruction) -> None:
        pass


NO_TRACE = NoTrace()


class Tracing:
    """Says which steps of a generation are traced, and hands their traces on.

    clock: asks for the device's clock. generation, pp_rank: of the traces. wanted: whether this member traces at all: one replica
    does, where it is a pipeline. tell: takes the trace of a committed step; None: nobody does, and no step is traced.
    """

    def __init__(self, clock: Callable[[], DeviceClock], generation: str, pp_rank: int, wanted: bool) -> None:
        self._clock, self._generation, self._pp_rank, self._wanted = clock, generation, pp_rank, wanted
        self.tell: Callable[[StepTrace], None] | None = None
        self.freeze_to(0, 0)

    def freeze_to(self, freeze_point: int, computations: int) -> None:
        """Another freeze point has another program, of so many computations: its steps are counted from the first."""
        self._freeze_point, self._fits = freeze_point, computations <= TRACED_OPERATIONS_MAX
        self._steps = 0
        self._since: Mark | None = None
        self._trace: Trace | None = None

    def voted(self) -> None:
        """A vote's result is known here. It is marked where the step that follows is to be traced."""
        due = self._steps + 1 >= FIRST_TRACED and (self._steps + 1) & self._steps == 0
        self._since = self._clock().mark() if due and self._wanted and self._fits and self.tell is not None else None

    def begin(self) -> Trace:
        """The trace of the step that begins."""
        self._steps += 1
        since, self._since = self._since, None
        self._trace = Trace(self._clock(), since) if since is not None else None
        return self._trace or NO_TRACE

    def committed(self, lineage: int, step: int) -> None:
        """Hand on the trace of the step, where it has one."""
        trace, self._trace = self._trace, None
        if trace is not None and self.tell is not None:
            self.tell(
                StepTrace(
                    lineage=lineage, step=step, generation=self._generation, freeze_point=self._freeze_point,
                    pp_rank=self._pp_rank, operations=trace.read(),
                )
            )  # fmt: skip
