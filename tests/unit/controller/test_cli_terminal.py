"""Plain lines and the live panel, from synthetic files."""

import io
import json
from pathlib import Path

import pytest

from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.following import watch
from frostline_controller.local_run.output import silence
from frostline_controller.local_run.prepared_run import PreparedRun
from frostline_controller.local_run.progress import Progress, ProgressReader
from frostline_controller.local_run.run_folder import read_job
from frostline_controller.local_run.terminal import (
    LiveTerminal,
    PlainTerminal,
    event_line,
    layout_line,
    open_terminal,
    panel,
    progress_line,
)
from frostline_controller.report.data import Event
from tests.unit.controller.synthetic_run import write_run


def worker(name: str, dp_rank: int | None, pp_rank: int | None, units: list[int], state: str = "member") -> dict:
    return {"pod_name": name, "worker_id": f"{name}/x", "dp_rank": dp_rank, "pp_rank": pp_rank, "units": units, "state": state}


RUNNING = Progress(
    name="digits", state="running", step=70, total_steps=120, generation="1.2", freeze_point=2, num_units=8,
    degrees={"dp": 1, "pp": 2}, loss=0.51234, metrics={"accuracy": 0.8262}, samples_per_second=407.2,
    cache_hit_fraction=0.467, seconds_left=12.3,
    workers=[
        worker("trainer-1", 0, 1, [5, 6, 7]), worker("trainer-0", 0, 0, [0, 1, 2, 3, 4]),
        worker("trainer-2", None, None, [], "spare"),
    ],
)  # fmt: skip


def test_a_progress_line_says_everything_once() -> None:
    assert progress_line(RUNNING) == (
        "running   step 70/120  loss 0.5123  accuracy 0.8262  freeze point 2/8 units  shape pp 2 x dp 1  samples/s 407  "
        "cache hits 47 %  left 12.3 s"
    )


def test_the_layout_tells_frozen_units_apart() -> None:
    assert layout_line(RUNNING) == "replica 0: trainer-0 [0-1 | 2-4], trainer-1 [5-7]; spare: trainer-2"


def test_an_event_line_has_its_reason_and_duration() -> None:
    event = Event(kind="reshape", time_seconds=15.2, step=50, reason="two blocks are frozen", seconds=0.31)
    assert event_line(event) == "* 15.2 s, step 50: reshape (0.31 s): two blocks are frozen"


def test_plain_lines_of_a_whole_run_from_its_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "digits")
    out = io.StringIO()
    terminal = PlainTerminal(out)
    reader = ProgressReader(folder, OperatorClient(folder))
    progress = reader.poll()
    assert (progress.state, progress.step, progress.intervals, progress.metrics) == ("completed", 120, 6, {"accuracy": 0.9611})
    terminal.show(progress)
    terminal.show(reader.poll())
    lines = out.getvalue().splitlines()
    assert [line for line in lines if "failure" in line] == ["* 31.0 s, step 95: failure: pod-3: killed by signal 9"]
    assert len([line for line in lines if line.startswith("* ")]) == 10
    # The second poll brought nothing new, so nothing was printed.
    assert len([line for line in lines if line.startswith("completed")]) == 1


def test_new_lines_are_told_when_they_come(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "digits", finished=False)
    reader = ProgressReader(folder, OperatorClient(folder))
    reader.poll()
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "leave", "step": 120, "time_seconds": 50.0, "reason": "gone"}) + "\n")
    assert [event.kind for event in reader.poll().new_events] == ["leave"]
    assert reader.poll().new_events == []


def test_no_terminal_gets_plain_lines_and_quiet_gets_none() -> None:
    out = io.StringIO()
    open_terminal(quiet=False, out=out).show(RUNNING)
    assert "running   step 70/120" in out.getvalue()
    quiet = io.StringIO()
    terminal = open_terminal(quiet=True, out=quiet)
    terminal.show(RUNNING)
    assert quiet.getvalue() == ""
    terminal.say("stopped")
    assert quiet.getvalue() == "stopped\n"


def test_the_live_panel_shows_numbers_picture_and_events() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(panel(RUNNING, [Event(kind="freeze", step=43, reason="block 1 has the least norm")]))
    text = console.export_text()
    assert "digits · running · generation 1.2" in text
    assert "trainer-0 *0 *1 2 3 4  -> trainer-1 5 6 7" in text
    assert "step 43: freeze: block 1 has the least norm" in text
    assert "spare       trainer-2" in text


def test_a_terminal_that_cannot_be_written_is_switched_off_for_good() -> None:
    with open("/dev/full", "w") as full:
        terminal = open_terminal(quiet=False, out=full)
        terminal.say("a line that nobody reads")
        terminal.show(RUNNING)
        terminal.close()
        assert full.write("and what the interpreter flushes when it ends goes nowhere")


def test_a_panel_whose_session_is_over_raises_where_it_is_noticed() -> None:
    """The error must not be raised in a thread of the library's own."""
    from rich.console import Console

    with open("/dev/full", "w") as full:
        live = LiveTerminal(Console(file=full, force_terminal=True, width=80))
        with pytest.raises(OSError, match="No space left"):
            live.show(RUNNING)
        silence(full)


class NoServices:
    """The services of a run that has ended."""

    def __init__(self, *given: object) -> None:
        return

    def __getattr__(self, name: str) -> object:
        answers = {"notes": [], "all_left": True, "failure": None}
        return lambda **named: answers.get(name)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("traces.jsonl: broken"), OSError("no space")])
def test_a_completed_run_is_done_whatever_befalls_its_report(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person who does not want to wait for the pictures has not stopped the run."""

    def broken(folder: Path) -> Path:
        raise error

    monkeypatch.setattr("frostline_controller.local_run.services.LocalServices", NoServices)
    monkeypatch.setattr("frostline_controller.report.build.build_report", broken)
    folder = write_run(tmp_path / "run")
    assert watch(PreparedRun(folder, read_job(folder)), quiet=True, report=True) == exit_codes.DONE
    why = str(error) or "interrupted"
    assert f"the report could not be written ({why}); `frostline report {folder}`" in capsys.readouterr().err
