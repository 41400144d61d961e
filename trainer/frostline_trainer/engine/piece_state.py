"""A piece's state: the part of its unit's state (engine/unit_state.py) that lies in the piece's range of the unit's flat layout.

The layout has the unit's weights (parameters and persistent buffers) in the module's order, each beginning at a multiple of
RANGE_ALIGNMENT elements. A moment lies as its parameter does; a parameter's step count goes with every piece that has a part of
the parameter. With one piece a unit a piece's state is the unit's, under the same names and in the same shapes; else each tensor
is a flat part of the unit's.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from frostline_contract.pieces import RANGE_ALIGNMENT, Pieces
from frostline_trainer.engine.optimizer import Moments
from frostline_trainer.engine.unit_state import (
    STEP,
    WEIGHT,
    UnitState,
    check_weights,
    export_unit,
    home_of,
    import_unit,
    run_digest,
)


@dataclass(frozen=True)
class Part:
    """Elements [low, high) of a weight, counted in its flat order. name: the weight's in its unit."""

    name: str
    low: int
    high: int


def parts_of(table: Pieces, piece: int, unit: nn.Module) -> list[Part]:
    """What a piece has of its unit's weights, in the layout's order; empty for the range of a short layout that has none."""
    sizes = {name: tensor.numel() for name, tensor in unit.state_dict().items()}
    starts, length = dict[str, int](), 0
    for name, size in sizes.items():
        starts[name] = length
        length += size + -size % RANGE_ALIGNMENT
    low, high = table.bounds(table.piece(piece).range, length)
    inside = [Part(name, max(low - starts[name], 0), min(high - starts[name], size)) for name, size in sizes.items()]
    return [part for part in inside if part.low < part.high]


def export_piece(table: Pieces, piece: int, unit: nn.Module, moments: Moments) -> UnitState:
    """The piece's state by reference: nothing is copied."""
    index = table.unit_of(piece)
    if table.per_unit == 1:
        return export_unit(index, unit, moments)
    weights, state = unit.state_dict(), UnitState()
    for part in parts_of(table, piece, unit):
        state[WEIGHT + part.name] = weights[part.name].detach().view(-1)[part.low : part.high]
        for moment, tensor in moments.get((index, part.name), {}).items():
            if isinstance(tensor, torch.Tensor):
                state[f"{moment}/{part.name}"] = tensor if moment == STEP else tensor.view(-1)[part.low : part.high]
    return state


@torch.no_grad()
def import_piece(table: Pieces, piece: int, unit: nn.Module, moments: Moments, state: Mapping[str, torch.Tensor]) -> None:
    """Put a piece's state in place; what the unit's other pieces have stays as it is.

    Raises ValueError where names, shapes or types differ: a weight that is cast on its way has other bits.
    """
    index = table.unit_of(piece)
    if table.per_unit == 1:
        import_unit(index, unit, moments, state)
        return
    parts, weights = parts_of(table, piece, unit), unit.state_dict()
    own = {part.name: weights[part.name].view(-1)[part.low : part.high] for part in parts}
    given = check_weights(f"piece {piece} of unit {index}", own, state)
    for name, tensor in given.items():
        own[name].copy_(tensor)
    parameters = dict(unit.named_parameters())
    for part in parts:
        if part.name in parameters:
            _import_moments(index, part, parameters[part.name], moments, state)


def _import_moments(index: int, part: Part, parameter: nn.Parameter, moments: Moments, state: Mapping[str, torch.Tensor]) -> None:
    """Write the moments of a part of a parameter; one that the state does not have, the whole parameter has not."""
    given = {key.partition("/")[0]: tensor for key, tensor in state.items() if key.partition("/")[2] == part.name}
    del given[WEIGHT.rstrip("/")]
    own = {moment: tensor for moment, tensor in moments.pop((index, part.name), {}).items() if moment in given}
    for moment, tensor in given.items():
        if moment == STEP:
            own[moment] = tensor.to(home_of(moment, parameter.device), copy=True)
            continue
        whole = own.setdefault(moment, torch.zeros_like(parameter, requires_grad=False))
        whole.view(-1)[part.low : part.high].copy_(tensor)
    if own:
        moments[index, part.name] = own


def digest_of_pieces(table: Pieces, digests: Sequence[bytes]) -> str:
    """The run's digest (docs/protocols.md 1.10). digests: SHA-256 of every piece, in order.

    A unit's digest is that of its piece, or over those of its pieces where it has several.
    """
    units = [[digests[piece] for piece in table.of_unit(unit)] for unit in range(table.num_units)]
    return run_digest([one[0] if len(one) == 1 else hashlib.sha256(b"".join(one)).digest() for one in units])
