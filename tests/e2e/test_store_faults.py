"""Faults of a run's stores: speed changes, results do not, and the last complete checkpoint is found."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from frostline_contract.pieces import Pieces
from frostline_controller.run.epochs import current_epoch
from frostline_trainer.checkpoints.reading import complete_checkpoints, load_piece
from tests.e2e.runs import THREE_REPLICAS, Ended, Running, Workshop, slowed

STOPPED_SECONDS = 2.0


def hold(running: Running, name: str) -> psutil.Process:
    """SIGSTOP a service of the run, which then exists and does not answer."""
    (process,) = [
        child for child in psutil.Process(running.process.pid).children(recursive=True) if name in " ".join(child.cmdline())
    ]
    process.send_signal(signal.SIGSTOP)
    return process


def test_hung_stores_change_nothing_but_speed(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    # Slow steps, so that the run goes on for longer than each of the two is held.
    changes = {"faults": [*slowed(14, 0.2, workers=2), *slowed(34, 0.2, workers=2)]}
    running = workshop.start(tmp_path / "run", changes, "--workers", "2")
    running.wait_for_step(14)
    redis = hold(running, "redis-server")
    held, step = time.monotonic(), running.step
    running.wait_until(lambda: time.monotonic() > held + STOPPED_SECONDS and running.step > step, "steps while Redis is held")
    redis.send_signal(signal.SIGCONT)
    running.wait_for_step(28)
    server = hold(running, "frostline_cache_server")
    time.sleep(STOPPED_SECONDS)
    server.kill()
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert {record["lineage"] for record in ended.records} == {0}


@pytest.mark.wide
def test_a_writer_killed_in_a_checkpoint_costs_no_checkpoint_that_was_whole(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """The publisher dies in the middle of its share, another member later on in its own; each comes back."""
    changes = {
        "faults": [
            {"kind": "kill_in_checkpoint", "step": 15, "worker": 0},
            {"kind": "kill_in_checkpoint", "step": 35, "worker": 1},
            # Slow steps at the end: a slow disk takes each of the last checkpoints, and leaves none out.
            {"kind": "slow", "step": 40, "worker": 2, "seconds": 0.2},
        ],
        "checkpoint": {"every_steps": 5, "keep_last": 3},
        "placement": THREE_REPLICAS,
    }
    ended = workshop.run(tmp_path / "run", changes, "--workers", "3")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert [ended.fault(index)["step"] >= step for index, step in enumerate((15, 35))] == [True, True]
    root = ended.folder / "checkpoints"
    found = complete_checkpoints(root)
    assert [manifest["step"] for _, manifest in found][-3:] == [50, 55, 60]
    for folder, manifest in found:
        table = Pieces(manifest["num_units"])
        for piece in range(table.count):
            assert load_piece(folder, manifest, table, piece)
    assert found[-1][1]["digest"] == ended.digest
    assert list(ended.folder.rglob("*.partial")) == []
    assert [folder for folder in root.glob("*/*/*") if not (folder / "manifest.json").exists()] == []
    result = current_epoch(root).result
    assert result is not None and result["digest"] == ended.digest, "the result was claimed before it was told"
