"""The exactness tests of cells, tiles, groups, shared state and adapters, on this machine's devices."""

from collections.abc import Sequence
from dataclasses import replace

from tests.exact_cases import Case
from tests.gpu_check.determinism import accepted
from tests.gpu_check.digests import prepare
from tests.gpu_check.parting import parting
from tests.gpu_check.setting import Setting
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration import (
    test_exactness_adapters,
    test_exactness_adapters_in_tiles,
    test_exactness_cells,
    test_exactness_depth,
    test_exactness_row_tiles,
    test_exactness_tensor_groups,
    test_exactness_tensor_tiles,
    test_exactness_vocabulary_tiles,
    test_sharding,
)
from tests.warm_workers import WarmWorkers

Row = tuple[Case, Layout]

TABLES: dict[str, Sequence[Row]] = {
    "token cells": test_exactness_cells.CASES,
    "tensor tiles": test_exactness_tensor_tiles.CASES,
    "groups": test_exactness_tensor_groups.EXACT,
    "groups with levels": test_exactness_depth.EXACT,
    "divided samples": test_exactness_row_tiles.EXACT,
    "tiles of the vocabulary": test_exactness_vocabulary_tiles.CASES,
    "shared state": test_sharding.EXACT,
    "adapters": test_exactness_adapters.CASES,
    "adapters in tiles": test_exactness_adapters_in_tiles.CASES,
}
"""What `make test` computes on a CPU, row by row."""
MORE_TABLES: dict[str, Sequence[Row]] = {
    "token cells": test_exactness_cells.MORE_CASES,
    "groups": test_exactness_tensor_groups.MORE_EXACT,
    "groups with levels": test_exactness_depth.MORE_EXACT,
    "divided samples": test_exactness_row_tiles.MORE_EXACT,
    "tiles of the vocabulary": test_exactness_vocabulary_tiles.MORE,
    "shared state": test_sharding.MORE_EXACT,
    "adapters": test_exactness_adapters.SHARED,
    "adapters in tiles": test_exactness_adapters_in_tiles.MORE_CASES,
}
"""What the wide target computes besides; it comes last, as far as the time of this part goes."""


def dimensions(setting: Setting) -> None:
    """Compare every row with the oracle on the device, over gloo: losses, norms, weights and moments."""
    rows = rows_of(setting)
    setting.findings.expect([line(*row) for row in rows])
    pool, most = WarmWorkers(), max(1 + max(layout.numbers) for _, _, layout in rows)
    ready = False
    try:
        for row in rows:
            if setting.on_gpu and not ready:
                prepare(pool, most, setting.gpus)
            ready = _judge(setting, pool, *row)
    finally:
        pool.close()


def rows_of(setting: Setting) -> list[tuple[str, Case, Layout]]:
    """Return the rows to compute, as (kind, case on the device, layout)."""
    tables = [{kind: rows[:1] for kind, rows in TABLES.items()}] if setting.quick else [TABLES, MORE_TABLES]
    return [
        (kind, replace(case, device=setting.device), layout)
        for table in tables
        for kind, rows in table.items()
        for case, layout in rows
        if accepted(case.dtype, setting.device)
    ]


def line(kind: str, case: Case, layout: Layout) -> str:
    """Return a row as a statement. Cases of one table differ in numerics that a case's own text leaves out."""
    numerics = [
        f"cells {'+'.join(map(str, case.cells))}" if isinstance(case.cells, tuple) else "",
        f"tiles {case.inner_tiles} x {case.hidden_tiles}" if case.hidden_tiles > 1 else "",
        f"tiles {case.inner_tiles}" if case.inner_tiles > case.hidden_tiles == 1 else "",
        f"ranges {case.state_ranges}" if case.state_ranges > 1 else "",
        f"adapters {case.adapters}" if case.adapters else "",
        "recomputed" if case.activation_checkpointing else "",
        "untied" if case.untie_on_freeze else "",
    ]
    return f"{kind}: {case}, {', '.join(filter(None, [*numerics, str(layout)]))}: the oracle's bits"


def _judge(setting: Setting, pool: WarmWorkers, kind: str, case: Case, layout: Layout) -> bool:
    """Compute a row. Returns whether all workers are still there: the successor of a failed one is not set up."""
    whole = True
    try:
        found = parting(case, run_series(pool, case, [Segment(layout, case.steps)]))
    except (AssertionError, RuntimeError) as error:
        found, whole = str(error).strip()[-400:] or type(error).__name__, False
    setting.findings.judge(line(kind, case, layout), not found, found)
    return whole
