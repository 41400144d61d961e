"""Groups the units of a model by kind: a measurement or probe of one unit holds for all of its kind."""

from collections.abc import Sequence

from torch import nn


def first_of_its_kind(units: Sequence[nn.Module]) -> list[int]:
    """For each unit the index of the first one of the same type, place (first, last or between) and parameter shapes."""
    seen: dict[tuple[object, ...], int] = {}
    last = len(units) - 1
    return [
        seen.setdefault((type(unit), index == 0, index == last, tuple(p.shape for p in unit.parameters())), index)
        for index, unit in enumerate(units)
    ]
