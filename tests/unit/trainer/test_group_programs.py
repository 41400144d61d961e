"""Programs of tensor-parallel groups, whose lines are tied to each other by gathers and sums: none waits for ever."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from frostline_contract.operations import COMPUTING, Kind
from frostline_contract.schedules import BUILT_IN
from frostline_trainer.step.program_check import checked_programs
from frostline_trainer.step.programs import Instruction, Program, StepShape, computation, enters, stays
from tests.split_backwards import takes

Member = tuple[int, int]
"""(line, pipeline rank)."""


class GroupWalk:
    """All members under way at once on the weakest transport: a computation waits for its messages and for the whole group.

    A message has arrived where its channel's n-th send and n-th receive are posted. Members take turns in a drawn order.
    """

    def __init__(self, programs: Sequence[Program], shape: StepShape, members: int, seed: int) -> None:
        self._programs, self._shape, self._members = [one.compute + one.exchange for one in programs], shape, members
        self._places: Counter[Member] = Counter()
        self._posted: Counter[tuple[int, int, int, Kind]] = Counter()
        self._number: dict[tuple[int, Instruction], int] = {}
        self._random = Random(seed)

    def run(self) -> list[Instruction]:
        """Return the operations at which members wait for ever."""
        everyone = [(line, pp_rank) for line in range(self._members) for pp_rank in range(len(self._programs))]
        moved = True
        while moved:
            self._random.shuffle(everyone)
            moved = any(self._advance(*member) for member in everyone)
        return [
            self._programs[pp_rank][self._places[line, pp_rank]] for line, pp_rank in everyone if not self._ended(line, pp_rank)
        ]

    def _ended(self, line: int, pp_rank: int) -> bool:
        return self._places[line, pp_rank] == len(self._programs[pp_rank])

    def _advance(self, line: int, pp_rank: int) -> bool:
        """Carry out one operation of a member's program, or of its whole group's, if it need not wait."""
        if self._ended(line, pp_rank):
            return False
        place = self._places[line, pp_rank]
        one = self._programs[pp_rank][place]
        if one.kind not in COMPUTING:
            self._post(line, pp_rank, one)
            self._places[line, pp_rank] += 1
            return True
        group = range(self._members)
        if any(self._places[other, pp_rank] != place or not self._arrived(other, pp_rank, one) for other in group):
            return False
        for other in group:
            self._places[other, pp_rank] += 1
        return True

    def _post(self, line: int, pp_rank: int, one: Instruction) -> None:
        if one.kind in (Kind.SEND, Kind.RECEIVE):
            sender, receiver = (pp_rank, one.peer) if one.kind is Kind.SEND else (one.peer, pp_rank)
            channel = (line, sender, receiver, one.kind)
            self._posted[channel] += 1
            if one.kind is Kind.RECEIVE:
                self._number[line, one] = self._posted[channel]

    def _arrived(self, line: int, pp_rank: int, one: Instruction) -> bool:
        operation = computation(one)
        assert operation is not None
        wanted = {message for message in enters(operation, self._shape) if not stays(message, self._shape)}
        for (of, received), number in self._number.items():
            if of == line and received.message in wanted and self._shape.owner(received.stage) == pp_rank:
                wanted.discard(received.message)
                if self._posted[line, received.peer, pp_rank, Kind.SEND] < number:
                    return False
        return not wanted


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("name", BUILT_IN)
def test_groups_whose_computations_wait_for_all_members_end(name: str, members: int) -> None:
    checked, folded = 0, BUILT_IN[name].folded
    for pp_degree, virtual_stages in ((2, 1), (3, 1), (2, 2), (4, 1)):
        if not takes(name, pp_degree, virtual_stages):
            continue
        for first_learning in (0, 1):
            for slices in (1, 3):
                shape = StepShape(pp_degree, virtual_stages, 5, first_learning, first_learning == 0, slices=slices, folded=folded)
                programs = checked_programs(BUILT_IN[name], shape, (5,))
                assert GroupWalk(programs, shape, members, seed=checked).run() == []
                checked += 1
    assert checked


def test_a_member_with_another_order_would_wait_for_ever() -> None:
    """The walk finds a group whose members' programs differ: here one that ends before its last computation."""
    shape = StepShape(2, 1, 2)
    programs = checked_programs(BUILT_IN["1f1b"], shape, (2,))
    walk = GroupWalk(programs, shape, 2, seed=0)
    walk._places[1, 1] = len(walk._programs[1])
    assert walk.run()
