"""Programs: every built-in schedule lowers to a sound one, and the check finds what is not sound."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from frostline_contract.operations import GIVES_WEIGHT_GRADIENT, Kind, Operation
from frostline_contract.schedules import BUILT_IN, Schedule
from frostline_trainer.step.program_check import check_programs, check_schedule, checked_programs
from frostline_trainer.step.programs import Carried, Instruction, Program, StepShape, lower
from tests.split_backwards import takes

SHAPES = [(pp, v) for pp in (1, 2, 3, 4, 6) for v in (1, 2, 3) if pp > 1 or v == 1]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(("pp_degree", "virtual_stages"), SHAPES)
def test_every_schedule_has_sound_programs_whatever_is_frozen(name: str, pp_degree: int, virtual_stages: int) -> None:
    if not takes(name, pp_degree, virtual_stages):
        with pytest.raises(ValueError, match="virtual_stages is"):
            check_schedule(BUILT_IN[name], pp_degree, virtual_stages, [1])
        return
    checked = 0
    for num_microbatches in (1, 2, 3, 4, 5, 8, 13):
        for first_learning in range(pp_degree * virtual_stages):
            tied, folded = first_learning == 0, BUILT_IN[name].folded
            shape = StepShape(pp_degree, virtual_stages, num_microbatches, first_learning, tied, folded=folded)
            checked += len(checked_programs(BUILT_IN[name], shape, (num_microbatches,)))
        evaluation = StepShape(pp_degree, virtual_stages, num_microbatches, forward_only=True, folded=BUILT_IN[name].folded)
        checked += len(checked_programs(BUILT_IN[name], evaluation, ()))
    assert checked == 7 * pp_degree * (pp_degree * virtual_stages + 1)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_schedule_has_sound_programs_over_slices_whatever_is_frozen(name: str) -> None:
    """pp 1 to 5, 1 to 3 virtual stages, 1 to 6 micro-batches, 1 to 5 slices; with one stage a rank every freeze point."""
    shapes = [(pp, v) for pp in range(1, 6) for v in (1, 2, 3) if takes(name, pp, v)]
    checked, folded = 0, BUILT_IN[name].folded
    for (pp_degree, virtual_stages), num_microbatches, slices in product(shapes, range(1, 7), range(1, 6)):
        for first_learning in range(pp_degree if virtual_stages == 1 else 1):
            shape = StepShape(pp_degree, virtual_stages, num_microbatches, first_learning, slices=slices, folded=folded)
            programs = checked_programs(BUILT_IN[name], shape, (num_microbatches,))
            checked += sum(one.kind in GIVES_WEIGHT_GRADIENT for program in programs for one in program.compute) // (
                num_microbatches * slices
            )
    learning = [pp * (pp + 1) // 2 if v == 1 else pp * v for pp, v in shapes]
    assert checked == 6 * 5 * sum(learning)


def test_what_enters_a_stage_below_which_nothing_learns_comes_once_and_whole() -> None:
    programs = lower(BUILT_IN["1f1b"], StepShape(4, 1, 2, first_learning=2, slices=3))
    sent = [[one.message for one in program.compute if one.kind is Kind.SEND] for program in programs]
    assert [len(messages) for messages in sent] == [2, 2, 6, 6]
    assert [kinds(program).count("f") for program in programs] == [2, 2, 6, 6]
    assert all(message.slice == 0 for messages in sent[:2] for message in messages)


def test_over_slices_one_forward_one_backward_holds_few_of_them() -> None:
    """Seq1F1B: the most slices that a rank holds are one for each rank behind it and those of a micro-batch, whatever M is."""
    for pp_degree, num_microbatches, slices in ((4, 8, 4), (3, 5, 2), (2, 2, 3)):
        for pp_rank in range(pp_degree):
            held = most = 0
            for operation in BUILT_IN["1f1b"].operations(pp_rank, pp_degree, 1, num_microbatches, slices):
                held += 1 if operation.kind is Kind.FORWARD else -1
                most = max(most, held)
            assert most == min(num_microbatches * slices, pp_degree - pp_rank + slices - 1)


def kinds(program: Program) -> str:
    """Return one letter for each operation of a program: f, b, i, w, s, r."""
    return "".join(instruction.kind[0] for instruction in program.compute)


def test_a_receive_is_posted_ahead_of_the_computation_in_front_of_it() -> None:
    first, last = lower(BUILT_IN["1f1b"], StepShape(2, 1, 3))
    assert (kinds(first), kinds(last)) == ("fsrfsbrfsrbb", "rfrbsfrbsfbs")
    for program in (first, last):
        computations = [one for one in program.compute if one.kind not in (Kind.SEND, Kind.RECEIVE)]
        for place, (before, needing) in enumerate(zip(computations, computations[1:], strict=False)):
            posted = [
                number for number, one in enumerate(program.compute)
                if one.kind is Kind.RECEIVE and (one.stage, one.micro_batch) == (needing.stage, needing.micro_batch)
                and (one.carried is Carried.ACTIVATION) == (needing.kind is Kind.FORWARD)
            ]  # fmt: skip
            assert all(number < program.compute.index(before) for number in posted), (place, program.compute)


def test_no_gradient_enters_a_frozen_stage_and_none_leaves_the_first_that_learns() -> None:
    programs = lower(BUILT_IN["1f1b"], StepShape(4, 1, 3, first_learning=2))
    assert [kinds(program).count("b") for program in programs] == [0, 0, 3, 3]
    gradients = [
        (pp_rank, one.kind)
        for pp_rank, program in enumerate(programs)
        for one in program.compute
        if one.carried is Carried.GRADIENT
    ]
    assert gradients == [(2, Kind.RECEIVE)] * 3 + [(3, Kind.SEND)] * 3
    assert [[one.stage for one in program.exchange] for program in programs] == [[], [], [2], [3]]


def test_receives_follow_the_senders_order_where_the_receiver_needs_another() -> None:
    """Rank 1 takes the micro-batches the other way round: it posts both receives before it computes the first."""

    def crossing(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
        numbers = range(num_microbatches) if pp_rank == 0 else range(num_microbatches - 1, -1, -1)
        forwards = [Operation(Kind.FORWARD, pp_rank, m) for m in numbers]
        return forwards + [Operation(Kind.BACKWARD, pp_rank, m) for m in range(num_microbatches)]

    programs = checked_programs(Schedule(crossing), StepShape(2, 1, 3), (1, 1, 1))
    received = [one.micro_batch for one in programs[1].compute if one.kind is Kind.RECEIVE]
    assert received == [0, 1, 2]
    assert programs[1].compute[3][:3] == (Kind.FORWARD, 1, 2)


def split(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
    """All forwards, then gradients of inputs, then those of weights."""
    steps = (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    return [Operation(kind, pp_rank, m) for kind in steps for m in range(num_microbatches)]


def sliced(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 2) -> list[Operation]:
    """Two slices a micro-batch: forward in ascending order, backward in descending order."""
    forwards = [Operation(Kind.FORWARD, pp_rank, m, part) for m in range(num_microbatches) for part in (0, 1)]
    return forwards + [Operation(Kind.BACKWARD, pp_rank, m, part) for m in range(num_microbatches) for part in (1, 0)]


@pytest.mark.parametrize("order", [split, sliced])
def test_split_backwards_and_slices_lower_to_sound_programs(order: Callable[..., list[Operation]]) -> None:
    slices = 2 if order is sliced else 1
    programs = checked_programs(Schedule(order, takes_slices=slices > 1), StepShape(3, 1, 4, slices=slices), (2, 2))
    assert all(kinds(program)[-1] in "wbs" for program in programs)
    gradients = [one for one in programs[1].compute if one.kind is Kind.SEND and one.carried is Carried.GRADIENT]
    assert len(gradients) == 4 * (2 if order is sliced else 1)


def test_slices_the_wrong_way_round_are_found() -> None:
    def backwards(*shape: int) -> list[Operation]:
        return sorted(sliced(*shape), key=lambda one: (one.kind is Kind.BACKWARD, one.micro_batch, one.slice))

    with pytest.raises(ValueError, match=r"waits for ever.*backward of micro-batch 0 on stage 0 comes before .* slice 1"):
        checked_programs(Schedule(backwards, takes_slices=True), StepShape(2, 1, 2, slices=2), (1, 1))


def test_a_slice_that_goes_back_before_the_next_one_went_forward_is_found() -> None:
    """The slice's keys and values would get no gradient from the slices that read them."""

    def early(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int) -> list[Operation]:
        steps = [(kind, part) for part in range(slices) for kind in (Kind.FORWARD, Kind.BACKWARD)]
        return [Operation(kind, pp_rank, m, part) for m in range(num_microbatches) for kind, part in steps]

    with pytest.raises(ValueError, match=r"backward of micro-batch 0 on stage 0 comes before backward of micro-batch 0 slice 1"):
        checked_programs(Schedule(early, takes_slices=True), StepShape(1, 1, 2, slices=2), (1, 1))


def test_slices_of_two_micro_batches_in_turn_are_found() -> None:
    def in_turn(*shape: int) -> list[Operation]:
        backwards = [one for one in sliced(*shape) if one.kind is Kind.BACKWARD]
        forwards = [one for one in sliced(*shape) if one.kind is Kind.FORWARD]
        return forwards + sorted(backwards, key=lambda one: (-one.slice, one.micro_batch))

    with pytest.raises(ValueError, match=r"closes the gradient of micro-batch 0 slice 0 .* not right before it that of slice 1"):
        checked_programs(Schedule(in_turn, takes_slices=True), StepShape(1, 1, 2, slices=2), (1, 1))


def test_a_schedule_that_takes_no_slices_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"placement.slices is 2 and the schedule takes none .* set it to 1"):
        checked_programs(Schedule(split), StepShape(2, 1, 2, slices=2), (1, 1))


def test_slices_are_refused_where_stages_compute_whole_micro_batches() -> None:
    with pytest.raises(ValueError, match=r"forward of micro-batch 0 slice 1 on stage 0 on pp_rank 0, which has no such .* slice"):
        check_schedule(sliced, 2, 1, [1, 1])


def changed(programs: list[Program], pp_rank: int, change: Callable[[list[Instruction]], list[Instruction]]) -> list[Program]:
    compute = tuple(change(list(programs[pp_rank].compute)))
    return [replace(one, compute=compute) if number == pp_rank else one for number, one in enumerate(programs)]


def swap_first(kind: Kind, carried: Carried) -> Callable[[list[Instruction]], list[Instruction]]:
    def change(program: list[Instruction]) -> list[Instruction]:
        first, second = [place for place, one in enumerate(program) if (one.kind, one.carried) == (kind, carried)][:2]
        program[first], program[second] = program[second], program[first]
        return program

    return change


def late_receives(program: list[Instruction]) -> list[Instruction]:
    receives = [one for one in program if one.kind is Kind.RECEIVE]
    return [one for one in program if one.kind is not Kind.RECEIVE] + receives


BROKEN = {
    "receives in another order than sends": (1, swap_first(Kind.RECEIVE, Carried.ACTIVATION), "is sent where"),
    "a receive that is missing": (1, lambda program: program[1:], "without receiving its input"),
    "a receive after the computation": (1, late_receives, "without receiving its input"),
    "a send that is missing": (0, lambda program: [one for one in program if one.kind is not Kind.SEND], "never sends"),
    "a send before its computation": (0, lambda program: sorted(program, key=lambda one: one.kind is not Kind.SEND), "before"),
    "a receive that nobody sends": (
        1, lambda program: [*program, Instruction(Kind.RECEIVE, 1, 7, 0, Carried.ACTIVATION, 0)], "never sent"),
    "a receive from somebody else": (
        1, lambda program: [program[0]._replace(peer=1), *program[1:]], "from 1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_program_that_is_not_sound_is_found(fault: str) -> None:
    pp_rank, change, words = BROKEN[fault]
    shape = StepShape(2, 1, 4)
    programs = lower(BUILT_IN["gpipe"], shape)
    check_programs(programs, shape, (4,))
    with pytest.raises(ValueError, match=words):
        check_programs(changed(programs, pp_rank, change), shape, (4,))


def test_a_reduction_that_is_missing_or_in_another_order_is_found() -> None:
    shape = StepShape(2, 2, 4)
    programs = lower(BUILT_IN["gpipe"], shape)
    for exchange in (programs[0].exchange[:1], programs[0].exchange[::-1]):
        with pytest.raises(ValueError, match="reduces stages"):
            check_programs([replace(programs[0], exchange=exchange), programs[1]], shape, (4,))


def test_a_step_in_which_two_ranks_wait_for_each_other_is_found() -> None:
    """Each rank of a pair receives before it sends: rendezvous sends in a cycle would wait in the same way."""

    def greedy(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Operation]:
        operations = BUILT_IN["1f1b"].operations(pp_rank, pp_degree, virtual_stages, num_microbatches)
        return sorted(operations, key=lambda one: (one.micro_batch, one.kind is Kind.BACKWARD)) if pp_rank == 0 else [
            *[one for one in operations if one.kind is Kind.FORWARD], *[one for one in operations if one.kind is Kind.BACKWARD]
        ]  # fmt: skip

    with pytest.raises(
        ValueError, match=r"waits for ever: {0: 'backward of micro-batch 0 on stage 0', 1: 'forward of micro-batch 1"
    ):
        check_schedule(greedy, 2, 1, [1, 1])
