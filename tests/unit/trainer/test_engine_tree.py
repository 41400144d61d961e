"""The summation tree: whoever computes which leaves and in whatever order, the sum is the recursion's, bit for bit."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline_contract.shape import deal_leaves, leaf_micro_batches
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.step.gradients import UNIT_ALIGNMENT, GradientBuffers
from frostline_trainer.step.tree import TreeSum, aligned_pieces

powers = st.integers(0, 6).map(lambda exponent: 2**exponent)


def recursion(leaves: list[torch.Tensor]) -> torch.Tensor:
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return recursion(leaves[:half]) + recursion(leaves[half:])


def spread(count: int, length: int = 5) -> list[torch.Tensor]:
    """Return numbers whose sum depends on the order of summation."""
    generator = torch.Generator().manual_seed(count)
    scales = 10.0 ** torch.randint(-6, 7, (count, length), generator=generator)
    return list((torch.randn(count, length, generator=generator) * scales).float())


@given(powers, st.data())
def test_pieces_are_aligned_and_cover_the_range_with_the_largest_nodes(num_leaves: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, num_leaves - 1))
    high = data.draw(st.integers(low + 1, num_leaves))
    pieces = aligned_pieces(low, high, num_leaves)
    assert [leaf for start, size in pieces for leaf in range(start, start + size)] == list(range(low, high))
    for start, size in pieces:
        assert size & (size - 1) == 0 and start % size == 0
        parent = start & ~(2 * size - 1)
        assert size == num_leaves or parent < low or parent + 2 * size > high, "its parent fits too"


@settings(max_examples=40)
@given(powers, st.randoms(use_true_random=False))
def test_the_sum_is_the_recursions_in_any_order_of_arrival(num_leaves: int, order: random.Random) -> None:
    leaves = spread(num_leaves)
    numbers = list(range(num_leaves))
    order.shuffle(numbers)
    recycled: list[torch.Tensor] = []
    tree = TreeSum(num_leaves, recycled.append)
    for leaf in numbers:
        tree.push(leaf, 1, leaves[leaf].clone())
    assert torch.equal(tree.take(0, num_leaves), recursion(leaves))
    assert len(recycled) == num_leaves - 1 and not tree.nodes


def test_the_order_of_summation_shows_in_these_numbers() -> None:
    leaves = spread(8)
    assert not torch.equal(recursion(leaves), sum(leaves[1:], leaves[0]))


@settings(max_examples=25)
@given(powers, st.integers(1, 5), st.integers(0, 40))
def test_replicas_that_hold_their_own_leaves_have_the_trees_nodes(num_leaves: int, replicas: int, extra: int) -> None:
    """Gradients added micro-batch by micro-batch, each replica on its own, leave the nodes of `aligned_pieces`."""
    replicas, num_microbatches = min(replicas, num_leaves), num_leaves + extra
    values = spread(num_microbatches, 3)
    leaves = []
    for leaf in range(num_leaves):
        total = torch.zeros(3)
        for number in leaf_micro_batches(leaf, num_microbatches, num_leaves):
            total = total + values[number]
        leaves.append(total)
    for low, high in deal_leaves(num_leaves, replicas):
        parameter = torch.nn.Parameter(torch.zeros(3))
        buffers = GradientBuffers([(0, [parameter])], num_microbatches, num_leaves)
        for leaf in range(low, high):
            for number in leaf_micro_batches(leaf, num_microbatches, num_leaves):
                buffers.before_backward(number)
                (parameter * values[number]).sum().backward()
                buffers.after_backward(number)
        nodes = buffers.pieces()
        assert sorted(nodes) == sorted(aligned_pieces(low, high, num_leaves))
        for (start, size), value in nodes.items():
            assert torch.equal(value[:3], recursion(leaves[start : start + size]))


def test_a_replica_keeps_few_buffers_and_uses_them_again() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    buffers = GradientBuffers([(0, [parameter])], 16, 16)
    made = set()
    for _ in range(3):
        for number in range(16):
            buffers.before_backward(number)
            made.add(parameter.grad.data_ptr())
            (parameter * 2.0).sum().backward()
            buffers.after_backward(number)
        total = buffers.pieces()[(0, 16)]
        buffers.adopt(total)
        assert torch.equal(parameter.grad, torch.full((4,), 32.0))
        buffers.release(total)
        assert parameter.grad is None
    assert len(made) <= 4, "log2 of the leaves: a buffer for each level that waits for its sibling"


def test_units_start_aligned_and_lie_alike_on_every_stage() -> None:
    first, second, third = (torch.nn.Parameter(torch.zeros(size)) for size in (3, 130, 7))
    both = GradientBuffers([(4, [first, second]), (5, [third])], 8, 8)
    alone = GradientBuffers([(5, [third])], 8, 8)
    assert both.unit_slices == {4: slice(0, 146), 5: slice(256, 263)}, "the second parameter begins at the next 64 bytes"
    assert alone.unit_slices == {5: slice(0, 7)}
    assert all(is_aligned(view) for view in both.views(both.spare_buffer()))
    assert both.length % UNIT_ALIGNMENT == alone.length % UNIT_ALIGNMENT == 0


def test_an_abandoned_step_leaves_nothing() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    buffers = GradientBuffers([(0, [parameter])], 2, 2)
    buffers.before_backward(0)
    (parameter * 5.0).sum().backward()
    buffers.abandon()
    for number in range(2):
        buffers.before_backward(number)
        (parameter * 1.0).sum().backward()
        buffers.after_backward(number)
    assert torch.equal(buffers.pieces()[(0, 2)][:2], torch.full((2,), 2.0))
