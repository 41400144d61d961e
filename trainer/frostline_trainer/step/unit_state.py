"""The state of a unit or of one of its pieces as a flat dict of tensors, in which it is moved, saved and digested.

Keys: "weight/<name>" for parameters and persistent buffers, "<moment>/<parameter name>" for optimizer state. Weights that never
learn (the model below adapters) are not state: every worker reads them from the model's source, and the digest of the initial
weights has shown that they are equal on all workers.

A piece has its parts of the unit's weights (`step.parts`) and their moments; a parameter's step count is in every piece with a
part of the parameter. With one piece a unit, the piece's state is the unit's, in the same shapes; otherwise each tensor is flat,
and a tile whose elements are not neighbours in its weight is a copy.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from frostline_contract.pieces import Pieces
from frostline_trainer.step.local_shards import forget_shards, local_shards, make_room, part_of, place_shards, weight_tensors
from frostline_trainer.step.parts import Moments, flat, moments_of, parts_of, weights_of, write
from frostline_trainer.step.still_tiles import hold_all_still_tiles, still_weights
from frostline_trainer.step.tile_state import hold_all_tiles, make_room_for_tile, tiles_beside
from frostline_trainer.tensor.state import cut_layers, has_memory

UnitState = dict[str, torch.Tensor]
WEIGHT = "weight/"
STEP = "step"
"""Name of the moment that counts a parameter's updates: one number a parameter."""
HOST = torch.device("cpu")


def still_weights_of(unit: nn.Module) -> UnitState:
    """The whole weights that never learn, with keys like those of a state."""
    return {WEIGHT + name: tensor for name, tensor in still_weights(unit).items()}


def export_unit(index: int, unit: nn.Module, moments: Moments) -> UnitState:
    """The state of a unit that is one piece, by reference: nothing is copied."""
    state = {WEIGHT + name: tensor for name, tensor in weights_of(unit).items()}
    for name, _ in unit.named_parameters():
        for moment, tensor in moments.get((index, name), {}).items():
            if isinstance(tensor, torch.Tensor):
                state[f"{moment}/{name}"] = tensor
    return state


def import_unit(index: int, unit: nn.Module, moments: Moments, state: Mapping[str, torch.Tensor]) -> None:
    """Load the state of a unit that is one piece: copy weights into the unit, and take moments as new tensors.

    Raises ValueError if names, shapes or types differ; no weight is cast, since a cast changes bits.
    """
    _take_memory(unit)
    unit.load_state_dict(_check_weights(f"unit {index}", weights_of(unit), state), strict=False)
    device = next(unit.parameters()).device
    for name, _ in unit.named_parameters():
        moments.pop((index, name), None)
    for key, tensor in state.items():
        moment, _, name = key.partition("/")
        if not key.startswith(WEIGHT):
            moments.setdefault((index, name), {})[moment] = tensor.to(_home_of(moment, device), copy=True)


def reset_unit(unit: nn.Module, fresh: nn.Module) -> None:
    """Copy all weights, also those that never learn, from a newly initialized unit. Moments are not changed."""
    take_whole(unit)
    unit.load_state_dict(fresh.state_dict())


def take_whole(unit: nn.Module) -> None:
    """Let the module be all of the unit's state, with memory for it; the caller loads the values."""
    forget_shards(unit)
    hold_all_tiles(unit)
    hold_all_still_tiles(unit)
    _take_memory(unit)


def place_unit(pieces: Iterable[int], unit: nn.Module, moments: Moments, device: torch.device) -> None:
    """Move weights and moments of a unit to `device`. A unit that is computed is on the run's device, any other in host memory.

    pieces: the unit's.
    """
    if all(tensor.device == device for tensor in unit.state_dict().values()):
        return
    if local_shards(unit) is None:
        for tensor in weight_tensors(unit).values():
            if not has_memory(tensor):  # a copy to another device would take memory
                tensor.data = torch.empty((), dtype=tensor.dtype, device=device).expand(tensor.shape)
        unit.to(device)
        beside = tiles_beside(unit)
        beside.update({key: tile.to(device) for key, tile in beside.items()})
    else:
        place_shards(unit, device)
    for state in moments_of(moments, pieces):
        for moment, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                state[moment] = tensor.to(_home_of(moment, device))


def release_unit(unit: nn.Module) -> None:
    """Free the memory of a unit's weights. Names, shapes and types stay; the next state that is loaded brings the values.

    Weights that never learn are kept, since they are not part of a state.
    """
    forget_shards(unit)
    for tensor in weight_tensors(unit).values():
        tensor.grad = None
        tensor.data = torch.empty((), dtype=tensor.dtype).expand(tensor.shape)


def _take_memory(unit: nn.Module, names: Collection[str] | None = None) -> None:
    """Allocate uninitialized host memory for the weights of a released unit. names: of these alone; None: of all."""
    for name, tensor in weight_tensors(unit).items():
        if (names is None or name in names) and not has_memory(tensor):
            tensor.data = torch.empty(tensor.shape, dtype=tensor.dtype)


@contextmanager
def lent_to(device: torch.device, pieces: Iterable[int], unit: nn.Module, moments: Moments) -> Iterator[None]:
    """A context with a unit on `device`; afterwards the unit is where it was. pieces: the unit's."""
    home = next(unit.parameters()).device
    place_unit(pieces, unit, moments, device)
    try:
        yield
    finally:
        place_unit(pieces, unit, moments, home)


def _home_of(moment: str, device: torch.device) -> torch.device:
    """The device of a moment: the step count stays in host memory, as in torch's optimizers."""
    return HOST if moment == STEP else device


def _check_weights(whose: str, own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in a state, by name. Raises ValueError if names, shapes or types are not those of `own`."""
    given = {key.removeprefix(WEIGHT): tensor for key, tensor in state.items() if key.startswith(WEIGHT)}
    if difference := _difference(own, given):
        raise ValueError(f"{whose}: state does not fit the model: {difference}")
    return given


def _difference(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> str:
    """How names, shapes or types of two sets of weights differ, in words; empty if they do not."""
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or unknown:
        return f"{len(missing)} missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}"
    for name, tensor in own.items():
        found = given[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            return f"{name} is {tuple(tensor.shape)} {tensor.dtype}; the state has {tuple(found.shape)} {found.dtype}"
    return ""


def unit_digest(state: UnitState, skip: frozenset[str] = frozenset()) -> bytes:
    """SHA-256 over name and bytes of weights and moments, by name. `skip`: names that count elsewhere (a tied matrix)."""
    digest = hashlib.sha256()
    for key in sorted(state):
        if key.partition("/")[2] in skip:
            continue
        tensor = state[key].detach().cpu().contiguous()
        digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy())
    return digest.digest()


def run_digest(unit_digests: list[bytes]) -> str:
    """The run's digest: SHA-256 of the units' SHA-256s, in unit order (docs/protocols.md 1.10)."""
    return hashlib.sha256(b"".join(unit_digests)).hexdigest()


# ---- pieces


def export_piece(table: Pieces, piece: int, unit: nn.Module, moments: Moments) -> UnitState:
    """The piece's state, by reference where a part's elements lie one behind the other."""
    index = table.unit_of(piece)
    if table.per_unit == 1:
        return export_unit(index, unit, moments)
    weights, state = weights_of(unit), UnitState()
    for part in parts_of(table, piece, unit):
        weight = weights[part.name] if part.tile is not None else weights[part.name].contiguous()
        state[WEIGHT + part.name] = flat(part_of(unit, piece, part, weight))
        state |= {f"{moment}/{part.name}": tensor for moment, tensor in moments.get((piece, part.name), {}).items()}
    return state


@torch.no_grad()
def import_piece(table: Pieces, piece: int, unit: nn.Module, moments: Moments, state: Mapping[str, torch.Tensor]) -> None:
    """Load a piece's state; the unit's other pieces are not changed.

    Raises ValueError if names, shapes or types differ; no weight is cast, since a cast changes bits.
    """
    index = table.unit_of(piece)
    if table.per_unit == 1:
        import_unit(index, unit, moments, state)
        return
    parts, weights = parts_of(table, piece, unit), weights_of(unit)
    if local_shards(unit) is not None:
        make_room(unit, table, piece)
    elif table.tile_of(piece) is not None:
        make_room_for_tile(unit, table, piece)
    else:
        _take_memory(unit, weights.keys() - cut_layers(unit).keys() if table.state_tiles > 1 else None)
        weights = weights_of(unit)
    own = {part.name: part_of(unit, piece, part, weights[part.name]) for part in parts}
    sizes = {part.name: part.high - part.low for part in parts}
    like = {name: torch.empty(size, dtype=weights[name].dtype, device="meta") for name, size in sizes.items()}
    given = _check_weights(f"piece {piece} of unit {index}", like, state)
    for name, tensor in given.items():
        write(own[name], tensor)
    device = next(unit.parameters()).device
    for part in parts:
        moments.pop((piece, part.name), None)
    for key, tensor in state.items():
        moment, _, name = key.partition("/")
        if not key.startswith(WEIGHT):
            moments.setdefault((piece, name), {})[moment] = tensor.to(_home_of(moment, device), copy=True)


def digest_of_pieces(table: Pieces, digests: Sequence[bytes]) -> str:
    """The run's digest (docs/protocols.md 1.10). digests: SHA-256 of every piece, in order.

    A unit's digest is that of its piece, or SHA-256 over those of its pieces if it has several.
    """
    units = [[digests[piece] for piece in table.of_unit(unit)] for unit in range(table.num_units)]
    return run_digest([one[0] if len(one) == 1 else hashlib.sha256(b"".join(one)).digest() for one in units])
