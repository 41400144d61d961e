"""Run directories from before shapes had named degrees are read as they are."""

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

from frostline_contract.annotations import PLAN
from frostline_controller import api
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.local_run.status import from_files
from frostline_controller.report.data import read_run
from frostline_controller.report.occupancy import occupancy
from frostline_controller.run.durable import DurableState, decode_state, encode_state
from frostline_controller.run.pinned import PinnedShape
from tests.older_runs import rewrite_as_before
from tests.unit.controller.synthetic_run import write_run


def test_an_older_run_directory_reads_the_same(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    before, shown, status = read_run(folder), occupancy(read_run(folder)), from_files(folder, "")
    metrics = api.result(folder).metrics
    assert rewrite_as_before(folder) > len(before.records)
    assert "degrees" not in (folder / "metrics.jsonl").read_text() + (folder / "plans.jsonl").read_text()
    older = read_run(folder)
    assert replace(older, run_dir=before.run_dir) == before
    assert occupancy(older) == shown
    assert from_files(folder, "") == status
    assert api.result(folder).metrics == metrics
    assert metrics[0]["degrees"] == {"dp": 1, "pp": 4}


def test_the_last_status_of_an_older_run_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    shape = {"pp_degree": 1, "dp_degree": 4, "virtual_stages": 1, "schedule": "1f1b", "use_cache": True, "stage_bounds": [0, 8]}
    (folder / "status.json").write_text(json.dumps({"version": 1, "saved_at": 1.0, "shape": shape}))
    assert from_files(folder, "")["shape"]["degrees"] == {"dp": 4, "pp": 1}


def test_an_older_durable_state_reads_the_same(tmp_path: Path) -> None:
    plan = read_run(write_run(tmp_path / "run")).plans[1].plan
    count = len(plan.participants)
    plan = plan.model_copy(update={"source_indices": (count - 1,) * 8, "buddy_indices": (0, -1) * 4, "uncovered": (1,)})
    pinned = PinnedShape(degrees={"dp": 2, "pp": 2}, freeze_point=3)
    states = [
        DurableState(incarnation=2, current=plan, prepared=plan, pinned=pinned, start_degrees={"dp": 1, "pp": 4}),
        DurableState(incarnation=1),
    ]
    for state in states:
        backend = LocalBackend(tmp_path / f"run{state.incarnation}" / "cluster")
        backend.patch_annotations({PLAN: encode_state(state)}, {})
        renamed = rewrite_as_before(tmp_path / f"run{state.incarnation}")
        text = LocalBackend(tmp_path / f"run{state.incarnation}" / "cluster").read().annotations[PLAN]
        written = zlib.decompress(base64.b64decode(text)).decode()
        assert "_indices" not in written and ('"buddies"' in written) == bool(state.current)
        assert renamed == (4 if state.current else 0)
        assert decode_state(text) == state
