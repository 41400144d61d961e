"""Devices that fail in real workers: their state counts as lost, the others' state is used, and no bit changes."""

from pathlib import Path
from typing import Any

import pytest

from tests.hand_made_plans import Layout
from tests.integration.test_recovery_moves import Outcome, alone, assert_undisturbed, run_with_faults
from tests.warm_workers import WarmWorkers

__all__ = ["alone"]

TWO_BY_TWO = [Layout(2, 2), Layout(1, 3)]


def fault(kind: str, worker: int, step: int, phase: str) -> dict[str, Any]:
    return {"kind": kind, "step": step, "worker": worker, "phase": phase}


@pytest.mark.parametrize("phase", ["exchange", pytest.param("vote", marks=pytest.mark.wide), "commit", "recovery"])
def test_a_worker_whose_device_fails_ends_and_reports_nothing(
    phase: str, alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    step = 4 if phase == "recovery" else 5  # for a phase outside a step: the last committed step
    faults = [fault("device_error", 2, step, phase)]
    if phase == "recovery":
        faults.append(fault("raise", 2, 5, "exchange"))
    ended = run_with_faults(warm_workers, tmp_path, TWO_BY_TWO, faults, dying=[2])
    assert_undisturbed(ended, alone)
    assert "w2" not in ended.received.reports, "nothing that a sick device holds may count as intact"
    assert len(ended.survivors) == 3


def test_a_worker_without_memory_goes_on_with_what_it_has(alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    ended = run_with_faults(warm_workers, tmp_path, [Layout(2, 2)], [fault("oom", 1, 5, "exchange")])
    assert_undisturbed(ended, alone)
    assert "OutOfMemoryError: CUDA out of memory: planned fault 0" in ended.received.errors["w1"]
    assert len(ended.survivors) == 4
