"""Measuring before a run: its folder has an owner, so that what a killed command leaves is removed by the next one."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.job.load import parse_job
from frostline_contract.scratch_folder import OWNER
from frostline_controller.cluster.local import measuring
from frostline_controller.local_run.errors import CommandError
from tests.e2e.runs import TINY_DIGITS, merged


def test_the_folder_has_an_owner_while_it_is_measured_in_and_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def measured(words: list[str], cwd: Path, **more: Any) -> "subprocess.CompletedProcess[str]":
        assert (cwd / OWNER).exists()
        assert (cwd / "asked.yaml").exists()
        seen.append(cwd)
        return subprocess.CompletedProcess(words, 1, stderr="no memory")

    monkeypatch.setattr(measuring.subprocess, "run", measured)
    job = parse_job(merged(TINY_DIGITS, {"training": {"micro_batch_size": "auto"}}))
    with pytest.raises(CommandError, match="measuring ended with code 1: no memory"):
        measuring.settled_here(job)
    assert len(seen) == 1
    assert not seen[0].exists()
