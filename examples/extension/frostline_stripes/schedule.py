"""A pipeline schedule: 1F1B with twice the warm-up (eager 1F1B, Zhuang et al. 2023), which hides slow links behind computing.

A schedule is data: the order of computations on one pipeline rank. It sends no tensor and changes no bit, since gradients are
summed in the tree's order whatever the order of computation. This requires one rule: on each stage the backwards of a leaf's
micro-batches follow each other in ascending order. `check_schedule` simulates a schedule and raises an error if it breaks this
rule or deadlocks. The schedule also gives the planner its bubble and memory figures.
"""

from collections.abc import Sequence

from frostline_contract.operations import Kind, Operation
from frostline_contract.schedule_figures import Figures
from frostline_contract.schedules import Schedule


def order(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
    """Up to 2 * (pp_degree - pp_rank) - 1 micro-batches in flight. Raises ValueError for more than one stage a rank."""
    if virtual_stages != 1:
        raise ValueError(f"schedule eager_1f1b runs one stage a rank, virtual_stages is {virtual_stages}; set it to 1")
    ahead = min(2 * (pp_degree - 1 - pp_rank), num_microbatches)
    operations = [Operation(Kind.FORWARD, pp_rank, number) for number in range(ahead)]
    for number in range(num_microbatches):
        if ahead + number < num_microbatches:
            operations.append(Operation(Kind.FORWARD, pp_rank, ahead + number))
        operations.append(Operation(Kind.BACKWARD, pp_rank, number))
    return operations


def in_flight(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> int:
    """Micro-batches whose activations the rank's stage holds at once."""
    return min(2 * (pp_degree - 1 - pp_rank) + 1, num_microbatches)


def bubble(
    pp_rank: int, forward: Sequence[float], backward: Sequence[float], virtual_stages: int, num_microbatches: int
) -> float:
    """Seconds that the rank waits: the pipeline is filled and drained once, as with 1F1B."""
    return sum(forward) + sum(backward) - forward[pp_rank] - backward[pp_rank]


eager_1f1b = Schedule(order, Figures(in_flight, bubble, from_the_end=True))
