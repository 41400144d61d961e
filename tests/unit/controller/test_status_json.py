"""What `frostline status --json` prints is JSON for every parser."""

import json
import math
from pathlib import Path

import pytest

from tests.unit.controller.synthetic_run import write_run
from tests.unit.controller.test_cli import end_of


def test_a_status_in_json_has_no_word_that_json_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest step was refused: its loss is no number."""
    run_dir = write_run(tmp_path / "digits", finished=False)
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    newest = {**json.loads(lines[-1]), "loss": math.nan, "refused": True}
    (run_dir / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(newest)]) + "\n")
    _, text, _ = end_of(capsys, "status", str(run_dir), "--json")
    assert "NaN" not in text and json.loads(text)["loss"] is None


def test_a_sweeps_status_in_json_has_no_word_that_json_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run has diverged: its final loss is no number."""
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": [{"figures": {"final": {"loss": math.nan, "least": -math.inf}}}]}))
    _, text, _ = end_of(capsys, "status", str(tmp_path), "--json")
    assert json.loads(text) == {"runs": [{"figures": {"final": {"loss": None, "least": None}}}]}
    assert "NaN" not in text and "Infinity" not in text
