"""`frostline status --watch` where no controller answers: it goes on as long as a process runs the run."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.run_lock import owned
from tests.unit.controller.synthetic_run import write_run
from tests.unit.controller.test_cli import end_of


@pytest.mark.parametrize(("ends_as", "code"), [("completed", exit_codes.DONE), ("", exit_codes.NO_RUN)])
def test_a_watch_outlasts_a_controller_that_starts_anew(
    ends_as: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", finished=False)
    with ExitStack() as process:
        process.enter_context(owned(folder))

        def let_go() -> None:
            if ends_as:
                (folder / "result.json").write_text(json.dumps({"status": ends_as, "steps": 120}))
            process.close()

        waits: list[Callable[[], None]] = [lambda: None, let_go]
        monkeypatch.setattr("frostline_controller.cli.steer.time", SimpleNamespace(sleep=lambda seconds: waits.pop(0)()))
        ended, said, _ = end_of(capsys, "status", str(folder), "--watch", "--json")
    states = [json.loads(line)["state"] for line in said.splitlines()]
    assert (ended, waits) == (code, [])
    assert states == ["unreachable", "unreachable", ends_as or "unreachable"]
