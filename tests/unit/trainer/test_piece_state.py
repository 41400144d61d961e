"""A piece's state: the pieces of a unit hold each of its bits once and arrive one by one; a single piece is the whole unit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_contract.pieces import RANGE_ALIGNMENT, Pieces
from frostline_contract.plan import StateTag
from frostline_trainer.generations.moves import release_unneeded
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.parts import parts_of
from frostline_trainer.step.unit_state import (
    digest_of_pieces,
    export_piece,
    export_unit,
    import_piece,
    release_unit,
    run_digest,
    unit_digest,
)
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout
from tests.joined_state import joined
from tests.unit.trainer.test_engine_keeping import plan_of

UNIT = 2
SECTIONS = [OptimizerSection(), OptimizerSection(name="sgd")]


def unit(seed: int = 0) -> nn.Module:
    """Return a unit with weights longer and shorter than the alignment, and a persistent buffer of integers."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(30, 20), nn.LayerNorm(20), nn.Linear(20, 7))
    module.register_buffer("positions", torch.arange(100) + seed)
    return module


WHOLE = Pieces(4)


def trained(section: OptimizerSection, seed: int = 0, table: Pieces = WHOLE) -> tuple[nn.Module, Moments]:
    module, moments = unit(seed), Moments()
    step(module, moments, section, seed + 1, table)
    return module, moments


def step(module: nn.Module, moments: Moments, section: OptimizerSection, seed: int, table: Pieces = WHOLE) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    UnitOptimizer(section, [(UNIT, module)], moments, table).step(0.1)


def digest(module: nn.Module, moments: Moments, table: Pieces = WHOLE) -> list[bytes]:
    return [unit_digest(export_piece(table, piece, module, moments)) for piece in table.of_unit(UNIT)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
@pytest.mark.parametrize("ranges", [2, 5, 50])
def test_an_update_of_each_piece_by_itself_has_the_bits_of_the_whole(
    ranges: int, section: OptimizerSection, dtype: torch.dtype
) -> None:
    """This also holds if each piece is updated by an optimizer of its own, as its owner does."""
    table, (plain, parted, alone) = Pieces(4, ranges), (unit().to(dtype) for _ in range(3))
    moments = (Moments(), Moments(), Moments())
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for parameters in zip(plain.parameters(), parted.parameters(), alone.parameters(), strict=True):
            gradient = torch.randn(parameters[0].shape, generator=generator).to(dtype)
            for parameter in parameters:
                parameter.grad = gradient
        UnitOptimizer(section, [(UNIT, plain)], moments[0]).step(0.1)
        UnitOptimizer(section, [(UNIT, parted)], moments[1], table).step(0.1)
        for piece in table.of_unit(UNIT):
            UnitOptimizer(section, [(UNIT, alone)], moments[2], table, [piece]).step(0.1)
    for module, held in ((parted, moments[1]), (alone, moments[2])):
        pieces = {piece: export_piece(table, piece, module, held) for piece in table.of_unit(UNIT)}
        assert unit_digest(joined(table, UNIT, module, pieces)) == unit_digest(export_unit(UNIT, plain, moments[0]))


@given(st.integers(1, 30))
@settings(deadline=None, max_examples=30)
def test_the_pieces_of_a_unit_have_each_element_once(ranges: int) -> None:
    module, table = unit(), Pieces(4, ranges)
    parts = [part for piece in table.of_unit(UNIT) for part in parts_of(table, piece, module)]
    for name, tensor in module.state_dict().items():
        elements = [element for part in parts if part.name == name for element in range(part.low, part.high)]
        assert elements == list(range(tensor.numel()))
    assert all(part.low % RANGE_ALIGNMENT == 0 for part in parts), "kernels see whole vectors where they saw them before"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
@pytest.mark.parametrize("ranges", [1, 2, 3, 50])
def test_pieces_bring_the_whole_state_in_any_order(ranges: int, section: OptimizerSection) -> None:
    """This also holds for a worker that has other moments, or more of them; the next step has the same bits."""
    table = Pieces(4, ranges)
    (source, moments), (target, arrived) = trained(section, table=table), trained(section, seed=5, table=table)
    next(state for (piece, _), state in arrived.items() if piece in table.of_unit(UNIT))["stale"] = torch.zeros(20)
    arrived[0, "x"] = {}
    for piece in reversed(table.of_unit(UNIT)):
        import_piece(table, piece, target, arrived, unpack(pack(export_piece(table, piece, source, moments))))
    assert digest(target, arrived, table) == digest(source, moments, table)
    assert (0, "x") in arrived
    for module, held in ((source, moments), (target, arrived)):
        step(module, held, section, 9, table)
    assert digest(target, arrived, table) == digest(source, moments, table)


@pytest.mark.parametrize("ranges", [2, 3])
def test_a_piece_leaves_the_others_as_they_are(ranges: int) -> None:
    table = Pieces(4, ranges)
    (source, moments), (target, arrived) = trained(SECTIONS[0], table=table), trained(SECTIONS[0], seed=5, table=table)
    first, *others = table.of_unit(UNIT)
    before = [unit_digest(export_piece(table, piece, target, arrived)) for piece in others]
    import_piece(table, first, target, arrived, export_piece(table, first, source, moments))
    assert [unit_digest(export_piece(table, piece, target, arrived)) for piece in others] == before
    assert unit_digest(export_piece(table, first, target, arrived)) == unit_digest(export_piece(table, first, source, moments))


def test_a_piece_without_moments_takes_none() -> None:
    """Such state is from before the first update: the target's moments are removed."""
    table, source = Pieces(4, 2), unit()
    target, arrived = trained(SECTIONS[0], seed=5, table=table)
    for piece in table.of_unit(UNIT):
        import_piece(table, piece, target, arrived, export_piece(table, piece, source, {}))
    assert digest(target, arrived, table) == digest(source, {}, table)


def test_a_piece_that_does_not_fit_is_refused_and_nothing_is_changed() -> None:
    table = Pieces(4, 2)
    module, moments = trained(SECTIONS[0], table=table)
    piece = table.of_unit(UNIT)[0]
    state, before = export_piece(table, piece, module, moments), digest(module, moments, table)
    name = next(key for key in state if key.startswith("weight/"))
    for wrong in ({key: tensor for key, tensor in state.items() if key != name}, state | {name: torch.zeros(3)},
                  state | {name: state[name].double()}, state | {"weight/extra": torch.zeros(1)}):  # fmt: skip
        with pytest.raises(ValueError, match=f"piece {piece} of unit {UNIT}: state does not fit the model"):
            import_piece(table, piece, module, moments, wrong)
    assert digest(module, moments, table) == before


def test_with_one_piece_a_unit_state_and_digest_are_the_units() -> None:
    module, moments = trained(SECTIONS[0])
    whole, piece = export_unit(UNIT, module, moments), export_piece(Pieces(4), UNIT, module, moments)
    assert unit_digest(piece) == unit_digest(whole) and piece.keys() == whole.keys()
    digests = [bytes([number]) * 32 for number in range(4)]
    assert digest_of_pieces(Pieces(4), digests) == run_digest(digests)
    assert digest_of_pieces(Pieces(2, 2), digests) not in (run_digest(digests), digest_of_pieces(Pieces(2, 2), digests[::-1]))


@pytest.mark.parametrize("ranges", [1, 3])
def test_a_unit_that_nobody_needs_here_takes_no_memory_until_its_state_comes_again(ranges: int) -> None:
    table = Pieces(4, ranges)
    (source, moments), (target, arrived) = trained(SECTIONS[0], table=table), trained(SECTIONS[0], seed=5, table=table)
    names = {name: (tensor.shape, tensor.dtype) for name, tensor in target.state_dict().items()}
    parameters = list(target.parameters())
    release_unit(target)
    assert held_bytes(target) < 100 and all(parameter.grad is None for parameter in target.parameters())
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in target.state_dict().items()} == names
    for piece in table.of_unit(UNIT):
        import_piece(table, piece, target, arrived, unpack(pack(export_piece(table, piece, source, moments))))
    assert digest(target, arrived, table) == digest(source, moments, table)
    assert all(ours is theirs for ours, theirs in zip(parameters, target.parameters(), strict=True)), "ties and names stay"
    assert all(is_aligned(tensor) for tensor in target.state_dict().values())
    for module, held in ((source, moments), (target, arrived)):
        step(module, held, SECTIONS[0], 9, table)
    assert digest(target, arrived, table) == digest(source, moments, table)


def test_a_member_has_memory_for_what_its_plan_needs_here_alone() -> None:
    """In the past every worker kept the whole model in host memory."""
    context = build_case(Case("gpt2_tied", freezing=()))
    made = plan_of(Layout(4, 1), (0, 0, 1, 1))
    whole = sum(map(held_bytes, context.cut.units))
    context.holdings.settle(range(context.pieces.count), StateTag(lineage=0, step=0, generation=made.generation))
    release_unneeded(context, made, "w1")
    needed = made.pieces.units_of(made.needs("w1"))
    assert 0 < len(needed) < context.num_units
    assert sum(map(held_bytes, context.cut.units)) - sum(held_bytes(context.cut.units[unit]) for unit in needed) < 1000 < whole


def held_bytes(module: nn.Module) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in module.state_dict().values())
