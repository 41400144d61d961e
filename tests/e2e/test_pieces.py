"""Whole runs with several pieces a unit, shared out over replicas or not: the digest of one worker with as many pieces."""

from pathlib import Path

from tests.e2e.runs import THREE_REPLICAS, Ended, Running, Workshop, json_lines, slowed


def saved_model(ended: Ended) -> bytes:
    """Return the bytes of the weights that plain transformers loads."""
    return (ended.folder / "model" / "model.safetensors").read_bytes()


def reshape(workshop: Workshop, running: Running, options: str, words: str, asked: tuple[str, int, str]) -> None:
    """Give `frostline reshape` and wait for a step in what was asked for.

    Args:
        workshop, running: the run and who started it.
        options: of the command.
        words: how its answer says what was asked for.
        asked: the schedule, the pipeline's depth and the shares of the plan.
    """
    said = workshop.command("reshape", str(running.folder), *options.split())
    assert said.returncode == 0 and f"reshape to {words} when it is prepared" in said.stdout, said

    def generations() -> set[str]:
        plans = [line for line in json_lines(running.folder / "plans.jsonl") if line["kind"] == "plan"]
        ways = {
            "{incarnation}.{counter}".format(**plan["generation"]): (
                plan["placement"]["schedule"], plan["placement"]["degrees"]["pp"], plan["placement"]["shard"]
            )
            for plan in plans
        }  # fmt: skip
        return {name for name, way in ways.items() if way == asked}

    before = running.step
    records = running.folder / "metrics.jsonl"
    running.wait_until(
        lambda: any(one.get("step", 0) > before and one["generation"] in generations() for one in json_lines(records)), words
    )


def test_pieces_and_shares_survive_kills_a_controller_and_a_resume_and_end_with_the_same_model(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """Three replicas share out their state, from step 6 on their weights too; a worker dies, later the controller; then each owns
    all pieces for a while; commands ask for a schedule that splits the backward, and for shares again; then all stop and go on
    from a checkpoint of pieces, on fewer workers.
    """
    alone = workshop.run(tmp_path / "alone", {"training": {"state_ranges": 3}}, "--workers", "1")
    assert alone.digest != one_worker.digest, "it is over other pieces"
    changes = {
        "training": {"state_ranges": 3},
        "placement": {"shard": "step", **THREE_REPLICAS},
        "checkpoint": {"every_steps": 10},
        "reshapes": [
            {"step": 6, "pp_degree": 1, "dp_degree": 3, "shard": "use"},
            {"step": 26, "pp_degree": 1, "dp_degree": 2, "shard": "none"},
        ],
        "faults": [
            *slowed(1, 0.1, workers=3),  # so that the reshape of step 6 is prepared by then
            {"kind": "kill_worker", "step": 15, "worker": 1, "phase": "schedule"},
            {"kind": "kill_controller", "step": 22, "phase": "step"},
            *slowed(33, 0.5, workers=2),  # so that the run has not completed before it is asked to stop
            *slowed(53, 1.5, workers=2),  # on a machine that needs longer; not in the resumed run
        ],
    }
    folder = tmp_path / "pieces"
    running = workshop.start(folder, changes, "--workers", "3")
    running.wait_for_step(33)
    refused = workshop.command("reshape", str(folder), "--pp", "2", "--dp", "1", "--slices", "2")
    assert (refused.returncode, "slices is 2 and training.token_cells makes 1 cells" in refused.stderr) == (2, True), refused
    reshape(workshop, running, "--pp 2 --dp 1 --schedule zb_h1", "pp 2 x dp 1, schedule zb_h1", ("zb_h1", 2, "step"))
    reshape(workshop, running, "--pp 1 --dp 2 --shard use", "pp 1 x dp 2, shard use", ("1f1b", 1, "use"))
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    placed = [plan["placement"] for plan in drained.plans]
    assert any(one["shard"] == "use" and one["degrees"]["dp"] == 3 for one in placed), "weights were gathered at each use"
    assert any(one["shard"] == "step" and one["degrees"]["dp"] == 3 for one in placed), "state was shared out"
    ended = workshop.resume(folder, "--workers", "2", "--set", "placement.dp_degree=2", "--set", "faults=[]")
    assert (ended.digest, ended.numerics) == (alone.digest, alone.numerics)
    assert saved_model(ended) == saved_model(alone)
    files = {path.name for path in (folder / "checkpoints").rglob("unit-000.*.safetensors")}
    assert files == {f"unit-000.{place}.safetensors" for place in range(3)}
    checked = workshop.command("verify", str(folder), "--steps", "1,20,45,60")
    assert checked.returncode == 0, checked.stdout + checked.stderr
