"""A part's own process: `python -m tests.gpu_check.part WORDS`, started by the harness. WORDS: JSON, see `main`."""

import importlib
import json
import os
import sys
from pathlib import Path

from tests.gpu_check.findings import Findings
from tests.gpu_check.setting import Setting


def main(words: str) -> int:
    """Run the function that the harness names. Its exception ends this process with a traceback and status 1."""
    said = json.loads(words)
    folder = Path(said["folder"])
    findings = Findings(folder / "findings.jsonl")
    setting = Setting(said["device"], said["quick"], folder, findings, said["gpus"], tuple(said["nccl"]))
    module, _, function = said["function"].partition(":")
    where = module if module.startswith("tests.") else f"tests.gpu_check.{module}"
    getattr(importlib.import_module(where), function)(setting)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a store, of gloo or of a library that hangs must not keep this process
