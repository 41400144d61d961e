"""The published layouts of tensor parallelism have one worker's bits on one grid, and send what the planner's formula says."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from frostline_contract.usage import Way
from frostline_controller.planner.tensor.traffic import FEED_FORWARD, Axes, Product, traffic
from frostline_trainer.transport.collectives import Group, connect_store, open_store
from frostline_trainer.transport.traffic import Tally, Traffic
from tests.tensor_layouts.layouts import LAYOUTS, ProductPlan, Split, TensorLayout, box
from tests.tensor_layouts.products import Grid, ShardedProduct, blocks, input_gradient, product, weight_gradient

ROWS, HIDDEN, INNER = 32, 32, 64
GRID = Grid(rows=4, inputs=4, outputs=4)
SECONDS = timedelta(seconds=120)


class Results(NamedTuple):
    """Results of a feed-forward without an activation function: of the whole, or of one rank."""

    inner: Tensor
    output: Tensor
    of_entry: Tensor
    of_first: Tensor
    of_second: Tensor


def drawn(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return an entry, the two weights, and the output's gradient."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((ROWS, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN), (ROWS, HIDDEN))
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)  # type: ignore[return-value]


def alone(dtype: torch.dtype) -> Results:
    """Return the results of one worker on the grid."""
    x, first, second, gradient = drawn(dtype)
    in_x, in_first, in_second, in_gradient = (blocks(one, 4, 4) for one in (x, first, second, gradient))
    inner = product(in_x, in_first)
    in_inner = blocks(inner, 4, 4)
    of_inner = input_gradient(in_gradient, in_second)
    in_of_inner = blocks(of_inner, 4, 4)
    return Results(
        inner, product(in_inner, in_second), input_gradient(in_of_inner, in_first),
        weight_gradient(in_x, in_of_inner), weight_gradient(in_inner, in_gradient),
    )  # fmt: skip


def on_ranks(layout: TensorLayout, dtype: torch.dtype, keeps_copies: bool) -> list[tuple[Results, dict[str, float]]]:
    """Return by rank its results, and the elements that it received by axis; each rank is a thread with sockets of its own."""
    server, port = open_store()
    up, down = ProductPlan.of(layout.hidden, layout.inner), ProductPlan.of(layout.inner, layout.hidden)
    x, first, second, gradient = drawn(dtype)

    def run(global_rank: int) -> tuple[Results, dict[str, float]]:
        store = server if global_rank == 0 else connect_store("127.0.0.1", port, SECONDS)
        counted = {axis: Traffic() for axis, _ in layout.degrees}
        groups = {}
        for axis, degree in layout.degrees:
            line = layout.mesh.line(global_rank, axis)
            tally = Tally(counted[axis], Way.OTHER)
            groups[axis] = Group(store, f"{axis}{line[0]}", line.index(global_rank), degree, "gloo", SECONDS, tally=tally)

        def of(matrix: Tensor, split: Split) -> Tensor:
            return layout.part(matrix, global_rank, split.rows, split.columns)

        def weight(matrix: Tensor, plan: ProductPlan) -> Tensor:
            return layout.part(matrix, global_rank, (plan.summed, plan.divided), plan.outputs)

        try:
            one = ShardedProduct(layout, up, groups, GRID, weight(first, up), keeps_copies)
            two = ShardedProduct(layout, down, groups, GRID, weight(second, down), keeps_copies)
            inner = one.forward(of(x, layout.hidden))
            output = two.forward(inner)
            of_inner, of_second = two.backward(of(gradient, layout.hidden))
            of_entry, of_first = one.backward(of_inner)
            size = x.element_size()
            received = {axis: one.so_far()[1].get(Way.OTHER, 0) / size for axis, one in counted.items()}
            return Results(inner, output, of_entry, of_first, of_second), received
        finally:
            for group in groups.values():
                group.close()

    with ThreadPoolExecutor(layout.mesh.size) as threads:
        return list(threads.map(run, range(layout.mesh.size)))


def differences(layout: TensorLayout, found: list[tuple[Results, dict[str, float]]], expected: Results) -> list[str]:
    """Return the results of ranks whose bits are not those of one worker."""
    up, down = ProductPlan.of(layout.hidden, layout.inner), ProductPlan.of(layout.inner, layout.hidden)
    wrong = []
    for global_rank, (results, _) in enumerate(found):
        parts = Results(
            layout.part(expected.inner, global_rank, layout.inner.rows, layout.inner.columns),
            layout.part(expected.output, global_rank, layout.hidden.rows, layout.hidden.columns),
            layout.part(expected.of_entry, global_rank, layout.hidden.rows, layout.hidden.columns),
            layout.part(expected.of_first, global_rank, (up.summed, up.divided), up.outputs),
            layout.part(expected.of_second, global_rank, (down.summed, down.divided), down.outputs),
        )
        named = zip(Results._fields, parts, results, strict=True)
        wrong += [f"rank {global_rank}: {name}" for name, part, own in named if not torch.equal(part, own)]
    return wrong


SMALL = [(name, 2) for name in LAYOUTS] + [("1-D", 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "side"), SMALL)
def test_a_layout_has_the_bits_of_one_worker_on_the_same_grid(name: str, side: int, dtype: torch.dtype) -> None:
    layout = LAYOUTS[name](side)
    assert differences(layout, on_ranks(layout, dtype, keeps_copies=True), alone(dtype)) == []


@pytest.mark.parametrize("keeps_copies", [True, False], ids=["kept copies", "a second gather"])
@pytest.mark.parametrize(("columns", "depth", "replicas"), [(2, 2, 2), (4, 1, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4), (4, 2, 1)])
def test_a_box_sends_what_the_planners_formula_says(columns: int, depth: int, replicas: int, keeps_copies: bool) -> None:
    """Among them the cube: (q - 1) / q^3 (2 MK + 2 KN + 2 MN) a product, or 3 MK + 3 KN + 2 MN with a second gather."""
    layout, ratio = box(columns, depth, replicas), INNER // HIDDEN
    products = (Product(1, ratio, True), Product(ratio, 1, False))
    said = traffic(Axes(columns, depth, replicas), ROWS, HIDDEN, products, gathered_again=not keeps_copies)
    for _, received in on_ranks(layout, torch.float32, keeps_copies):
        assert received == {"j": said.columns, "l": said.depth, "i": said.replicas}


def test_1d_sends_two_all_reduces_a_pair_and_2d_gathers_and_scatters_inputs_and_weights() -> None:
    for side in (2, 4):
        for _, received in on_ranks(LAYOUTS["1-D"](side), torch.float32, keeps_copies=True):
            assert received == {"j": 2 * 2 * (side - 1) / side * ROWS * HIDDEN}
            assert received["j"] == traffic(Axes(columns=side), ROWS, HIDDEN, FEED_FORWARD).total
    side = 2
    weights = 2 * 2 * (side - 1) / side**2 * HIDDEN * INNER
    inputs = 2 * (side - 1) / side**2 * ROWS * (HIDDEN + INNER)
    for _, received in on_ranks(LAYOUTS["2-D"](side), torch.float32, keeps_copies=True):
        assert received == {"i": weights, "j": inputs}


def test_a_rank_of_the_cube_holds_an_eighth_of_everything() -> None:
    (results, _), *_ = on_ranks(LAYOUTS["3-D"](2), torch.float32, keeps_copies=True)
    whole = alone(torch.float32)
    assert all(own.numel() * 8 == one.numel() for own, one in zip(results, whole, strict=True))
