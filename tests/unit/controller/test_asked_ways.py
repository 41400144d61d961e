"""A command for a shape may ask for what the job's `reshapes` can: it is planned so, or refused before anything is prepared."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.job.cluster import ScheduledReshape
from frostline_contract.plan import Placement
from frostline_controller.cli.arguments import build_parser
from frostline_controller.cli.steer import reshape_fields
from frostline_controller.run.commands import WAYS
from frostline_controller.run.pinned import PinnedShape
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.errors import InvalidRequest
from tests.unit.controller.test_asked_shapes import job, not_made
from tests.unit.controller.test_service_sizing import Stage, first_plan, leading

WHOLE = {"steps": 64, "batch_size": 32, "micro_batch_size": 4, "reduction_leaves": 8}
CELLS = {**WHOLE, "token_cells": 4}
SHARED = {**WHOLE, "state_ranges": 2}
TILES = {**WHOLE, "tensor_tiles": {"inner": 2, "rows": 2}}
DEEP = {**WHOLE, "tensor_tiles": {"inner": 2, "hidden": 2}}
LANGUAGE = {"task": {"kind": "language_modeling"}, "model": {"family": "gpt2"}, "data": {"source": "stdlib-text"}}
"""Six units, eight micro-batches of four samples; by what a run must have begun with: cells, ranges, tiles."""


def of(training: dict[str, Any]) -> dict[str, Any]:
    placement = {**job()["placement"], "workers": 4}
    return {**job(), "placement": placement, "training": training, **(LANGUAGE if training == CELLS else {})}


async def answer(stage: Stage, pp: int, dp: int, tp: int = 1, depth: int = 1, **ways: Any) -> str:
    request = pb.CommandRequest(kind="reshape", degrees={"pp": pp, "dp": dp, "tp_columns": tp, "tp_depth": depth}, **ways)
    accepted = asyncio.create_task(stage.controller.commands.accept(request))
    await stage.until(accepted.done, "the command is durable or refused")
    return await accepted


def test_a_reshape_asks_for_what_was_given_and_no_more() -> None:
    words = "--pp 2 --dp 1 --schedule interleaved_1f1b --virtual-stages 2 --slices 3 --shard step --tensor-rows whole --tp 2"
    words += " --tp-depth 4"
    ways = {"schedule": "interleaved_1f1b", "virtual_stages": 2, "slices": 3, "shard": "step", "tensor_rows": "whole"}
    read = build_parser().parse_args
    degrees = {"pp": 2, "dp": 1, "tp_columns": 2, "tp_depth": 4}
    assert reshape_fields(read(["reshape", "runs/x", *words.split()])) == {"degrees": degrees, **ways}
    assert reshape_fields(read(["reshape", "runs/x", "--pp", "2", "--dp", "1"])) == {
        "degrees": {"pp": 2, "dp": 1, "tp_columns": 1, "tp_depth": 1}
    }
    assert ScheduledReshape.model_fields.keys() - {"step", "pp_degree", "dp_degree", "tp_degree", "tp_depth"} == ways.keys()


@pytest.mark.parametrize(
    ("training", "degrees", "ways", "placed"),
    [
        (WHOLE, (2, 1), {"schedule": "zb_h1"}, {"schedule": "zb_h1"}),
        (WHOLE, (2, 1), {"schedule": "zb_v"}, {"schedule": "zb_v", "virtual_stages": 2}),
        (WHOLE, (2, 1), {"schedule": "interleaved_1f1b", "virtual_stages": 2}, {"virtual_stages": 2}),
        (CELLS, (2, 1), {"slices": 2}, {"slices": (2, 2), "schedule": "1f1b"}),
        (SHARED, (1, 2), {"shard": "step"}, {"shard": "step"}),
        (TILES, (1, 1, 2), {"tensor_rows": "split"}, {"tensor_rows": "split"}),
        (DEEP, (1, 1, 1, 2), {}, {"degrees": {"dp": 1, "pp": 1, "tp_depth": 2}}),
        (DEEP, (1, 1, 2, 2), {}, {"degrees": {"dp": 1, "pp": 1, "tp_columns": 2, "tp_depth": 2}}),
    ],
)
def test_a_plan_has_what_the_command_asked_for(
    training: dict[str, Any], degrees: tuple[int, ...], ways: dict[str, Any], placed: dict[str, Any], tmp_path: Path
) -> None:
    async def story() -> None:
        async with leading(tmp_path, **of(training)) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            said = await answer(stage, *degrees, **ways)
            assert all(f"{name} {value}" in said for name, value in ways.items()), said
            plan = await stage.until(lambda: stage.facts.state.prepared, "its plan")
            assert {name: getattr(plan.placement, name) for name in placed} == placed
            assert said.removesuffix(" when it is prepared").removeprefix("reshape to ") in stage.facts.state.pinned.open_request

    asyncio.run(story())


def test_another_way_in_the_same_degrees_is_another_request(tmp_path: Path) -> None:
    """Of two commands that differ only in the schedule, the second overtakes the first and is made."""

    async def story() -> None:
        async with leading(tmp_path, **of(WHOLE)) as stage:
            await first_plan(stage, 0, 1)
            await answer(stage, 2, 1)
            await stage.until(lambda: stage.facts.state.prepared, "the first plan")
            await answer(stage, 2, 1, schedule="zb_h1")
            overtaken = "not made, overtaken by reshape by command: pp 2 x dp 1, schedule zb_h1"
            await stage.reported("command", overtaken)
            assert len(not_made(stage)) == 1
            first = stage.facts.state.prepared
            await stage.enter(first, 6)
            assert stage.facts.state.pinned.open_request, "the same degrees with another schedule answer nothing"
            await stage.until(
                lambda: (plan := stage.facts.state.prepared) is not None and plan.placement.schedule == "zb_h1", "the second"
            )

    asyncio.run(story())


REFUSED: list[tuple[dict[str, Any], tuple[int, ...], dict[str, Any], str]] = [
    (WHOLE, (2, 1), {"schedule": "zigzag"}, "schedule is 'zigzag'; known: gpipe, 1f1b"),
    (WHOLE, (2, 1), {"schedule": "interleaved_1f1b"}, "virtual_stages is 1 and schedule is interleaved_1f1b"),
    (WHOLE, (2, 1), {"virtual_stages": 2}, "virtual_stages is 2 and schedule is 1f1b, whose ranks have one stage"),
    (WHOLE, (2, 1), {"schedule": "zb_v", "virtual_stages": 3}, "virtual_stages is 3 and schedule is zb_v, whose ranks have two"),
    (WHOLE, (1, 2), {"schedule": "v_min"}, "with pp_degree 1: one rank has nothing to interleave with; raise pp_degree"),
    (WHOLE, (2, 1), {"virtual_stages": -1}, "virtual_stages is -1: Input should be greater than or equal to 1"),
    (WHOLE, (2, 1), {"schedule": "interleaved_1f1b", "virtual_stages": 4}, "4 stages a rank, exceeds the 6 trainable units"),
    ({**WHOLE, "batch_size": 8, "reduction_leaves": 2}, (3, 1), {"schedule": "interleaved_1f1b", "virtual_stages": 2},
     "a replica has 2 micro-batches for pp_degree 3: it needs at least 3, in rounds of one size"),
    ({**WHOLE, "batch_size": 8, "reduction_leaves": 2}, (3, 1), {}, "2 micro-batches for pp_degree 3"),
    (WHOLE, (2, 1), {"slices": 2}, "slices is 2 and training.token_cells makes 1 cells"),
    (CELLS, (2, 1), {"slices": 5}, "slices is 5 and training.token_cells makes 4 cells"),
    (CELLS, (1, 2), {"slices": 2}, "slices is 2 and pp_degree is 1: nobody follows; leave slices out"),
    (WHOLE, (1, 2), {"shard": "step"}, "shard is step and training.state_ranges is 1"),
    (SHARED, (1, 3), {"shard": "use"}, "dp_degree 3 exceeds training.state_ranges 2 with placement.shard use"),
    (WHOLE, (1, 2), {"shard": "all"}, "shard is 'all': Input should be 'none', 'step' or 'use'"),
    (WHOLE, (1, 1, 2), {}, "tp_degree 2 exceeds training.tensor_tiles.inner 1: each worker needs a tile; raise inner"),
    (TILES, (1, 1, 1, 2), {}, "tp_depth 2 exceeds training.tensor_tiles.hidden 1: each worker needs a tile; raise hidden"),
    (DEEP, (1, 1, 1, 3), {}, "tp_depth is 3; only powers of two share the tiles of a block"),
    (DEEP, (1, 1, 2, 2), {}, "shape tp_depth 2 x tp_columns 2 x pp 1 x dp 1 needs 4 workers, 3 are there"),
    ({**WHOLE, "tensor_tiles": {"inner": 2}}, (1, 1, 2), {"tensor_rows": "split"},
     "tp_degree 2 exceeds training.tensor_tiles.rows 1"),
]  # fmt: skip


@pytest.mark.parametrize(("training", "degrees", "ways", "words"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_prepared(
    training: dict[str, Any], degrees: tuple[int, ...], ways: dict[str, Any], words: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with leading(tmp_path, **of(training)) as stage:
            await first_plan(stage, 0, 1, 2)
            with pytest.raises(InvalidRequest) as refused:
                await answer(stage, *degrees, **ways)
            assert words in str(refused.value)
            assert (stage.facts.state.pinned, stage.facts.state.prepared) == (None, None)

    asyncio.run(story())


def test_a_pinned_shape_is_a_reshapes_with_all_its_ways() -> None:
    ways = {"schedule": "gpipe", "virtual_stages": 2, "slices": 2, "shard": "use", "tensor_rows": "split"}
    pinned = PinnedShape.of(ScheduledReshape(step=3, pp_degree=2, dp_degree=1, **ways), 4, "asked", from_step=3)
    assert {name: getattr(pinned, name) for name in WAYS} == ways
    placement = Placement(
        degrees={"dp": 1, "pp": 2}, stage_bounds=(0, 1, 2), leaf_bounds=(0, 8), workers=("a", "b"), schedule="gpipe",
        slices=(1, 1), shard="use", tensor_rows="split",
    )  # fmt: skip
    assert pinned.is_in(placement)
    for other in ({"schedule": "1f1b"}, {"slices": ()}, {"shard": "step"}, {"tensor_rows": "whole"}):
        assert not pinned.is_in(placement.model_copy(update=other)), other
    assert PinnedShape(degrees=placement.degrees, schedule="auto").is_in(placement)
