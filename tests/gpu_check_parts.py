"""Parts of a check that hang, fail and leave things behind, for tests of the harness (`tests.gpu_check.harness`)."""

import os
import subprocess
import sys
import time

from tests.gpu_check.findings import Verdict
from tests.gpu_check.setting import Setting

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
ORPHAN = f"""
import subprocess
quiet = subprocess.DEVNULL
print(subprocess.Popen({SLEEP!r}, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet).pid)
"""


def good(setting: Setting) -> None:
    setting.findings.expect(["a promise", "a figure"])
    setting.findings.judge("a promise", True, f"on {setting.device}")
    setting.findings.add("a figure", Verdict.MEASURED, figures={"step ms": 12.5})


def broken_promise(setting: Setting) -> None:
    setting.findings.judge("a promise", False, "it was broken | here")


def crashes(setting: Setting) -> None:
    setting.findings.expect(["first", "second"])
    setting.findings.judge("first", True)
    raise ValueError("the library is not there")


def hangs(setting: Setting) -> None:
    """Hang with a child, and a grandchild in a session of its own whose parent has gone."""
    setting.findings.expect(["before", "after"])
    setting.findings.judge("before", True)
    child = subprocess.Popen(SLEEP)
    orphan = subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True)
    (setting.folder / "processes").write_text(f"{os.getpid()} {child.pid} {int(orphan.stdout)}")
    time.sleep(600)
