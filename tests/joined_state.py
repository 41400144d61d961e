"""Whole states of units, put together from their pieces on all members."""

from collections.abc import Mapping

import torch
from torch import nn

from frostline_contract.pieces import Pieces
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.parts import parts_of, weights_of
from frostline_trainer.step.unit_state import UnitState, export_piece
from frostline_trainer.tensor.state import cut_layers, tile_size
from frostline_trainer.transport.collectives import broadcast_bytes


def joined(table: Pieces, unit: int, module: nn.Module, pieces: Mapping[int, UnitState]) -> UnitState:
    """Return a unit's state in the shapes of its tensors, in host memory. pieces: the state of each of its pieces, likewise."""
    if table.per_unit == 1:
        return dict(pieces[unit])
    whole, weights, tiles = UnitState(), weights_of(module), dict[str, dict[int, torch.Tensor]]()
    for piece in table.of_unit(unit):
        for part in parts_of(table, piece, module):
            for key in [key for key in pieces[piece] if key.partition("/")[2] == part.name]:
                given = pieces[piece][key]
                if given.ndim == 0:
                    assert torch.equal(whole.setdefault(key, given), given), f"{key}: {whole[key]} and {given}"
                    continue
                if part.tile is not None:
                    size, of_key = tile_size(module, part.name, part.tile), tiles.setdefault(key, {})
                    of_key.setdefault(part.tile, torch.zeros(size, dtype=given.dtype))[part.low : part.high] = given
                    continue
                tensor = whole.setdefault(key, torch.zeros(weights[part.name].shape, dtype=given.dtype))
                tensor.view(-1)[part.low : part.high] = given
    for key, found in tiles.items():
        name = key.partition("/")[2]
        layer, parameter = cut_layers(module)[name], module.get_parameter(name).cpu()
        like = parameter.detach() if found[0].dtype == parameter.dtype else parameter.detach().to(found[0].dtype)
        whole[key] = layer.cut.put_together(like, layer.kept.box, table.grid.all, found)
    return whole


def own_states(generation: Generation) -> dict[int, UnitState]:
    """Return the states of the units of this member's stages, by unit. Collective where pieces have different owners: these send
    them."""
    context, plan, table = generation.context, generation.plan, generation.context.pieces
    units, own = context.cut.units, plan.pieces_of(generation.worker_id)
    exported = {piece: export_piece(table, piece, units[table.unit_of(piece)], context.moments) for piece in own}
    states = {piece: UnitState((key, tensor.cpu()) for key, tensor in state.items()) for piece, state in exported.items()}
    for piece in range(table.count) if plan.placement.divides else ():
        payload = pack(states[piece]).numpy().tobytes() if piece in states else b""
        root = plan.placement.global_ranks[plan.owners(piece)[0]]
        states[piece] = unpack(torch.frombuffer(bytearray(broadcast_bytes(generation.world, payload, root)), dtype=torch.uint8))
    return {unit: joined(table, unit, units[unit], states) for unit in plan.placement.units_of(generation.worker_id)}
