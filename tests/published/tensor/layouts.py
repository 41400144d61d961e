"""Seconds of a block on each layout: its arithmetic on all ranks, and its traffic on nodes, with nothing overlapped."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import isqrt
from pathlib import Path
from typing import Any

import yaml

from frostline_controller.planner.tensor.nodes import Nodes
from frostline_controller.planner.tensor.traffic import BLOCK, Axes, cube, powers_of_two, traffic

FIGURES = Path(__file__).with_name("figures.yaml")


@dataclass(frozen=True)
class Machine:
    """A cluster. nodes: links of and between nodes. flops: sustained by a device, a second. bytes: of a value."""

    nodes: Nodes
    flops: float
    bytes: int


@dataclass(frozen=True)
class Work:
    """The rows of a block's input. tokens: of a step, all replicas together. sequence: tokens of a sample."""

    tokens: int
    hidden: int
    sequence: int

    def compute_seconds(self, ranks: int, machine: Machine) -> float:
        """Return the seconds of forward and backward, evenly over the ranks."""
        flops = 3 * self.tokens * (24 * self.hidden**2 + 4 * self.sequence * self.hidden)
        return flops / ranks / machine.flops


@cache
def figures() -> dict[str, Any]:
    """Return the content of figures.yaml."""
    found: dict[str, Any] = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    return found


def machine_of(reported: dict[str, Any]) -> Machine:
    devices, way_out = reported["devices"], reported["node_bytes_per_second"]
    return Machine(Nodes(devices, reported["within"], way_out / devices), reported["flops"], reported["bytes"])


def one_d_seconds(work: Work, ranks: int, machine: Machine) -> float:
    """Return a block's seconds with columns over all ranks. If they span nodes, a sum is made within each node first, then each
    device's part of the sum between nodes.
    """
    nodes, axes = machine.nodes, Axes(columns=ranks)
    received = traffic(axes, work.tokens, work.hidden).total * machine.bytes
    if ranks <= nodes.devices:
        return work.compute_seconds(ranks, machine) + nodes.seconds(received, ranks, 1)
    whole, count = received / (2 * (ranks - 1) / ranks), ranks // nodes.devices
    inside = whole * 2 * (nodes.devices - 1) / nodes.devices / nodes.within
    between = whole / nodes.devices * 2 * (count - 1) / count / nodes.between
    return work.compute_seconds(ranks, machine) + inside + between


def two_d_traffic(ranks: int, tokens: float, hidden: float) -> tuple[float, float]:
    """Return the elements that a rank of q x q receives in SUMMA along rows and columns for a block's forward and backward:
    2 (q - 1) / q^2 of X and W.
    """
    side = isqrt(ranks)
    assert side**2 == ranks, f"{ranks} ranks are no square"
    share = 2 * (side - 1) / ranks
    inputs = share * tokens * hidden * sum(product.inputs for product in BLOCK)
    return inputs, share * hidden**2 * sum(product.inputs * product.outputs for product in BLOCK)


def two_d_seconds(work: Work, ranks: int, machine: Machine) -> float:
    side = isqrt(ranks)
    parts = [(received, side) for received in two_d_traffic(ranks, work.tokens, work.hidden)]
    return work.compute_seconds(ranks, machine) + _in_best_order(parts, machine)


def axes_seconds(axes: Axes, work: Work, machine: Machine) -> float:
    """Return a block's seconds on columns x depth x replicas with sharded weights, gathered at each use and kept until the
    backward."""
    received = traffic(axes, work.tokens, work.hidden)
    parts = [(received.depth, axes.depth), (received.columns, axes.columns), (received.replicas, axes.replicas)]
    return work.compute_seconds(axes.size, machine) + _in_best_order(parts, machine)


def _in_best_order(parts: list[tuple[float, int]], machine: Machine) -> float:
    """Return the least seconds of the axes' traffic (elements, degree) over all orders of axes, innermost first."""

    def seconds(order: tuple[tuple[float, int], ...]) -> float:
        total, stride = 0.0, 1
        for received, degree in order:
            total += machine.nodes.seconds(received * machine.bytes, degree, stride)
            stride *= degree
        return total

    return min(map(seconds, permutations(parts)))


def three_d_seconds(work: Work, ranks: int, machine: Machine) -> float:
    side = round(ranks ** (1 / 3))
    assert side**3 == ranks, f"{ranks} ranks are no cube"
    return axes_seconds(cube(side), work, machine)


def planes(ranks: int) -> Iterator[Axes]:
    """Yield columns x depth over all ranks with a depth: weights are never gathered."""
    yield from (Axes(ranks // depth, depth) for depth in powers_of_two(ranks) if 1 < depth < ranks)


def plane_seconds(work: Work, ranks: int, machine: Machine) -> float:
    return min(axes_seconds(axes, work, machine) for axes in planes(ranks))


def shapes(work: Work, ranks: int) -> Iterator[Axes]:
    """Yield every columns x depth x replicas in powers of two that gives each replica at least one whole sequence."""
    for columns in powers_of_two(ranks):
        for depth in powers_of_two(ranks // columns):
            replicas = ranks // columns // depth
            if work.tokens >= replicas * work.sequence:
                yield Axes(columns, depth, replicas)


def ours(work: Work, ranks: int, machine: Machine) -> Axes:
    """Return the best shape of columns within a node x sharded data parallelism; if the batch allows none, with columns beyond
    a node.
    """
    flat = [axes for axes in shapes(work, ranks) if axes.depth == 1]
    inside = [axes for axes in flat if axes.columns <= machine.nodes.devices]
    return min(inside or flat, key=lambda axes: axes_seconds(axes, work, machine))


LAYOUTS = {"1-D": one_d_seconds, "2-D": two_d_seconds, "3-D": three_d_seconds, "plane": plane_seconds}


def of_layouts(work: Work, ranks: int, machine: Machine) -> dict[str, float]:
    """Return the seconds of a block on each layout that is possible with so many ranks."""
    allowed = {"1-D", "plane"}
    allowed |= {"2-D"} if isqrt(ranks) ** 2 == ranks else set()
    allowed |= {"3-D"} if round(ranks ** (1 / 3)) ** 3 == ranks else set()
    return {name: seconds(work, ranks, machine) for name, seconds in LAYOUTS.items() if name in allowed}
