"""Local shards: the state of a unit that is gathered at each use, and the module's memory, which is freed and filled in place."""

import pytest
import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_contract.pieces import Pieces
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.step.local_shards import (
    drop_shards,
    fill_module,
    free_module,
    join_unit,
    local_shards,
    shard_unit,
    weight_bytes,
    weight_tensors,
)
from frostline_trainer.step.optimizer import Moments
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.unit_state import export_piece, import_piece, place_unit, release_unit, reset_unit, unit_digest
from tests.unit.trainer.test_piece_state import UNIT, digest, step, trained, unit

TABLE = Pieces(4, 5)
PIECES = TABLE.of_unit(UNIT)


def held_bytes(module: nn.Module) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in weight_tensors(module).values())


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("section", [OptimizerSection(), OptimizerSection(name="sgd")], ids=lambda one: one.name)
def test_local_shards_are_the_state_and_are_updated_to_the_same_bits(section: OptimizerSection) -> None:
    (plain, moments), (module, own) = (trained(section, table=TABLE) for _ in range(2))
    whole = held_bytes(module)
    shard_unit(module, TABLE, PIECES)
    assert held_bytes(module) == 0 and weight_bytes(module) == whole
    assert digest(module, own, TABLE) == digest(plain, moments, TABLE)
    for one, state in ((plain, moments), (module, own)):
        step(one, state, section, 7, TABLE)
    assert held_bytes(module) == 0 and digest(module, own, TABLE) == digest(plain, moments, TABLE)
    join_unit(module, TABLE)
    assert local_shards(module) is None and held_bytes(module) == whole
    assert digest(module, own, TABLE) == digest(plain, moments, TABLE)
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in module.state_dict().items())


def test_a_member_holds_the_pieces_that_it_needs_and_no_others() -> None:
    module = unit()
    parts = {piece: weight_bytes_of(module, piece) for piece in PIECES}
    shard_unit(module, TABLE, PIECES[:3])
    assert weight_bytes(module) == sum(parts[piece] for piece in PIECES[:3])
    assert weight_bytes(module, PIECES[1:2]) == parts[PIECES[1]]
    drop_shards(module, PIECES[1:])
    assert weight_bytes(module) == parts[PIECES[1]] + parts[PIECES[2]]
    shard_unit(module, TABLE, PIECES[:2])
    assert weight_bytes(module) == sum(parts[piece] for piece in PIECES[:3]), "a part that is to come has its memory"


def weight_bytes_of(module: nn.Module, piece: int) -> int:
    return sum(tensor.nbytes for tensor in export_piece(TABLE, piece, module, {}).values())


def test_a_piece_arrives_in_local_shards_and_leaves_the_others() -> None:
    (source, moments), (target, arrived) = trained(OptimizerSection(), 1, TABLE), trained(OptimizerSection(), 2, TABLE)
    shard_unit(target, TABLE, PIECES[:2])
    before = unit_digest(export_piece(TABLE, PIECES[0], target, arrived))
    import_piece(TABLE, PIECES[4], target, arrived, unpack(pack(export_piece(TABLE, PIECES[4], source, moments))))
    for piece, wanted in ((PIECES[0], before), (PIECES[4], unit_digest(export_piece(TABLE, PIECES[4], source, moments)))):
        assert unit_digest(export_piece(TABLE, piece, target, arrived)) == wanted
    assert held_bytes(target) == 0
    assert all(is_aligned(shard) for shard in (local_shards(target) or {}).values())


def test_what_autograd_has_saved_is_valid_again_when_the_module_is_filled() -> None:
    """Also a view of a weight, and a weight whose unit was freed and filled between forward and backward."""
    plain, module, entry = unit(), unit(), torch.randn(5, 30)
    wanted = values(module)
    shard_unit(module, TABLE, PIECES)

    def fill() -> None:
        for name, tensor in fill_module(module).items():
            assert is_aligned(tensor)
            tensor.copy_(wanted[name])

    fill()
    output = module(entry)
    free_module(module)
    assert held_bytes(module) == 0
    fill()
    output.square().sum().backward()
    plain(entry).square().sum().backward()
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(module.parameters(), plain.parameters(), strict=True))


def test_views_of_other_memory_are_left_alone() -> None:
    """Weights may be views of a file that is mapped into memory; its memory is not the module's to free."""
    module, file = unit(), torch.arange(2000, dtype=torch.float32)
    module[0].weight.data = file[64:664].view(20, 30)
    shard_unit(module, TABLE, PIECES)
    assert held_bytes(module) == 0 and torch.equal(file, torch.arange(2000, dtype=torch.float32))


@pytest.mark.parametrize("forget", [release_unit, lambda module: reset_unit(module, unit(3))], ids=["released", "reset"])
def test_a_unit_that_is_released_or_reset_has_its_state_in_its_module_again(forget) -> None:
    module, (source, moments) = unit(), trained(OptimizerSection(), 1, TABLE)
    shard_unit(module, TABLE, PIECES)
    forget(module)
    assert local_shards(module) is None
    arrived = Moments()
    for piece in PIECES:
        import_piece(TABLE, piece, module, arrived, export_piece(TABLE, piece, source, moments))
    assert digest(module, arrived, TABLE) == digest(source, moments, TABLE)


def test_local_shards_move_to_a_device_and_the_module_takes_no_memory_there() -> None:
    module, (_, moments) = unit(), trained(OptimizerSection(), 1, TABLE)
    shard_unit(module, TABLE, PIECES)
    place_unit(PIECES, module, moments, torch.device("meta"))
    assert {shard.device.type for shard in (local_shards(module) or {}).values()} == {"meta"}
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}
