"""What the vote costs of a pipeline's step: a traced step's computations, with and without the wait for all ranks at its end.

The vote comes before the update, so no rank begins the next step before the last rank has ended this one. Without it a rank would
go on with the next step's forwards at once. Neither can be measured by leaving the vote out, since then a step is no transaction;
but a trace has the seconds of every computation, and these can be put in order for either case.
"""

from collections.abc import Sequence

from frostline_contract.operations import Kind, Operation
from frostline_contract.schedule_figures import timed
from frostline_contract.statistics import OperationTime, StepTrace

STEPS_IN_A_ROW = 4
"""Steps after which another one adds as much as every later one."""


def vote_percent(traced: Sequence[Sequence[StepTrace]]) -> list[float]:
    """Return, for each traced step, the share of its computations' time, in percent, that would be saved without a vote.

    Args:
        traced: for each step, its trace on each pipeline rank, in the ranks' order. Messages count as no time.
    """
    return [round(100 * (1 - _one_more_step(step) / _seconds(step, 1)), 6) for step in traced]


def idle_percent(traced: Sequence[Sequence[StepTrace]]) -> list[float]:
    """Return, for each traced step, the percentage of its time in which a rank computes nothing, in the mean of the ranks.

    A step's time is from the first computation's begin on any rank to the last one's end.
    """
    return [_idle(step) for step in traced]


def _idle(step: Sequence[StepTrace]) -> float:
    every = [one for trace in step for one in trace.operations]
    length = max(one.end for one in every) - min(one.start for one in every)
    return 100 * (1 - sum(one.end - one.start for one in every) / (len(step) * length))


def _one_more_step(step: Sequence[StepTrace]) -> float:
    """Return the seconds that a further step adds where nothing holds ranks back between steps."""
    return _seconds(step, STEPS_IN_A_ROW) - _seconds(step, STEPS_IN_A_ROW - 1)


def _seconds(step: Sequence[StepTrace], steps: int) -> float:
    """Return the seconds of so many equal steps in a row; a computation begins once its rank is free and its input is there."""
    micro_batches = 1 + max(one.micro_batch for trace in step for one in trace.operations)
    lasts = {(trace.pp_rank, *_operation(one)): one.end - one.start for trace in step for one in trace.operations}
    orders = [
        [
            _operation(one)._replace(micro_batch=one.micro_batch + number * micro_batches)
            for number in range(steps)
            for one in sorted(trace.operations, key=lambda one: one.start)
        ]
        for trace in step
    ]

    def seconds(place: int, one: Operation) -> float:
        return lasts[(step[place].pp_rank, *one._replace(micro_batch=one.micro_batch % micro_batches))]

    return max(one.end for one in timed(orders, seconds))


def _operation(one: OperationTime) -> Operation:
    return Operation(Kind(one.kind), one.stage, one.micro_batch, one.slice)
