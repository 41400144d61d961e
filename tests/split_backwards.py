"""Schedules whose backwards are split, for tests."""

from frostline_contract.operations import Kind, Operation
from frostline_contract.schedules import BUILT_IN

VIRTUAL_STAGES = {"1f1b": (1,), "zb_h1": (1,), "zb_h2": (1,), "zb_v": (2,), "v_half": (2,), "v_min": (2,)}
"""Built-in schedules that do not take every number of stages a rank."""


def takes(name: str, pp_degree: int, virtual_stages: int) -> bool:
    """Whether a schedule can run this number of stages on each of this number of ranks."""
    return (virtual_stages == 1 or pp_degree > 1) and virtual_stages in VIRTUAL_STAGES.get(name, (virtual_stages,))


def split_1f1b(
    pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, held: int, slices: int = 1
) -> list[Operation]:
    """Return 1F1B with gradients of inputs at once and those of weights later. held: the most of the latter that wait."""
    operations: list[Operation] = []
    late: list[Operation] = []
    for one in BUILT_IN["1f1b"].operations(pp_rank, pp_degree, virtual_stages, num_microbatches, slices):
        if one.kind is Kind.FORWARD:
            operations.append(one)
            continue
        operations.append(one._replace(kind=Kind.INPUT_GRADIENT))
        late.append(one._replace(kind=Kind.WEIGHT_GRADIENT))
        if len(late) > held:
            operations.append(late.pop(0))
    return operations + late
