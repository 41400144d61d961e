"""Local shards: a unit's weights as the parts that this member owns or keeps, in memory of their own (`placement.shard: use`).

A unit whose weights are gathered at each use has its state in local shards, by piece and parameter, also of tiles that its module
does not have. Its module's own tensors are then a copy, which is freed after each use: their storages have 0 bytes, and keep
names, shapes and types. A storage is filled again in place, so that what autograd has saved of the weights is valid again, with
the same bits.

`part_of` is the only way to a part's weights, and holds wherever they are.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from frostline_contract.pieces import Pieces
from frostline_trainer.families.base import still_names
from frostline_trainer.step.parts import Part, flat, parts_of, weights_of, write
from frostline_trainer.step.tile_state import tiles_beside
from frostline_trainer.tensor.state import cut_layers, has_memory, release

LocalShards = dict[tuple[int, str], torch.Tensor]
"""(piece, name of the weight) -> the piece's part of that weight, flat, in aligned memory of its own."""


def local_shards(unit: nn.Module) -> LocalShards | None:
    """The unit's local shards; None if its state is in its module."""
    return vars(unit).get("local_shards")  # getattr of what a module does not have takes longer than an update of its bias


def is_in_module(unit: nn.Module) -> bool:
    """Whether all of the unit's state is in its module: none in local shards, no tile beside it."""
    return local_shards(unit) is None and not tiles_beside(unit)


def part_of(unit: nn.Module, piece: int, part: Part, weight: torch.Tensor) -> list[torch.Tensor]:
    """A part's elements of a weight, by reference, as `Part.of` gives them. weight: the module's own, read if it is the state."""
    shards = local_shards(unit)
    if shards is not None:
        return [shards[piece, part.name]]
    beside = tiles_beside(unit).get((piece, part.name))
    return part.of(unit, weight.detach()) if beside is None else [beside]


def weight_tensors(unit: nn.Module) -> dict[str, torch.Tensor]:
    """The module's own tensors that are state or a copy of it, by name, in the module's order."""
    still = still_names(unit)
    return {name: tensor for name, tensor in unit.state_dict(keep_vars=True).items() if name not in still}


def shard_unit(unit: nn.Module, table: Pieces, pieces: Iterable[int]) -> None:
    """Move these pieces' weights into local shards, and free the module's own memory.

    A unit that has local shards already keeps them; parts that it lacks get memory without values.
    """
    weights, shards = weights_of(unit), LocalShards()
    for piece in pieces:
        for part in parts_of(table, piece, unit):
            if _has(unit, piece, part):
                weight = weights[part.name]
                views = part_of(unit, piece, part, weight if part.tile is not None else weight.contiguous())
                shards[piece, part.name] = flat(views).clone()
            else:
                shards[piece, part.name] = _room_for(unit, part)
    if local_shards(unit) is None:
        for tensor in weight_tensors(unit).values():  # views of a file's memory, or of each other, cannot be freed alone
            tensor.data = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    unit.local_shards = shards | (local_shards(unit) or {})
    tiles_beside(unit).clear()
    free_module(unit)


def _has(unit: nn.Module, piece: int, part: Part) -> bool:
    shards = local_shards(unit)
    return shards is None or (piece, part.name) in shards


def _room_for(unit: nn.Module, part: Part) -> torch.Tensor:
    like = weights_of(unit)[part.name]
    return torch.empty(part.high - part.low, dtype=like.dtype, device=like.device)


def make_room(unit: nn.Module, table: Pieces, piece: int) -> None:
    """Give a piece local shards to be loaded into, if the unit's state is in local shards; they hold no values yet."""
    shards = local_shards(unit)
    for part in parts_of(table, piece, unit) if shards is not None else ():
        if (piece, part.name) not in shards:
            shards[piece, part.name] = _room_for(unit, part)


def drop_shards(unit: nn.Module, needed: Iterable[int]) -> None:
    """Drop the local shards, and the tiles beside the module, of all other pieces."""
    kept = set(needed)
    for held in (local_shards(unit) or {}, tiles_beside(unit)):
        for key in [key for key in held if key[0] not in kept]:
            del held[key]


def join_unit(unit: nn.Module, table: Pieces) -> None:
    """Move the state back into the module; parts of other pieces get no values.

    Tiles that have pieces of their own come to lie beside the module, which has no memory for any (`tile_state.keep_tiles`).
    """
    shards = local_shards(unit)
    if shards is None:
        return
    by_tile = cut_layers(unit) if table.state_tiles > 1 else {}
    fill_module(unit)
    for name in by_tile:
        release(unit.get_parameter(name))
    weights = weights_of(unit)
    forget_shards(unit)
    for piece in sorted({piece for piece, _ in shards}):
        for part in parts_of(table, piece, unit):
            if part.tile is None:
                write(part_of(unit, piece, part, weights[part.name]), shards[piece, part.name])
            else:
                tiles_beside(unit)[piece, part.name] = shards[piece, part.name]


def forget_shards(unit: nn.Module) -> None:
    """Let the module's tensors be the state from now on; the caller loads them."""
    unit.local_shards = None
    tiles_beside(unit).clear()


# ---- the module's copy


def fill_module(unit: nn.Module) -> dict[str, torch.Tensor]:
    """Give the module's tensors memory again, without values. Returns them by name; writing to these does not mark what autograd
    has saved as changed."""
    found = {}
    for name, tensor in weight_tensors(unit).items():
        storage, needed = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
        if storage.nbytes() != needed:
            storage.resize_(needed)
        found[name] = tensor.data
    return found


def free_module(unit: nn.Module) -> None:
    """Free the memory of the module's tensors."""
    for tensor in weight_tensors(unit).values():
        tensor.untyped_storage().resize_(0)


def place_shards(unit: nn.Module, device: torch.device) -> None:
    """Move local shards to a device, and the module's tensors without their values."""
    shards = local_shards(unit)
    assert shards is not None
    fill_module(unit)
    unit.to(device)
    free_module(unit)
    for key, shard in shards.items():
        shards[key] = shard.to(device)


def weight_bytes(unit: nn.Module, pieces: Iterable[int] | None = None) -> int:
    """Bytes of the unit's parameters and buffers, between two uses.

    pieces: count only these of local shards; None: all.
    """
    shards = local_shards(unit)
    tensors: Mapping[str, torch.Tensor] = {**dict(unit.named_parameters()), **dict(unit.named_buffers())}
    wanted = None if pieces is None else set(pieces)
    if shards is None:
        absent = {name for name in cut_layers(unit) if not has_memory(tensors[name])}
        beside = [tile for (piece, _), tile in tiles_beside(unit).items() if wanted is None or piece in wanted]
        return sum(tensor.nbytes for name, tensor in tensors.items() if name not in absent) + sum(tile.nbytes for tile in beside)
    copies = weight_tensors(unit).keys()
    beside = sum(tensor.nbytes for name, tensor in tensors.items() if name not in copies)
    return beside + sum(shard.nbytes for (piece, _), shard in shards.items() if wanted is None or piece in wanted)
