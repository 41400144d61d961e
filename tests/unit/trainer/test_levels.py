"""Sums over machines: first within each, then between them. The tree's bits, and an Nth of the bytes over the network."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from frostline_contract.shape import deal_leaves
from frostline_trainer.step.exchange import Levels, reduce_gradients, replicas_a_machine
from frostline_trainer.transport.collectives import Group, connect_store, open_store
from tests.simulated_members import in_threads
from tests.unit.trainer.group_threads import SECONDS
from tests.unit.trainer.test_engine_exchange import fill, filled
from tests.unit.trainer.test_engine_tree import recursion, spread


class Carried:
    """A group that counts the elements which this member sends to other machines. machines: each member's machine."""

    def __init__(self, group: Group, machines: list[int]) -> None:
        self.group, self.index, self.size, self.backend = group, group.index, group.size, group.backend
        self._others = [other for other in range(group.size) if machines[other] != machines[group.index]]
        self.elements = 0

    def all_to_all(self, output: torch.Tensor, source: torch.Tensor, output_counts: list[int], counts: list[int]) -> None:
        self.elements += sum(counts[other] for other in self._others)
        self.group.all_to_all(output, source, output_counts, counts)

    def all_gather(self, output: torch.Tensor, own: torch.Tensor) -> None:
        self.elements += own.numel() * len(self._others)
        self.group.all_gather(output, own)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        self.elements += tensor.numel() * len(self._others)
        self.group.all_reduce_sum(tensor)


def summed(
    machines: int, each: int, leaves: int, length: int, levels: bool
) -> tuple[list[list[torch.Tensor]], int, list[torch.Tensor]]:
    """Return three steps' sums of each replica, the elements that left machines, and the leaves' gradients."""
    values, replicas = spread(leaves, length), machines * each
    dealt = deal_leaves(leaves, replicas)
    bounds = (0, *(high for _, high in dealt))
    server, port = open_store()

    def groups_of(index: int, made: Callable[..., Group]) -> list[Carried]:
        machine, place = divmod(index, each)
        if not levels:
            return [Carried(made("flat", index, replicas), [one // each for one in range(replicas)])]
        near = Carried(made(f"near {machine}", place, each), [machine] * each)
        return [near, Carried(made(f"far {place}", machine, machines), list(range(machines)))]

    def member(index: int) -> tuple[list[torch.Tensor], int]:
        store = server if index == 0 else connect_store("127.0.0.1", port, SECONDS)
        carried = groups_of(index, lambda name, own, size: Group(store, name, own, size, "gloo", SECONDS))
        over: Any = Levels(*carried) if levels else carried[0]  # type: ignore[arg-type]
        buffers, totals = filled(values, *dealt[index], leaves, replicas), []
        try:
            for _ in range(3):
                total = reduce_gradients(buffers, over, bounds, leaves, exact=True)
                totals.append(total[:length].clone())
                buffers.release(total)
                fill(buffers, values, *dealt[index], leaves)
            return totals, sum(one.elements for one in carried) // 3
        finally:
            for one in carried:
                one.group.close()

    found = in_threads(member, replicas)
    return [totals for totals, _ in found], sum(elements for _, elements in found), values


@pytest.mark.parametrize(("machines", "each", "leaves"), [(2, 2, 4), (2, 3, 8), (2, 4, 16), (4, 2, 8)])
def test_two_levels_have_the_trees_bits_and_send_a_machines_share_once(machines: int, each: int, leaves: int) -> None:
    dealt = deal_leaves(leaves, machines * each)
    numbers = [number for number in range(machines) for _ in range(each)]
    assert replicas_a_machine(numbers, (0, *(high for _, high in dealt))) == each
    totals, elements, values = summed(machines, each, leaves, 1000, levels=True)
    assert all(torch.equal(total, recursion(values)) for one in totals for total in one)
    flat, flat_elements, _ = summed(machines, each, leaves, 1000, levels=False)
    assert all(torch.equal(total, flat[0][0]) for one in totals for total in one)
    assert elements * each <= flat_elements
    assert elements * each == flat_elements or leaves % (machines * each), (
        "a replica with several nodes sends them all over one level"
    )


@pytest.mark.parametrize(
    ("machines", "bounds", "each"),
    [
        ([1, 1, 2, 2], (0, 2, 4, 6, 8), 2),
        ([5, 5, 5, 2, 2, 2], (0, 1, 3, 4, 5, 7, 8), 3),
        ([1, 1, 2, 2], (0, 1, 2, 5, 8), 0),
        ([1, 2, 1, 2], (0, 2, 4, 6, 8), 0),
        ([1, 1, 1, 2], (0, 2, 4, 6, 8), 0),
        ([1, 1, 1, 1], (0, 2, 4, 6, 8), 0),
        ([1, 2, 3, 4], (0, 2, 4, 6, 8), 0),
        ([1, 1, 2, 2, 3, 3], (0, 1, 3, 4, 5, 7, 8), 0),
        ([1, 1, 2, 2, 1, 1], (0, 1, 3, 4, 5, 7, 8), 0),
        ([1, 1, 1, 2, 2], (0, 2, 3, 5, 6, 8), 0),
        ([1], (0, 8), 0),
    ],
)
def test_sums_have_two_levels_where_each_machine_has_one_node_of_the_tree(
    machines: list[int], bounds: tuple[int, ...], each: int
) -> None:
    assert replicas_a_machine(machines, bounds) == each
