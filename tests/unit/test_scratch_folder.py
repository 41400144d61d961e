"""Scratch folders: a killed owner's is removed by the next process, a living owner's and a stranger's are left alone."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from frostline_contract.scratch_folder import ScratchFolder

OWNER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from frostline_contract.scratch_folder import ScratchFolder
print(ScratchFolder().path, flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_left_goes_when_the_next_one_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "frostline-of-somebody-else").mkdir()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    theirs = Path(owner.stdout.readline().strip())
    (theirs / "preload.sock").touch()
    with ScratchFolder() as ours:
        assert ours.is_dir() and theirs.is_dir(), "its owner lives"
    owner.kill()
    owner.wait()
    with ScratchFolder() as ours:
        assert ours.is_dir()
        assert not theirs.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["frostline-of-somebody-else"]
