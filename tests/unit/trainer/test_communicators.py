"""NCCL's communicators are bounded in number and thread blocks, and planned for."""

from dataclasses import replace

import pytest

from frostline_contract.communicators import CTA_BYTES, GENERATIONS, GROUP_CTAS, PAIR_CTAS, channels_of, most_communicator_bytes
from frostline_contract.mesh import ALWAYS_NAMED
from frostline_contract.shape import ParallelShape
from frostline_trainer.generations.formation import axes_of
from frostline_trainer.transport import nccl
from tests.exact_cases import NEVER, Case
from tests.hand_made_plans import Layout
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network


@pytest.mark.parametrize("size", range(1, 9))
def test_a_member_has_the_channels_that_are_planned_for(size: int) -> None:
    assert {len(nccl.ring_channels(index, size)) for index in range(size)} == {channels_of(size)}


@pytest.mark.parametrize("layout", [Layout(2, 1), Layout(3, 1), Layout(2, 2), Layout(1, 3)], ids=str)
def test_what_a_generation_makes_is_within_the_plan(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over simulated NCCL, by the trainer's own groups: thread blocks by member, against the planner's reserve."""
    network, blocks = Network(), dict[int, int]()
    make = network.make

    def noted(store, name, index, size, max_ctas=None):
        assert max_ctas is not None, f"{name} has no bound"
        made = make(store, name, index, size, max_ctas)
        member = id(network.current)
        blocks[member] = blocks.get(member, 0) + max_ctas
        return made

    monkeypatch.setattr(network, "make", noted)
    try:
        run_simulated(replace(Case("vit", dropout=0.0), freezing=NEVER, steps=1), layout, network)
    finally:
        network.close()
    workers = layout.shape.world_size
    assert len(blocks) == workers
    assert GENERATIONS * max(blocks.values()) * CTA_BYTES <= most_communicator_bytes(workers)


def test_nothing_is_set_aside_for_a_lone_worker() -> None:
    assert most_communicator_bytes(1) == 0
    assert most_communicator_bytes(64) == GENERATIONS * (4 * PAIR_CTAS + 2 * GROUP_CTAS) * CTA_BYTES == 2304 << 20


@pytest.mark.parametrize(
    ("columns", "levels", "groups"), [(1, 1, 0), (2, 1, 1), (8, 1, 1), (1, 2, 1), (1, 4, 1), (2, 2, 3), (4, 2, 3), (2, 4, 3)]
)
def test_members_that_share_stages_have_a_group_along_each_width_and_the_whole(columns: int, levels: int, groups: int) -> None:
    more = most_communicator_bytes(64, columns * levels, levels) - most_communicator_bytes(64)
    assert more == groups * GENERATIONS * GROUP_CTAS * CTA_BYTES
    shape = ParallelShape(1, 1, tp_columns=columns, tp_depth=levels)
    assert len([axis for axis in axes_of(shape) if axis not in ALWAYS_NAMED]) == groups
