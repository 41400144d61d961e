"""What the numerics cost on one worker: token cells, tensor tiles, compiled units, deterministic kernels; and where the time of a
step goes on a device."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tests.benchmarks.measuring import interleave, ratios
from tests.benchmarks.plain_loop import PlainLoop
from tests.benchmarks.stepper import Stepper
from tests.gpu_check import subjects
from tests.gpu_check.findings import Verdict
from tests.gpu_check.setting import Setting
from tests.gpu_check.speed import precision_on

PAIRS = 5
FAMILY = "gpt2"
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "token cells": {f"{count} cells": {"token_cells": count} for count in (2, 4, 8)},
    "tensor tiles": {f"{count} tiles": {"tensor_tiles": {"inner": count}} for count in (2, 4)},
    "chunks of the loss": {"chunks of 1024 tokens": {"loss_chunk_tokens": 1024}},
    "compiled units": {"compiled": {"compile": True}},
}
"""Line -> {way: fields of the section `training`}, each beside the job without them."""
SLOW = ("compiled units",)
"""Lines that a quick check leaves out: a compiler takes minutes."""
DETERMINISTIC = "a plain loop with torch's deterministic kernels over one without"
BUSY = "the part of a step in which the device computes, and its longest kernels"
ATTENTION = ("flash", "fmha", "attention", "cudnn_generated", "sdpa")
"""Parts of the names of attention's kernels."""
LONGEST, PROFILED_CELLS = 8, 4


def prices(setting: Setting) -> None:
    """Measure each way in turns with the plain numerics, in one process."""
    setting.findings.expect([_line(setting, kind) for kind in (BUSY, *WAYS, DETERMINISTIC)])
    if setting.on_gpu:
        ask_busy(setting)
    for kind, ways in WAYS.items():
        if not setting.quick or kind not in SLOW:
            ask_ways(setting, kind, ways)
    if setting.on_gpu:
        ask_deterministic(setting)
    else:
        for kind in (BUSY, DETERMINISTIC):
            setting.findings.add(_line(setting, kind), Verdict.UNSEEN, "a CPU has no kernels of a device")


def _line(setting: Setting, kind: str) -> str:
    return f"{FAMILY} in {precision_on(setting.device)}: {kind}"


def stepper(setting: Setting, **training: Any) -> Stepper:
    """Return one worker that trains the subject; training: further fields of that section."""
    context = subjects.build(FAMILY, setting.device, precision_on(setting.device), **training)
    return Stepper(context)


def ask_ways(setting: Setting, kind: str, ways: dict[str, dict[str, Any]]) -> None:
    members = {"plain": stepper(setting)} | {name: stepper(setting, **training) for name, training in ways.items()}
    losses = {name: member.step() for name, member in members.items()}
    far = {name: loss for name, loss in losses.items() if abs(loss - losses["plain"]) > 0.02 * abs(losses["plain"])}
    if far:
        setting.findings.judge(_line(setting, kind), False, f"other losses than the plain numerics' {losses['plain']}: {far}")
        return
    seconds = interleave({name: member.step for name, member in members.items()}, 1 if setting.quick else PAIRS)
    figures = {f"{name} / plain": statistics.median(ratios(taken, seconds["plain"])) for name, taken in seconds.items()}
    figures.pop("plain / plain")
    figures["plain ms"] = 1e3 * statistics.median(seconds["plain"])
    words = subjects.words(FAMILY, setting.device)
    setting.findings.add(_line(setting, kind), Verdict.MEASURED, words, figures)


def ask_deterministic(setting: Setting) -> None:
    """Measure two plain loops in turns, each with its own setting of torch, which holds when its kernels are chosen."""
    context = subjects.build(FAMILY, setting.device, precision_on(setting.device))
    loops = {name: PlainLoop(context) for name in ("deterministic", "free")}

    def step(name: str) -> None:
        torch.use_deterministic_algorithms(name == "deterministic")
        loops[name].step()

    seconds = interleave({"deterministic": lambda: step("deterministic"), "free": lambda: step("free")}, PAIRS)
    torch.use_deterministic_algorithms(True)
    figures = {"ratio": statistics.median(ratios(seconds["deterministic"], seconds["free"])),
               "free ms": 1e3 * statistics.median(seconds["free"])}  # fmt: skip
    setting.findings.add(_line(setting, DETERMINISTIC), Verdict.MEASURED, subjects.words(FAMILY, setting.device), figures)


def ask_busy(setting: Setting) -> None:
    """Profile a step of the engine, one in token cells, whose attention has earlier keys, and one of the plain loop."""
    engine, in_cells = stepper(setting), stepper(setting, token_cells=PROFILED_CELLS)
    loop = PlainLoop(subjects.build(FAMILY, setting.device, precision_on(setting.device)))
    figures, detail = {}, []
    for name, step in (("engine", engine.step), (f"{PROFILED_CELLS} cells", in_cells.step), ("plain", loop.step)):
        for _ in range(3):
            step()
        kernels, wall = _profiled(step)
        busy = sum(kernels.values())
        figures |= {f"{name}: kernels ms": 1e3 * busy, f"{name}: step ms, profiled": 1e3 * wall}
        attention = sorted(kernel for kernel in kernels if any(word in kernel.lower() for word in ATTENTION))
        longest = sorted(kernels, key=lambda kernel: -kernels[kernel])[:LONGEST]
        detail.append(f"{name}: attention by {', '.join(_short(kernel) for kernel in attention) or 'no kernel of its own'}; "
                      + ", ".join(f"{_short(kernel)} {1e3 * kernels[kernel]:.2f} ms" for kernel in longest))  # fmt: skip
    setting.findings.add(_line(setting, BUSY), Verdict.MEASURED, ". ".join(detail), figures)


def _profiled(step: Callable[[], object]) -> tuple[dict[str, float], float]:
    """Return the seconds of each of the device's kernels in one step, and the step's own."""
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
    kernels = {one.key: one.self_device_time_total / 1e6 for one in found.key_averages() if one.device_type == DeviceType.CUDA}
    return {name: seconds for name, seconds in kernels.items() if seconds > 0}, start.elapsed_time(end) / 1e3


def _short(kernel: str) -> str:
    return kernel.removeprefix("void ").partition("(")[0][:70]
