"""The machine that is checked: `python -m tests.gpu_check.machine` prints its facts as JSON.

The facts come from a separate process, since a driver may hang, and since a process that has used CUDA cannot fork workers.
"""

import json
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

LOOK_SECONDS = 120.0
"""The limit for creating a CUDA context and one small computation on each GPU, which take some seconds."""


@dataclass(frozen=True)
class Machine:
    """gpus: facts of each GPU that torch can use. facts: versions and the processor. reason: why there is no GPU, else empty."""

    gpus: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def nccl(self) -> tuple[int, ...]:
        text = str(self.facts.get("nccl", ""))
        return tuple(int(word) for word in text.split(".")) if text else ()


def look(seconds: float = LOOK_SECONDS) -> Machine:
    """Return the facts found by a separate process within `seconds`."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu_check.machine"], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Machine(reason=f"looking for a GPU did not end within {seconds:g} s: the driver hangs")
    if done.returncode:
        return Machine(reason=f"looking for a GPU ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return Machine(**json.loads(done.stdout.splitlines()[-1]))


def describe() -> Machine:
    """Return the facts of the machine, found in this process."""
    import torch
    import transformers

    from frostline_trainer.process.device_facts import device_facts, library_versions

    facts: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__, **library_versions()}
    facts |= {"python": platform.python_version(), "processor": processor()}
    if not torch.cuda.is_available():
        return Machine([], facts, "torch sees no CUDA device")
    gpus = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        torch.ones(1, device=device).add_(1).cpu()
        known = device_facts(device).model_dump(mode="json")
        gpus.append({name: known[name] for name in ("name", "uuid", "multiprocessors", "memory_bytes", "driver")})
    return Machine(gpus, facts)


def processor() -> str:
    """Return the processor's name from the kernel."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    found = describe()
    print(json.dumps({"gpus": found.gpus, "facts": found.facts, "reason": found.reason}))
