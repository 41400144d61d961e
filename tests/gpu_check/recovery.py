"""Seconds from the SIGKILL of one of four workers to the next committed step, on this machine's devices."""

import statistics

from tests.benchmarks.worlds import Ours
from tests.gpu_check.findings import Verdict
from tests.gpu_check.setting import Setting

SHAPES = ((1, 4), (2, 2))
KILLS = 2


def recovery(setting: Setting) -> None:
    """Measure several starts and kills for each shape. The workers of one GPU take turns on it, so the figures are upper
    bounds."""
    shapes = SHAPES[:1] if setting.quick else SHAPES
    kills = 1 if setting.quick else KILLS
    setting.findings.expect([_line(shape) for shape in shapes])
    for shape in shapes:
        taken = [_one_kill(setting, shape, seed) for seed in range(kills)]
        figures = {"median s": statistics.median(taken), "longest s": max(taken)}
        setting.findings.add(_line(shape), Verdict.MEASURED, f"{kills} kills of a run of the digits job", figures)


def _line(shape: tuple[int, int]) -> str:
    return f"from a kill to the next committed step, pp {shape[0]} x dp {shape[1]}"


def _one_kill(setting: Setting, shape: tuple[int, int], seed: int) -> float:
    world = Ours(*shape, training={"device": setting.device})
    try:
        world.start()
        killed = world.kill(seed)
        return world.next_commit(killed).time - killed
    finally:
        world.end()
