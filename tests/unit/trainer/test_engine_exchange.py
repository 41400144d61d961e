"""The gradient exchange has the tree's bits for any number of replicas and leaves; the vote's slots have one contributor each."""

import math

import pytest
import torch

from frostline_contract.pieces import Pieces
from frostline_contract.shape import deal_leaves, leaf_micro_batches
from frostline_trainer.memory import metered
from frostline_trainer.step.exchange import put_together, reduce_gradients
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.vote import Ballot, hold_vote
from frostline_trainer.transport.collectives import Group, broadcast_bytes, receive_bytes, send_bytes
from tests.unit.trainer.group_threads import in_group
from tests.unit.trainer.test_engine_tree import recursion, spread

LONE = Group(None, "alone", 0, 1)


def filled(values: list[torch.Tensor], low: int, high: int, leaves: int, members: int, exact: bool = True) -> GradientBuffers:
    """Return a replica's buffers after the backwards of leaves [low, high); value i is micro-batch i's gradient."""
    parameter = torch.nn.Parameter(torch.zeros_like(values[0]))
    buffers = GradientBuffers([(0, [parameter])], len(values), leaves, exact, members)
    return fill(buffers, values, low, high, leaves)


def fill(buffers: GradientBuffers, values: list[torch.Tensor], low: int, high: int, leaves: int) -> GradientBuffers:
    """Fill the same buffers for another step."""
    (parameter,) = buffers.parameters
    for leaf in range(low, high):
        for number in leaf_micro_batches(leaf, len(values), leaves):
            buffers.before_backward(number)
            (parameter * values[number]).sum().backward()
            buffers.after_backward(number)
    return buffers


@pytest.mark.parametrize("length", [1, 7, 1000])
@pytest.mark.parametrize(
    ("replicas", "leaves"), [(1, 8), (2, 2), (2, 8), (3, 4), (3, 8), (4, 4), (4, 8), (5, 8), (5, 16), (6, 8), (7, 8), (8, 8)]
)
def test_the_exchange_is_the_tree_sum(replicas: int, leaves: int, length: int) -> None:
    values = spread(leaves, length)
    expected = recursion(values)
    dealt = deal_leaves(leaves, replicas)
    bounds = (0, *(high for _, high in dealt))

    def member(column: Group) -> list[torch.Tensor]:
        buffers = filled(values, *dealt[column.index], leaves, replicas)
        totals = []
        for _ in range(3):
            total = reduce_gradients(buffers, column, bounds, leaves, exact=True)
            totals.append(total[:length].clone())
            buffers.release(total)
            fill(buffers, values, *dealt[column.index], leaves)
        return totals

    for totals in in_group(replicas, member):
        for total in totals:
            assert torch.equal(total, expected)


def test_uneven_bounds_that_no_rule_deals_have_the_trees_bits_too() -> None:
    values, bounds = spread(8, 50), (0, 1, 6, 8)

    def member(column: Group) -> torch.Tensor:
        buffers = filled(values, bounds[column.index], bounds[column.index + 1], 8, 3)
        return reduce_gradients(buffers, column, bounds, 8, exact=True)[:50]

    assert all(torch.equal(total, recursion(values)) for total in in_group(3, member))


def test_fast_sums_agree_to_rounding() -> None:
    values = [torch.rand(50, generator=torch.Generator().manual_seed(i)).double() for i in range(8)]

    def member(column: Group) -> torch.Tensor:
        low, high = deal_leaves(8, 3)[column.index]
        return reduce_gradients(filled(values, low, high, 8, 3, exact=False), column, (0, 3, 5, 8), 8, exact=False)[:50]

    totals = in_group(3, member)
    assert all(torch.allclose(total, recursion(values), rtol=1e-14, atol=0.0) for total in totals)
    assert torch.equal(totals[0], totals[2])


def test_a_vote_totals_every_members_slots_in_one_order() -> None:
    def member(world: Group) -> object:
        index = world.index
        ballot = Ballot({index: 10.0**index}, {2 * index: 0.1, 2 * index + 1: 0.2}, ready=7, decision=3 + index, drain=index == 1)
        return hold_vote(world, ballot, Pieces(4), num_microbatches=6)

    first, second, third = in_group(3, member)
    assert first == second == third
    assert first.unit_squares == (1.0, 10.0, 100.0, 0.0)
    assert first.loss == 0.1 + 0.2 + 0.1 + 0.2 + 0.1 + 0.2
    assert first.gradient_norm == math.sqrt(111.0)
    assert (first.ready_smallest, first.decision_smallest, first.drain, first.give_up, first.checkpoint) == (
        7,
        3,
        True,
        False,
        False,
    )
    assert first.switches_to(7) and not first.switches_to(8)


def test_one_member_that_is_not_ready_holds_the_switch_back() -> None:
    ballots = [Ballot({}, {}, ready=5 * index, give_up=index == 1) for index in range(2)]
    results = in_group(2, lambda world: hold_vote(world, ballots[world.index], Pieces(1), 1))
    assert [result.switches_to(5) for result in results] == [False, False]
    assert not results[0].switches_to(0), "no counter is no plan"
    assert all(result.give_up for result in results)


@pytest.mark.parametrize(
    ("square", "loss", "finite"),
    [(1.0, 2.0, True), (math.inf, 2.0, False), (1.0, math.nan, False), (math.nan, 1.0, False), (1.0, math.inf, False)],
)
def test_a_step_with_a_value_that_is_not_finite_is_refused(square: float, loss: float, finite: bool) -> None:
    result = hold_vote(LONE, Ballot({0: square, 1: 4.0}, {0: loss}), Pieces(2), 1)
    assert result.finite == finite


def test_bytes_travel_whole_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frostline_trainer.transport.collectives.CHUNK_BYTES", 1000)
    payloads = [b"", b"x", bytes(range(256)) * 20]

    def member(group: Group) -> list[bytes]:
        if group.index == 0:
            flat = [torch.tensor(list(payload), dtype=torch.uint8) for payload in payloads]
            sent = [message for tag, payload in enumerate(flat) for message in send_bytes(group, payload, 1, tag)]
            for message in sent:
                message.wait()
            return [broadcast_bytes(group, payloads[2], 0)]
        received = [bytes(receive_bytes(group, 0, tag).tolist()) for tag in range(3)]
        return [*received, broadcast_bytes(group, b"", 0)]

    sender, receiver = in_group(2, member)
    assert sender == [payloads[2]]
    assert receiver == [*payloads, payloads[2]]


@pytest.mark.parametrize("offered", [True, False])
def test_a_gather_from_a_workspace_holds_no_second_result(offered: bool) -> None:
    def member(group: Group) -> tuple[list[float], int]:
        room = torch.zeros(3, 64)
        own, output = room[(group.index + 1) % 3].fill_(group.index + 1.0), torch.empty(3 * 64)
        with metered(torch.device("cpu")) as meter:
            if offered:
                put_together(group, output, own, room)
            else:
                group.all_gather(output, own)
        return output[::64].tolist(), meter.peak

    for gathered, peak in in_group(3, member):
        assert gathered == [1.0, 2.0, 3.0]
        assert peak == (0 if offered else 3 * 64 * 4), "without a workspace gloo allocates the result again"
