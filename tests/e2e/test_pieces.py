"""Whole runs whose units' state is in several pieces: the model that comes out is the one of a run with one piece a unit."""

from pathlib import Path

from tests.e2e.runs import Ended, Workshop


def saved_model(ended: Ended) -> bytes:
    """The bytes of the weights that plain transformers loads."""
    return (ended.folder / "model" / "model.safetensors").read_bytes()


def test_pieces_survive_a_kill_a_controller_and_a_resume_and_end_with_the_same_model(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """A worker dies, later the controller; then all stop and go on from a checkpoint of pieces, on other workers."""
    changes = {
        "training": {"state_ranges": 3},
        "checkpoint": {"every_steps": 10},
        "faults": [
            {"kind": "kill_worker", "step": 15, "worker": 1, "phase": "schedule"},
            {"kind": "kill_controller", "step": 22, "phase": "step"},
        ],
    }
    folder = tmp_path / "pieces"
    running = workshop.start(folder, changes, "--workers", "3")
    running.wait_for_step(33)
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    ended = workshop.resume(folder, "--workers", "2")
    assert ended.digest != one_worker.digest, "it is over other pieces"
    assert ended.numerics == one_worker.numerics
    assert saved_model(ended) == saved_model(one_worker)
    files = {path.name for path in (folder / "checkpoints").rglob("unit-000.*.safetensors")}
    assert files == {f"unit-000.{place}.safetensors" for place in range(3)}
    checked = workshop.command("verify", str(folder), "--steps", "1,20,45,60")
    assert checked.returncode == 0, checked.stdout + checked.stderr
