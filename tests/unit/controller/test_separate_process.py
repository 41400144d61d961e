"""A module in a process of its own: what it writes never stops it, and is all there at its end."""

import os
import sys
from pathlib import Path

import pytest

from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.separate_process import JobMistake, SeparateProcess

SECONDS = 120.0
SPEAKS = """
import sys
for line in range(20_000):
    print(f"said {line}")
    print(f"complaint {line}", file=sys.stderr)
sys.stderr.buffer.write(b"no letter: \\xff\\n")
sys.exit(int(sys.argv[1]))
"""

DRAINS = """
import pathlib, signal, sys, time
def drained(number, frame):
    print("drained")
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGINT, drained)
pathlib.Path(__file__).with_name("ready").touch()
time.sleep(100)
"""


def speaking(folder: Path, code: int, text: str = SPEAKS) -> SeparateProcess:
    """Start a process that writes far more than a pipe holds on both its outputs, and ends with this exit status."""
    (folder / "speaks.py").write_text(text)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return SeparateProcess("speaks", [str(code)], quiet=True, environment={**os.environ, "PYTHONPATH": path})


def test_a_process_that_nobody_reads_goes_on_and_all_it_said_is_kept(tmp_path: Path) -> None:
    process = speaking(tmp_path, exit_codes.DONE)
    assert process.wait(SECONDS), "it stands still at a full pipe"
    assert process.end().splitlines() == [f"said {line}" for line in range(20_000)]


def test_what_it_complained_of_is_the_errors_text(tmp_path: Path) -> None:
    process = speaking(tmp_path, exit_codes.USER_MISTAKE)
    assert process.wait(SECONDS), "it stands still at a full pipe"
    with pytest.raises(JobMistake) as caught:
        process.end()
    said = str(caught.value).splitlines()
    assert said == [*(f"complaint {line}" for line in range(20_000)), "no letter: \ufffd"]


def test_ctrl_c_while_a_process_begins_is_passed_on(tmp_path: Path) -> None:
    """The run would train on, and nobody would know of it."""
    process, pressed = speaking(tmp_path, exit_codes.DRAINED, DRAINS), []

    def never() -> bool:
        if not pressed and (tmp_path / "ready").exists():
            pressed.append("Ctrl-C")
            raise KeyboardInterrupt
        return False

    process.wait_until(never)
    assert (pressed, process.running) == (["Ctrl-C"], False)
    assert process.end(also=(exit_codes.DRAINED,)) == "drained\n"
