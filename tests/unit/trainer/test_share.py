"""The exchange of shares: each replica ends with its elements of the tree's sum, for as many bytes as the whole sum takes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from frostline_contract.shape import deal_leaves
from frostline_trainer.step.exchange import reduce_gradients, scatter_gradients
from frostline_trainer.step.share import Run, Share, is_flat, joined
from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.state import tile_views
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.transport.collectives import Group, connect_store, open_store
from tests.simulated_members import in_threads
from tests.unit.trainer.group_threads import SECONDS
from tests.unit.trainer.test_engine_exchange import fill, filled
from tests.unit.trainer.test_engine_tree import spread
from tests.unit.trainer.test_levels import Carried

HALF, LENGTH = 512, 1024


def shares_of(replicas: int) -> list[Share]:
    """Return shares of two units, each of half the length, as even as multiples of 64 allow; packed one behind the other."""
    edges = [edge * HALF // replicas // 64 * 64 for edge in range(replicas)] + [HALF]
    found = []
    for low, high in zip(edges, edges[1:], strict=False):
        size = high - low
        runs, slices = (Run(low, high), Run(HALF + low, HALF + high)), {0: slice(0, size), 1: slice(size, 2 * size)}
        found.append(Share(tuple((run,) for run in runs), (0, size), slices, 2 * size))
    return found


@pytest.mark.parametrize(("replicas", "leaves"), [(2, 2), (2, 8), (4, 4), (3, 8)])
def test_shares_are_the_trees_sum_and_cost_no_byte_more(replicas: int, leaves: int) -> None:
    values, shares = spread(leaves, LENGTH), shares_of(replicas)
    dealt = deal_leaves(leaves, replicas)
    bounds, even = (0, *(high for _, high in dealt)), len({share.length for share in shares}) == 1
    server, port = open_store()

    def member(index: int) -> tuple[list[torch.Tensor], list[torch.Tensor], int, int]:
        store = server if index == 0 else connect_store("127.0.0.1", port, SECONDS)
        group: Any = Group(store, "flat", index, replicas, "gloo", SECONDS)
        whole, parts = (Carried(group, list(range(replicas))) for _ in range(2))
        buffers, apart = (filled(values, 0, 0, leaves, replicas) for _ in range(2))
        totals, shared, own = [], [], shares[index]
        apart.reserve(replicas * max(share.length for share in shares))
        for _ in range(2):
            fill(buffers, values, *dealt[index], leaves)
            total = reduce_gradients(buffers, whole, bounds, leaves, exact=True)  # type: ignore[arg-type]
            totals.append(total[:LENGTH].clone())
            buffers.release(total)
            fill(apart, values, *dealt[index], leaves)
            total = scatter_gradients(apart, parts, bounds, leaves, shares)  # type: ignore[arg-type]
            shared.append(torch.cat([own.view(total, part) for part in own.parts]))
            apart.release(total)
            if even:  # the weights that are gathered in place of sums
                parts.all_gather(torch.empty(replicas * own.length), torch.empty(own.length))
        group.close()
        return totals, shared, whole.elements, parts.elements

    for index, (totals, shared, whole, parts) in enumerate(in_threads(member, replicas)):
        for total, share in zip(totals, shared, strict=True):
            assert torch.equal(share, torch.cat([run.of(total) for runs in shares[index].parts for run in runs]))
        assert parts == whole if even else parts > 0


def test_runs_are_joined_over_what_alignment_leaves_between_them() -> None:
    ends = [(64, 70), (0, 60), (80, 128), (256, 300), (10, 10)]
    assert joined([Run(*one) for one in ends]) == [Run(0, 128), Run(256, 300)]
    share = Share(((Run(0, 128),), (Run(256, 300),)), (0, 128), {0: slice(0, 256)}, 256)
    flat, packed = torch.arange(512.0), torch.zeros(256)
    share.pack(flat, packed)
    assert torch.equal(share.view(packed, (Run(260, 300),)), flat[260:300]) and torch.equal(packed[:128], flat[:128])


@pytest.mark.parametrize(("low", "high"), [(0, 48), (5, 43), (16, 40), (3, 9)])
def test_a_part_of_a_tile_in_several_rows_is_packed_in_its_order(low: int, high: int) -> None:
    """Six rows of eight elements of a matrix with three tiles side by side, behind a run of another parameter, and before one."""
    flat, offset = torch.arange(400.0), 64
    tile = flat[offset : offset + 6 * 24].view(6, 24)[:, 8:16].reshape(-1)
    layer = TiledLayer(SimpleNamespace(weight=nn.Parameter(torch.empty(6, 24))), Cut(True, True), Tiles(3))  # type: ignore[arg-type]
    views = tile_views(nn.ModuleDict({"a": layer}), "a.weight", torch.empty(6, 24, device="meta"), 1, low, high)
    runs = tuple(Run.at(view, offset) for view in views)
    assert not is_flat(runs)
    share = Share(((Run(0, 60),), (Run(210, 300),), runs), (0, 64, 160), {0: slice(0, 256)}, 256)
    packed = torch.zeros(256)
    share.pack(flat, packed)
    assert torch.equal(share.view(packed, (Run(210, 300),)), flat[210:300])
    assert torch.equal(share.view(packed, runs), tile[low:high])
