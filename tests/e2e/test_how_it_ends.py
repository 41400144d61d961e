"""A run's owner, and its end: with its terminal gone, on a full disk, with services that do not start or do not answer.

Refusals before any process starts are tested in tests/unit/controller/test_run_directory.py.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import FROSTLINE, Ended, Running, Workshop, slowed, warm_preload
from tests.e2e.small_disk import SmallDisk, small_disk

AT_ONCE = 25.0
"""Seconds within which a second request to stop is obeyed on a busy machine."""

PLANTED = "import pathlib\npathlib.Path({mark!r}).write_text('executed')\nraise ImportError('a stranger')\n"


def patched(*changes: str) -> tuple[str, ...]:
    """Return a `frostline` command with some of its constants changed."""
    lines = ["import sys", *changes, "from frostline_controller.cli.main import main", "sys.exit(main())"]
    return (sys.executable, "-c", "\n".join(lines))


def test_a_run_outlives_its_terminal_has_one_owner_and_goes_on_from_anywhere(
    workshop: Workshop, one_worker: Ended, tmp_path: Path
) -> None:
    """One run: its output's reader goes, a second owner is refused, its session ends; it is resumed from another directory."""
    here, mark = tmp_path / "here", tmp_path / "mark"
    here.mkdir()
    (here / "psutil.py").write_text(PLANTED.format(mark=str(mark)))  # the controller imports psutil
    reader, writer = os.pipe()

    def before() -> None:
        os.chdir(here)
        os.dup2(writer, 1)

    # Slow steps, so that the run has not completed before it is asked to stop.
    changes = {"checkpoint": {"uri": "saved"}, "faults": slowed(12, 0.3, workers=2)}
    running = workshop.start(tmp_path / "run", changes, "--workers", "2", before_it_starts=before)
    os.close(writer)
    running.wait_for_step(3)
    os.close(reader)
    at = running.step
    running.wait_for_step(at + 8)

    controller = running.children("frostline_controller")[0]
    controller.suspend()
    said = workshop.command("status", str(running.folder))
    assert said.returncode == 4
    assert f"`frostline` (process {running.process.pid} on " in said.stdout
    assert "frostline resume" not in said.stdout
    second = workshop.command("resume", str(running.folder))
    controller.resume()
    assert second.returncode == 2
    assert f"(process {running.process.pid} on " in second.stderr

    running.process.send_signal(signal.SIGHUP)
    drained = running.end()
    assert drained.code == 3, drained.story()
    before_resume = drained.records
    assert drained.result["status"] == "suspended"
    assert drained.output == "", "nothing was said to a terminal that is gone, and nothing was thrown"
    assert not mark.exists(), "a file of the working directory was executed"
    assert not (here / "saved").exists()
    robbed = shutil.copytree(running.folder, tmp_path / "robbed")
    shutil.rmtree(robbed / "saved")

    ended = workshop.resume(running.folder)
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert ended.records[: len(before_resume)] == before_resume, "a resumed run redoes no step of a drained one"

    refused = workshop.resume(robbed)
    assert refused.code == 2
    assert f"{robbed / 'saved'} holds no checkpoint of it" in refused.output
    again = workshop.resume(robbed, "--from-scratch")
    assert again.digest == one_worker.digest
    assert again.numerics == one_worker.numerics


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("small") / "disk", 64) as made:
        yield made


@pytest.fixture(scope="module")
def shop_on_disk(disk: SmallDisk) -> Iterator[Workshop]:
    """A workshop whose runs see the small disk in all processes, the preload process included."""
    with warm_preload(disk.inside) as socket:
        made = Workshop(socket)
        yield made
        made.close()


def on_small_disk(shop: Workshop, disk: SmallDisk, name: str, changes: dict[str, Any], **options: Any) -> Running:
    """Start the tiny digits job with its run directory on the small disk."""
    words = ("--workers", "2", "--out", str(disk.path / name))  # the last --out counts
    made = shop.start(disk.path.parent / name, changes, *words, inside=disk.inside, **options)
    made.folder = disk.seen / name
    return made


def test_a_full_disk_is_waited_out(shop_on_disk: Workshop, disk: SmallDisk, one_worker: Ended) -> None:
    """A pod and the controller die while the disk is full; they come back once there is room, and no bit changes."""
    # Slow steps, so that the run has not completed before the disk is full.
    running = on_small_disk(shop_on_disk, disk, "waits", {"faults": slowed(8, 0.1, workers=2)})
    running.wait_for_step(10)
    disk.fill()
    try:
        running.children("frostline_trainer.process.agent")[-1].kill()
        (former,) = running.children("frostline_controller")
        former.kill()
        running.wait_until(lambda: former not in running.children("frostline_controller") != [], "another controller")
        time.sleep(6)  # longer than its start takes
        assert running.process.poll() is None, running.end().output
    finally:
        disk.free()
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert "trying again until this works: " in ended.output
    assert "Traceback" not in ended.output


def test_a_run_that_has_trained_to_its_end_waits_for_room(shop_on_disk: Workshop, disk: SmallDisk, one_worker: Ended) -> None:
    """All steps are done before there is room again: one refused write of the last checkpoint once failed such a run."""
    # No decision after step 27 changes anything; decisions that can no longer be written are void after five seconds.
    # Slow steps, so that the run has not completed before the disk is full.
    changes = {"decisions": {"wait_seconds": 5.0}, "faults": slowed(30, 0.2, workers=2)}
    running = on_small_disk(shop_on_disk, disk, "ends", changes)
    running.wait_for_step(30)
    disk.fill()
    try:
        running.wait_until(lambda: "its weights cannot be written (" in status(shop_on_disk, disk, "ends"), "a word of it")
    finally:
        disk.free()
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    (event,) = ended.events("checkpoint_failed")
    assert event["step"] == 60 and "waiting for up to 60 minutes, free some space under " in event["reason"]
    assert (ended.folder / "model" / "model.safetensors").exists()


def status(shop: Workshop, disk: SmallDisk, name: str) -> str:
    """Return the output of `frostline status`; "" while no controller answers."""
    words = [*disk.inside, *FROSTLINE, "status", str(disk.path / name)]
    return subprocess.run(words, env=shop.env, capture_output=True, text=True, check=False).stdout


def test_a_stop_on_a_full_disk_stops(shop_on_disk: Workshop, disk: SmallDisk) -> None:
    hasty = patched("import frostline_controller.local_run.control as control", "control.DEADLINE_SECONDS = 1.0")
    running = on_small_disk(shop_on_disk, disk, "stops", {"training": {"steps": 5000}}, frostline=hasty)
    running.wait_for_step(5)
    disk.fill()
    try:
        running.interrupt()
        running.wait_until(lambda: "the stop waits until" in running.text, "a word of it")  # so it has heard the first request
        children = running.children("frostline_controller") + running.children("frostline_trainer.process.agent")
        running.interrupt()
        asked = time.monotonic()
        ended = running.end()
        assert time.monotonic() - asked < AT_ONCE
    finally:
        disk.free()
    assert ended.code == 130, ended.output
    assert f"go on with: frostline resume {disk.path / 'stops'} --from-scratch" in ended.output
    assert "Traceback" not in ended.output
    assert len(children) == 3
    assert [child for child in children if child.is_running() and child.status() != "zombie"] == []


def test_a_stop_on_a_full_disk_is_kept_until_there_is_room(shop_on_disk: Workshop, disk: SmallDisk) -> None:
    """The request cannot be written down: that was taken for a controller that does not answer, and the run stopped at once."""
    hasty = patched(
        "import frostline_controller.local_run.following as run", "run.ANSWER_SECONDS = 3.0",
        "import frostline_controller.local_run.control as control", "control.DEADLINE_SECONDS = 1.0",
    )  # fmt: skip
    changes = {"training": {"steps": 5000}}
    running = on_small_disk(shop_on_disk, disk, "waits-to-stop", changes, frostline=hasty)
    running.wait_for_step(5)
    disk.fill()
    try:
        running.interrupt()
        asked = f"the stop waits until {disk.path / 'waits-to-stop'} can be written: free some space there"
        running.wait_until(lambda: asked in running.text, "a word of it")
        time.sleep(6)  # longer than ANSWER_SECONDS and both calls take
        assert running.process.poll() is None, running.end().output
    finally:
        disk.free()
    ended = running.end()
    assert ended.code == 3, ended.output
    assert f"stopped; go on with: frostline resume {disk.path / 'waits-to-stop'}" in ended.output
    assert "no controller has answered" not in ended.output


def test_a_service_that_cannot_start_is_named_and_given_up(workshop: Workshop, tmp_path: Path) -> None:
    quick = patched(
        "import frostline_controller.cluster.local.service_process as services", "services.RESTART_SECONDS_MAX = 0.05"
    )
    changes = {"elastic": {"cache": False}}
    env = {"FROSTLINE_PRELOAD": "", "FROSTLINE_WORKER_MODULE": "no_such_module"}
    ended = workshop.start(tmp_path / "run", changes, frostline=quick, **env).end()
    assert ended.code == 1, ended.story()
    assert "preload ended with code 1, 2 times in a row" in ended.output
    assert "preload ended with code 1 8 times in a row and is given up" in ended.output
    assert "No module named 'no_such_module'" in ended.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_that_no_controller_answers_stops(number: signal.Signals, workshop: Workshop, tmp_path: Path) -> None:
    hasty = patched("import frostline_controller.local_run.following as run", "run.ANSWER_SECONDS = 1.0")
    running = workshop.start(tmp_path / "run", {"elastic": {"cache": False}}, frostline=hasty)
    running.wait_until((running.folder / "controller.address").exists, "a controller")
    running.children("frostline_controller")[0].suspend()
    running.process.send_signal(number)
    asked = time.monotonic()
    ended = running.end()
    assert time.monotonic() - asked < AT_ONCE
    assert ended.code == 130, ended.story()
    assert "no controller has answered for 1 s; stopping at once" in ended.output


OUTPUTS: list[tuple[str, Callable[[], dict[str, Any]], int]] = [
    ("job --explain", lambda: {"stdout": open("/dev/full", "w")}, 1),  # noqa: SIM115  (closed with the test)
    ("status {run}", lambda: {"stdout": open("/dev/full", "w")}, 1),  # noqa: SIM115
]


@pytest.mark.parametrize(("line", "outputs", "code"), OUTPUTS)
def test_an_answer_that_cannot_be_written_is_no_success(
    line: str, outputs: Callable[[], dict[str, Any]], code: int, one_worker: Ended
) -> None:
    words = line.format(run=one_worker.folder).split()
    done = subprocess.run([*FROSTLINE, *words], stderr=subprocess.PIPE, text=True, check=False, **outputs())
    assert (done.returncode, done.stderr) == (code, "frostline: [Errno 28] No space left on device\n")
