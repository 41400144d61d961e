"""A pipeline over cells holds what its schedule says, and nothing between steps: inputs and graphs of cells, keys and values,
counted as objects that are alive."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

import pytest
from torch import Tensor

from frostline_contract.operations import Operation
from frostline_contract.schedule_figures import held_at_most
from frostline_contract.schedules import schedule_named
from frostline_trainer.families.cells import Cell, Memory
from frostline_trainer.step import strand
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.stage import Stage
from tests import engine_member
from tests.exact_cases import NEVER, NUM_MICROBATCHES, NUM_UNITS, Case
from tests.hand_made_plans import Layout
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network

CASE = Case("gpt2_tied", cells=(1, 9, 2, 4), freezing=NEVER, dropout=0.0, steps=2, audit_every=0)
"""Without audits, since of an audited micro-batch all cells' inputs are kept as evidence."""
SLICES = (2, 1, 1)
LAYOUTS = (
    Layout(3, 1, slices=SLICES),
    Layout(3, 1, schedule="zb_h1", slices=SLICES),
    Layout(2, 1, 2, "v_half", slices=SLICES),
)


class Alive:
    """One member's objects of each kind that are alive, and the most there were at once, just after a block's forward.

    entries: inputs of cells, one for each cell that a stage has saved. graphs: cells of blocks that a graph refers to. memories:
    keys and values of blocks, if a cell has written any.
    """

    def __init__(self) -> None:
        self._entries: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._graphs: WeakValueDictionary[int, Cell] = WeakValueDictionary()
        self._memories: WeakValueDictionary[int, Memory] = WeakValueDictionary()
        self._count = 0
        self.most = {"entries": 0, "graphs": 0, "memories": 0}
        self.after_steps: list[dict[str, int]] = []

    def add(self, one: Tensor | Cell | Memory) -> None:
        kinds: Any = {Tensor: self._entries, Cell: self._graphs, Memory: self._memories}
        self._count += 1
        next(objects for kind, objects in kinds.items() if isinstance(one, kind))[self._count] = one

    def now(self) -> dict[str, int]:
        written = sum(memory.filled > 0 for memory in self._memories.values())
        return {"entries": len(self._entries), "graphs": len(self._graphs), "memories": written}

    def note(self) -> None:
        self.most = {name: max(count, self.most[name]) for name, count in self.now().items()}


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> dict[str, Alive]:
    """What each member of a simulated run holds, by worker."""
    found: dict[str, Alive] = {}
    here = threading.local()

    class CountedMemory(Memory):
        def __init__(self, tokens: int) -> None:
            super().__init__(tokens)
            here.alive.add(self)

    class CountedCell(Cell):
        def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            updated = super().update(keys, values)
            here.alive.add(self)
            here.alive.note()
            return updated

    def run_cell(stage: Stage, hidden: Tensor, *arguments: Any) -> Tensor:
        here.alive.add(hidden)
        return plain_run(stage, hidden, *arguments)

    def train_step(generation: Generation, *arguments: Any, **named: Any) -> None:
        here.alive = found.setdefault(generation.worker_id, Alive())
        plain_step(generation, *arguments, **named)
        here.alive.after_steps.append(here.alive.now())

    plain_run, plain_step = Stage.run_cell, engine_member.train_step
    changes: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (strand, "Memory", CountedMemory),
        (strand, "Cell", CountedCell),
        (Stage, "run_cell", run_cell),
        (engine_member, "train_step", train_step),
    )
    for owner, name, counted in changes:
        monkeypatch.setattr(owner, name, counted)
    return found


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_member_holds_what_its_schedule_says_and_nothing_between_steps(
    layout: Layout, members: dict[str, Alive], network: Network
) -> None:
    run_simulated(CASE, layout, network)
    assert len(members) == layout.pp_degree
    for pp_rank in range(layout.pp_degree):
        held = members[f"w{pp_rank}"]
        assert held.most == on_paper(layout, pp_rank), f"pp_rank {pp_rank}"
        assert held.after_steps == [{"entries": 0, "graphs": 0, "memories": 0}] * CASE.steps


def on_paper(layout: Layout, pp_rank: int) -> dict[str, float]:
    """Return the most that a rank's order of computation holds at once.

    Keys and values are there from the forward of a micro-batch's first slice to the end of that slice's backward.
    """
    blocks = [sum(0 < unit < NUM_UNITS - 1 for unit in range(*ends)) for ends in pairwise(layout.placement(0).stage_bounds)]
    degrees = (pp_rank, layout.pp_degree, layout.virtual_stages, NUM_MICROBATCHES, len(SLICES))
    order = schedule_named(layout.schedule).operations(*degrees)
    firsts = [operation for operation in order if operation.slice == 0]

    def cells(operation: Operation) -> float:
        return SLICES[operation.slice]

    return {
        "entries": held_at_most(order, cells),
        "graphs": held_at_most(order, lambda operation: blocks[operation.stage] * cells(operation)),
        "memories": held_at_most(firsts, lambda operation: blocks[operation.stage]),
    }
