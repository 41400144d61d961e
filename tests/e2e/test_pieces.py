"""Whole runs with several pieces a unit, shared out over replicas or not: the digest of one worker with as many pieces."""

from pathlib import Path

from tests.e2e.runs import THREE_REPLICAS, Ended, Workshop, slowed


def saved_model(ended: Ended) -> bytes:
    """Return the bytes of the weights that plain transformers loads."""
    return (ended.folder / "model" / "model.safetensors").read_bytes()


def test_pieces_and_shares_survive_kills_a_controller_and_a_resume_and_end_with_the_same_model(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """Three replicas share out their state; a worker dies, later the controller; then each owns all pieces for a while; then all
    stop and go on from a checkpoint of pieces, on fewer workers.
    """
    alone = workshop.run(tmp_path / "alone", {"training": {"state_ranges": 3}}, "--workers", "1")
    assert alone.digest != one_worker.digest, "it is over other pieces"
    changes = {
        "training": {"state_ranges": 3},
        "placement": {"shard": "step", **THREE_REPLICAS},
        "checkpoint": {"every_steps": 10},
        "reshapes": [
            {"step": 6, "pp_degree": 1, "dp_degree": 3},
            {"step": 26, "pp_degree": 1, "dp_degree": 2, "shard": "none"},
        ],
        "faults": [
            {"kind": "kill_worker", "step": 15, "worker": 1, "phase": "schedule"},
            {"kind": "kill_controller", "step": 22, "phase": "step"},
            *slowed(33, 0.5, workers=2),  # so that the run has not completed before it is asked to stop
        ],
    }
    folder = tmp_path / "pieces"
    running = workshop.start(folder, changes, "--workers", "3")
    running.wait_for_step(33)
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    placed = [plan["placement"] for plan in drained.plans]
    assert any(one["shard"] == "step" and one["degrees"]["dp"] == 3 for one in placed), "state was shared out"
    ended = workshop.resume(folder, "--workers", "2", "--set", "placement.dp_degree=2")
    assert (ended.digest, ended.numerics) == (alone.digest, alone.numerics)
    assert saved_model(ended) == saved_model(alone)
    files = {path.name for path in (folder / "checkpoints").rglob("unit-000.*.safetensors")}
    assert files == {f"unit-000.{place}.safetensors" for place in range(3)}
    checked = workshop.command("verify", str(folder), "--steps", "1,20,45,60")
    assert checked.returncode == 0, checked.stdout + checked.stderr
