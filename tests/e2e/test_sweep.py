"""A sweep: its runs share one cache, have the bits that each has alone, and survive a kill of the sweep, a stop, a failure."""

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from frostline_controller import api
from frostline_controller.sweep.directory import SweepDirectory
from tests.e2e.runs import FROSTLINE, TINY_DIGITS, Ended, Running, Workshop, json_lines

POINTS = "freeze.policy.points"
EARLY, TWICE = {"1": 2}, {"1": 2, "3": 4}
"""Both freeze units 0 and 1 after the same ten steps, so those have the same weights; TWICE is what `one_worker` does."""


BROKEN = ("kill_redis", "kill_cache_server")


def started(workshop: Workshop, folder: Path, *arguments: str) -> Running:
    """Start a `frostline sweep` of the tiny digits job in `folder`."""
    job = folder.with_suffix(".yaml")
    job.write_text(yaml.safe_dump(TINY_DIGITS, sort_keys=False))
    words = ["sweep", "-f", str(job), "--out", str(folder), "--no-report", *arguments]
    workshop.started.append(Running(folder, [*FROSTLINE, *words], workshop.env))
    return workshop.started[-1]


def misses(folder: Path, last_step: int = 60) -> int:
    """Return the number of boundary activations that a run has computed for lack of a cached value, up to a step."""
    return sum(line.get("cache_misses", 0) for line in json_lines(folder / "metrics.jsonl") if line.get("step", 0) <= last_step)


def test_later_runs_start_warm_and_a_killed_sweep_goes_on(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    places = SweepDirectory(tmp_path / "sweep")
    vary = ("--vary", f"{POINTS}=[{EARLY}, {TWICE}]", "--vary", "placement.workers=1,2")
    sweep = started(workshop, places.path, *vary)
    sweep.wait_until(places.holds_sweep, "sweep.json")
    runs = places.read().runs
    first, second, third, fourth = (places.run_of(run).path for run in runs)
    sweep.wait_until(lambda: json_lines(second / "metrics.jsonl")[30:], "step 30 of the second run")
    cold, warm = misses(first, 30), misses(second, 30)
    # The first run computes each of its ~500 samples and variants once; the second reads all but those of its first steps.
    assert warm < cold / 2, f"{cold} misses of the first run, {warm} of the second up to step 30"

    mine = psutil.Process(sweep.process.pid).children(recursive=True)
    sweep.process.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(mine, timeout=20)[1] == [], "nothing trains unseen"
    begun = (first / "result.json").stat().st_mtime_ns
    resumed = workshop.command("sweep", "--resume", str(places.path), "--no-report", "--side-by-side", "2")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert (first / "result.json").stat().st_mtime_ns == begun, "what has completed is not run again"
    assert "2/4  points" in resumed.stdout and "1/4  points" not in resumed.stdout

    done = api.SweepResult(places.path)
    digests = [done.result(run).digest for run in done.runs]
    assert [run.state for run in done.runs] == ["completed"] * 4
    assert digests[0] == digests[1] and digests[2:] == [one_worker.digest] * 2, "each as alone, on any number of workers"
    assert misses(third) + misses(fourth) > 0 and places.page.exists()
    assert "page " in resumed.stdout and digests[3][:12] in resumed.stdout


def test_a_run_that_fails_ends_no_other_and_ctrl_c_stops_at_checkpoints(
    one_worker: Ended, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sweep"
    sources: dict[str, Any] = {"data.source": ["nowhere", "digits"]}  # the trainer knows no such source
    slow = "{kind: slow, step: 12, seconds: 0.5}"  # so that the run has not completed before the sweep is asked to stop
    faults = f"faults=[{', '.join(f'{{kind: {kind}, step: 5}}' for kind in BROKEN)}, {slow}]"
    sweep = started(workshop, folder, "--vary", "data.source=nowhere,digits", "--set", faults)
    places = SweepDirectory(folder)
    sweep.wait_until(places.holds_sweep, "sweep.json")
    last = places.run_of(places.read().runs[1]).path
    sweep.wait_until(lambda: json_lines(last / "metrics.jsonl")[12:], "step 12 of the second run")
    sweep.interrupt()
    stopped = sweep.end()
    assert stopped.code == 3, stopped.output
    assert f"stopped with 1 of 2 run(s) to go; go on with: frostline resume {folder}" in stopped.output
    assert "failed: " in stopped.output and "nowhere" in stopped.output
    assert [stopped.output.count(f"breakage kind={kind}") for kind in BROKEN] == [1, 1], "the process of the cache breaks it"

    monkeypatch.setenv("FROSTLINE_PRELOAD", workshop.env["FROSTLINE_PRELOAD"])
    done = api.resume_sweep(folder, report=False)
    assert (done.state, [run.state for run in done.runs]) == ("failed", ["failed", "completed"])
    assert [run.values for run in done.failed] == [{field: values[0] for field, values in sources.items()}]
    assert "nowhere" in done.failed[0].message
    assert done.result(done.runs[1]).digest == one_worker.digest


def test_from_python_a_failed_run_is_told_and_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FROSTLINE_PRELOAD", raising=False)  # so the sweep starts the warm process of its runs itself
    monkeypatch.chdir(tmp_path)
    found = api.sweep(TINY_DIGITS, {"data.source": ["nowhere"], "seed": range(7, 8)}, overrides={"elastic.cache": False})
    assert found.directory == tmp_path / "runs" / "sweep-tiny"
    assert (found.state, found.failed) == ("failed", found.runs)
    assert found.runs[0].values == {"data.source": "nowhere", "seed": 7}
    assert "nowhere" in found.runs[0].message
    assert (found.directory / "cache" / "logs" / "preload.log").exists()
    assert not (found.result(found.runs[0]).directory / "logs" / "preload.log").exists()
    with pytest.raises(api.JobMistake, match="1 failed: `frostline sweep --resume"):
        api.resume_sweep(found.directory)
