"""Assigns a GPU to each worker of a pod. The agent runs `nvidia-smi` for the list, since a process that forks must not use CUDA.

A GPU is named by its UUID, or its MIG instance's: CUDA takes both in CUDA_VISIBLE_DEVICES, and an index means something else
to each library (docs/adr/0011-devices.md).
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = "nvidia-smi"
LISTING_SECONDS = 60.0
"""Timeout of the listing: the driver takes seconds to start if no process has a GPU open."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICES = Path("/dev")


class NoDevice(ValueError):
    """The pod cannot give each of its workers a GPU, by a mistake of the user or a fault of the node."""


def assign_gpus(device: str, ordinal: int, workers: int, env: Mapping[str, str], devices: Path = DEVICES) -> list[str]:
    """The UUID of each worker's GPU, by local rank; empty if the workers compute on the CPU.

    Args:
        device: the job's `training.device`: auto, cpu or cuda.
        ordinal: of the pod. Pods of a local run see the same GPUs: they take them in turn, and may share them.
        workers: number of the pod's workers.
        env: the agent's environment: PATH for the program, and CUDA_VISIBLE_DEVICES, which may limit the GPUs.
        devices: folder of the device files.

    Raises NoDevice if there are fewer GPUs than workers, or the driver cannot list them.
    """
    if device == "cpu":
        return []
    found = visible(list_gpus(env, devices), env.get(VISIBLE))
    if not found:
        if device == "cuda":
            raise NoDevice("training.device is cuda and this pod sees no GPU; give it GPUs, or use device: cpu or auto")
        return []
    if workers > len(found):
        raise NoDevice(
            f"placement.workers_per_pod is {workers} and this pod sees {len(found)} GPUs; set workers_per_pod to {len(found)} "
            "(kubernetes.trainer.gpus likewise), or use training.device: cpu"
        )
    return [found[(ordinal * workers + local_rank) % len(found)] for local_rank in range(workers)]


def list_gpus(env: Mapping[str, str], devices: Path = DEVICES) -> list[tuple[str, list[str]]]:
    """Each GPU's UUID with those of its MIG instances, in the driver's order.

    Raises NoDevice if the driver does not answer.
    """
    program = shutil.which(PROGRAM, path=env.get("PATH"))
    if program is None:
        if any(devices.glob("nvidia[0-9]*")):
            raise NoDevice(
                f"training.device is not cpu and {PROGRAM} is not on PATH, though {devices} has NVIDIA devices; set "
                "NVIDIA_DRIVER_CAPABILITIES: compute,utility in kubernetes.trainer.env, or use training.device: cpu"
            )
        return []
    try:
        listing = subprocess.run(
            [program, "-L"], env={name: value for name, value in env.items() if name != VISIBLE}, capture_output=True, text=True,
            timeout=LISTING_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoDevice(f"{program} -L does not answer ({error}); mend this node's driver, or use training.device: cpu") from error
    if listing.returncode:
        said = (listing.stdout + listing.stderr).strip()[-300:] or "nothing"
        raise NoDevice(f"{program} -L ended with {listing.returncode} and said {said!r}; mend this node's driver")
    return parse_listing(listing.stdout)


def parse_listing(text: str) -> list[tuple[str, list[str]]]:
    """Parse the output of `nvidia-smi -L`: a line for each GPU, then an indented one for each MIG instance, with UUIDs."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        named = re.search(r"\(UUID: ([^)\s]+)\)", line)
        if named is None:
            continue
        if line.startswith("GPU "):
            found.append((named[1], []))
        elif found and line.lstrip().startswith("MIG "):
            found[-1][1].append(named[1])
    return found


def visible(gpus: Sequence[tuple[str, list[str]]], wanted: str | None) -> list[str]:
    """The UUIDs that workers may get; for a GPU with MIG instances, those of the instances.

    As in CUDA, entries of `wanted` are indices or beginnings of UUIDs, entries after the first invalid one are ignored, and the
    index of a GPU with instances names its first instance.

    Args:
        gpus: (UUID, UUIDs of its MIG instances) of each GPU of the pod.
        wanted: the pod's CUDA_VISIBLE_DEVICES; None: all.
    """
    whole = [instances or [uuid] for uuid, instances in gpus]
    if wanted is None:
        return [uuid for uuids in whole for uuid in uuids]
    named = [uuid for own, instances in gpus for uuid in (own, *instances)]
    chosen: list[str] = []
    for entry in (text.strip() for text in wanted.split(",")):
        if entry.isdigit():
            matches = whole[int(entry)][:1] if int(entry) < len(whole) else []
        else:
            matches = [uuid for uuid in named if entry and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen += whole[[own for own, _ in gpus].index(matches[0])][:1] if matches[0] in dict(gpus) else matches
    return list(dict.fromkeys(chosen))
