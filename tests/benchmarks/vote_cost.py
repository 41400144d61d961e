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
    return [100 * (1 - _one_more_step(ranks) / _seconds(ranks, 1)) for ranks in traced]


def idle_percent(traced: Sequence[Sequence[StepTrace]]) -> list[float]:
    """Return, for each traced step, the percentage of its time in which a rank computes nothing, in the mean of the ranks.

    A step's time is from the first computation's begin on any rank to the last one's end.
    """
    return [_idle(ranks) for ranks in traced]


def _idle(ranks: Sequence[StepTrace]) -> float:
    every = [one for rank in ranks for one in rank.operations]
    length = max(one.end for one in every) - min(one.start for one in every)
    return 100 * (1 - sum(one.end - one.start for one in every) / (len(ranks) * length))


def _one_more_step(ranks: Sequence[StepTrace]) -> float:
    """Return the seconds that a further step adds where nothing holds ranks back between steps."""
    return _seconds(ranks, STEPS_IN_A_ROW) - _seconds(ranks, STEPS_IN_A_ROW - 1)


def _seconds(ranks: Sequence[StepTrace], steps: int) -> float:
    """Return the seconds of so many equal steps in a row; a computation begins once its rank is free and its input is there."""
    micro_batches = 1 + max(one.micro_batch for rank in ranks for one in rank.operations)
    lasts = {(rank.pp_rank, *_operation(one)): one.end - one.start for rank in ranks for one in rank.operations}
    orders = [
        [
            _operation(one)._replace(micro_batch=one.micro_batch + step * micro_batches)
            for step in range(steps)
            for one in sorted(rank.operations, key=lambda one: one.start)
        ]
        for rank in ranks
    ]

    def seconds(place: int, one: Operation) -> float:
        return lasts[(ranks[place].pp_rank, *one._replace(micro_batch=one.micro_batch % micro_batches))]

    return max(one.end for one in timed(orders, seconds))


def _operation(one: OperationTime) -> Operation:
    return Operation(Kind(one.kind), one.stage, one.micro_batch, one.slice)
