"""A simulated machine with GPUs: a script called `nvidia-smi` in a folder at the front of PATH."""

import os
from pathlib import Path

import pytest

EIGHT_GPUS = "".join(f"GPU {index}: NVIDIA A100-SXM4-80GB (UUID: GPU-{index})\n" for index in range(8))


def put_machine_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, listing: str, code: int = 0) -> Path:
    """Let `nvidia-smi -L` print `listing` and end with `code`. Returns a log of its calls, one line for each."""
    programs = folder / "driver"
    programs.mkdir()
    (programs / "listing").write_text(listing)
    calls = programs / "calls"
    script = programs / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\necho "$* devices=${{CUDA_VISIBLE_DEVICES-all}}" >> {calls}\ncat {programs}/listing\nexit {code}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return calls
