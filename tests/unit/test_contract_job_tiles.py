"""The job file's mistakes about cells, tiles and shared-out state: each is named with its value and a remedy."""

import pytest

from tests.unit.test_contract_job import mistakes_of

MISTAKES = [
    (
        "weights of compiled units gathered at each use",
        ["placement.shard=use", "training.state_ranges=4", "training.compile=true"],
        ["placement.shard is use and training.compile is true", "set shard to step"],
    ),
    (
        "weights gathered for each cell",
        [
            "task.kind=language_modeling",
            "training.state_ranges=4",
            "training.token_cells=4",
            'reshapes=[{"step": 3, "pp_degree": 1, "dp_degree": 2, "shard": "use"}]',
        ],
        ["reshapes.0.shard is use and training.token_cells is 4", "set shard to step"],
    ),
    (
        "state shared out over more replicas than ranges",
        ["placement.shard=step", "training.state_ranges=4", "placement.dp_degree=6", "placement.workers=6"],
        ["placement.dp_degree 6 exceeds training.state_ranges 4 with placement.shard step", "raise state_ranges in a new run"],
    ),
    (
        "a reshape over more replicas than ranges",
        ["training.state_ranges=2", 'reshapes=[{"step": 3, "pp_degree": 1, "dp_degree": 4, "shard": "step"}]'],
        ["reshapes.0.dp_degree 4 exceeds training.state_ranges 2 with placement.shard step"],
    ),
    ("state in one range shared out", ["placement.shard=step"], ["placement.shard is step and training.state_ranges is 1"]),
    (
        "library's sums shared out",
        ["placement.shard=step", "training.state_ranges=4", "training.numerics=fast"],
        ["placement.shard is step and training.numerics is fast"],
    ),
    ("path and hub", ["model.path=a", "model.hub=b"], ["path is 'a' and hub is 'b'; give one of them"]),
    ("more workers needed than there are", ["placement.pp_degree=3", "placement.dp_degree=2"], ["= 6 exceeds workers 4"]),
    ("min_workers above workers", ["placement.min_workers=9"], ["min_workers 9 exceeds workers 4"]),
    (
        "more replicas than leaves",
        ["placement.dp_degree=9", "placement.workers=9"],
        ["placement.dp_degree 9 exceeds training.reduction_leaves 8; raise reduction_leaves"],
    ),
    (
        "chunks of a loss that has no tokens",
        ["training.loss_chunk_tokens=64"],
        ["training.loss_chunk_tokens is 64 and task.kind is", "which has no loss a token; set it to 0"],
    ),
    (
        "cells of a task that is not per token",
        ["training.token_cells=4"],
        ["training.token_cells is 4 and task.kind is", "which is not per token; set it to 1"],
    ),
    ("no cell", ["training.token_cells=0"], ["token_cells is 0; give a number of cells from 1 on"]),
    ("an empty cell", ["training.token_cells=[8, 0]"], ["token_cells is (8, 0)", "lengths from 1 on"]),
    (
        "cells and chunks",
        ["training.token_cells=[8, 8]", "training.loss_chunk_tokens=4"],
        ["loss_chunk_tokens is 4", "cell by cell already: set loss_chunk_tokens to 0"],
    ),
    (
        "cells and adapters",
        ["task.kind=language_modeling", "training.token_cells=2", "model.adapters={blocks: all, targets: [c_attn]}"],
        ["training.token_cells is 2 and model.adapters is given", "set token_cells to 1"],
    ),
    ("compiled cells", ["training.token_cells=2", "training.compile=true"], ["compile is true; cells are not compiled"]),
    ("tiles that make no tree", ["training.tensor_tiles.inner=3"], ["tensor_tiles", "inner is 3; it must be a power of two"]),
    ("hidden tiles that make no tree", ["training.tensor_tiles.hidden=6"], ["hidden is 6; it must be a power of two"]),
    (
        "hidden tiles and a vocabulary's",
        ["training.tensor_tiles={inner: 2, hidden: 2, vocabulary: true}"],
        ["hidden is 2 and vocabulary is true", "set vocabulary to false, or hidden to 1"],
    ),
    (
        "hidden tiles and row tiles",
        ["training.tensor_tiles={inner: 2, hidden: 2, rows: 2}"],
        ["hidden is 2 and rows is 2", "set rows to 1, or hidden to 1"],
    ),
    (
        "hidden tiles and adapters",
        ["training.tensor_tiles.hidden=2", "model.adapters={blocks: all}"],
        ["training.tensor_tiles.hidden is 2 and model.adapters is given", "set hidden to 1"],
    ),
    (
        "compiled hidden tiles",
        ["training.tensor_tiles.hidden=2", "training.compile=true"],
        ["tensor_tiles.hidden is 2 and compile is true; tiles are not compiled"],
    ),
    (
        "more levels than hidden tiles",
        ["training.tensor_tiles={inner: 2, hidden: 2}", "placement.tp_depth=4"],
        ["placement.tp_depth 4 exceeds training.tensor_tiles.hidden 2", "raise hidden in a new run or lower placement.tp_depth"],
    ),
    (
        "a reshape to more levels than hidden tiles",
        ['reshapes=[{"step": 3, "pp_degree": 1, "dp_degree": 1, "tp_depth": 2}]'],
        ["reshapes.0.tp_depth 2 exceeds training.tensor_tiles.hidden 1"],
    ),
    (
        "more workers in a group than there are",
        ["training.tensor_tiles={inner: 4, hidden: 2}", "placement.tp_degree=4", "placement.tp_depth=2"],
        ["pp_degree x dp_degree x tp_degree x tp_depth = 8 exceeds workers 4"],
    ),
    ("row tiles that make no tree", ["training.tensor_tiles={inner: 4, rows: 3}"], ["rows is 3; it must be a power of two"]),
    (
        "more row tiles than workers of a group",
        ["training.tensor_tiles={inner: 2, rows: 4}"],
        ["rows is 4 and inner is 2; no group of workers is larger than inner"],
    ),
    (
        "row tiles that do not divide a micro-batch",
        ["training.tensor_tiles={inner: 4, rows: 4}", "training.micro_batch_size=6"],
        ["tensor_tiles.rows is 4 and micro_batch_size is 6; row tiles are equal parts", "to a multiple of 4"],
    ),
    (
        "row tiles of a size that is yet to be found",
        ["training.tensor_tiles={inner: 2, rows: 2}", "training.micro_batch_size=auto"],
        ["tensor_tiles.rows is 2 and micro_batch_size is auto"],
    ),
    (
        "a group that divides fewer row tiles than workers",
        ["training.tensor_tiles={inner: 4, rows: 2}", "placement.tp_degree=4", "placement.tensor_rows=split"],
        [
            "placement.tp_degree 4 exceeds training.tensor_tiles.rows 2 with placement.tensor_rows split",
            "set tensor_rows to whole",
        ],
    ),
    (
        "a group with levels that divides samples",
        ["training.tensor_tiles={inner: 2, hidden: 2}", "placement.tp_depth=2", "placement.tensor_rows=split"],
        [
            "placement.tp_depth is 2 and placement.tensor_rows is split; members of a group with levels have all samples",
            "set tensor_rows to whole, or placement.tp_depth to 1",
        ],
    ),
    (
        "a reshape to levels that divide samples",
        [
            "training.tensor_tiles={inner: 2, hidden: 2}",
            'reshapes=[{"step": 3, "pp_degree": 1, "dp_degree": 1, "tp_degree": 2, "tp_depth": 2, "tensor_rows": "split"}]',
        ],
        ["reshapes.0.tp_depth is 2 and", "set tensor_rows to whole, or reshapes.0.tp_depth to 1"],
    ),
    (
        "compiled tiles",
        ["training.tensor_tiles.inner=2", "training.compile=true"],
        ["tensor_tiles.inner is 2 and compile is true; tiles are not compiled"],
    ),
    (
        "row tiles and adapters",
        ["training.tensor_tiles={inner: 2, rows: 2}", "model.adapters={blocks: all}"],
        ["training.tensor_tiles.rows is 2 and model.adapters is given", "set rows to 1"],
    ),
    (
        "more slices than cells",
        ["placement.slices=2"],
        ["placement.slices is 2 and training.token_cells makes 1 cells", "lower it or raise token_cells"],
    ),
]


@pytest.mark.parametrize(("overrides", "words"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_what_cannot_be_divided_so_is_named_with_value_and_remedy(overrides: list[str], words: list[str]) -> None:
    text = mistakes_of(overrides)
    assert text.startswith("my.yaml: 1 mistake(s)")
    assert [part for part in words if part not in text] == [], text


OF_CELLS = ("no cell", "an empty cell", "cells and chunks", "compiled cells")


@pytest.mark.parametrize("name", OF_CELLS)
def test_mistakes_about_cells_are_named_also_while_micro_batch_size_is_to_be_settled(name: str) -> None:
    ((overrides, words),) = [case[1:] for case in MISTAKES if case[0] == name]
    texts = [mistakes_of([*overrides, f"training.micro_batch_size={size}"]) for size in ("8", "auto")]
    assert texts[0] == texts[1] and all(part in texts[1] for part in words), texts
