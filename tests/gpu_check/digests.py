"""The digest of 1, 2 and 4 workers on this machine's devices, over gloo and over NCCL, through shapes and reshapes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from frostline_contract.plan import GLOO, NCCL, Backend
from frostline_trainer.transport import nccl
from tests.engine_member import Run
from tests.exact_cases import Case
from tests.gpu_check.determinism import accepted
from tests.gpu_check.setting import Setting, put_member_environment
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_exactness import differences
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network
from tests.warm_workers import Call, WarmWorkers

CASES = (Case("gpt2_tied"), Case("llama", "bfloat16", clip_norm=None, dropout=0.0), Case("vit", "mixed_bfloat16"))
SHAPES = (
    Layout(2, 1), Layout(1, 2), Layout(4, 1), Layout(2, 2), Layout(1, 4), Layout(2, 1, 2, "interleaved_1f1b"),
    Layout(2, 1, 2, "gpipe"),
)  # fmt: skip
JOURNEY = (
    Segment(Layout(1, 1), 1),
    Segment(Layout(2, 1), 2),
    Segment(Layout(2, 2, 1, "1f1b", (2, 0, 3, 1)), 3),
    Segment(Layout(1, 4, 1, "1f1b", (3, 1, 0, 2)), 4, 1),
    Segment(Layout(2, 1, 1, "1f1b", (3, 2)), 6, 3),
)
"""Freezes at steps 2, 3 and 5 on the way; workers leave and join at the switches."""
WORKERS = 4
BACKENDS: tuple[Backend, ...] = (GLOO, NCCL)


def digests(setting: Setting) -> None:
    """Compare each case in each shape and on the journey, over each transport, with one worker: weights, moments, losses and
    norms."""
    cases = [case for case in (CASES[:1] if setting.quick else CASES) if accepted(case.dtype, setting.device)]
    shapes = SHAPES[3:4] if setting.quick else SHAPES
    asked = [(case, backend) for case in cases for backend in BACKENDS]
    setting.findings.expect([line for case, backend in asked for line in _lines(setting, case, backend, shapes)])
    pools = {backend: WarmWorkers() for backend in BACKENDS}
    try:
        for case in cases:
            for backend in BACKENDS:
                on_device = _on(setting, case, backend)
                (alone,) = run_series(pools[GLOO], on_device, [Segment(Layout(1, 1), case.steps)])
                _ask(setting, on_device, alone, backend, shapes, pools[backend])
    finally:
        for pool in pools.values():
            pool.close()


def _on(setting: Setting, case: Case, backend: Backend) -> Case:
    """Return the case on the device. Where NCCL is simulated, members are threads that share torch's one generator, so nothing is
    drawn."""
    drawn = {"dropout": 0.0} if backend == NCCL and not setting.on_gpu else {}
    return replace(case, device=setting.device, **drawn)


def _over(setting: Setting, backend: Backend) -> str:
    if backend == GLOO:
        return "gloo, tensors on the device" if setting.on_gpu else "gloo"
    return "NCCL" if setting.on_gpu else "NCCL's rules, simulated"


def _lines(setting: Setting, case: Case, backend: Backend, shapes: Sequence[Layout]) -> list[str]:
    words = f"{case.family} {case.dtype} over {_over(setting, backend)}"
    return [f"{words}: {layout}" for layout in shapes] + [f"{words}: a journey through five shapes with freezes"]


def _ask(setting: Setting, case: Case, alone: Run, backend: Backend, shapes: Sequence[Layout], pool: WarmWorkers) -> None:
    *lines, journey = _lines(setting, case, backend, shapes)
    if setting.on_gpu:
        prepare(pool, WORKERS, setting.gpus)
    series = [[Segment(layout, case.steps)] for layout in shapes] + [list(JOURNEY)]
    for line, segments in zip([*lines, journey], series, strict=True):
        _judge(setting, line, case, alone, lambda segments=segments: _run(setting, case, segments, backend, pool))


def _judge(setting: Setting, line: str, case: Case, alone: Run, run: Callable[[], list[Run]]) -> None:
    """Compare the members' reports with the run of one worker; a transport that refuses or hangs is a finding, not an end."""
    try:
        runs = run()
    except (AssertionError, RuntimeError) as error:
        setting.findings.judge(line, False, str(error).strip()[-400:])
        return
    found = differing(case, runs, alone)
    setting.findings.judge(line, not found, "; ".join(found[:3]) or f"{alone.digest[:12]}")


def differing(case: Case, runs: Sequence[Run], alone: Run) -> list[str]:
    """Return the differences from one worker's run: in the world's digest, the losses and norms by step, a unit's tensors."""
    found = (
        [] if case.dtype == "mixed_bfloat16" else differences(case, [run for run in runs if run.units]) if _whole(runs) else []
    )
    for number, run in enumerate(runs):
        if run.units and run.digest != alone.digest:
            found.append(f"worker {number}: another digest")
        for name in ("losses", "gradient_norms", "unit_norms"):
            mine, wanted = getattr(run, name), getattr(alone, name)
            found += [f"worker {number}: {name} of step {step}" for step, value in mine.items() if wanted[step] != value]
        for unit, held in run.units.items():
            found += [
                f"worker {number}: {tensor} of unit {unit}" for tensor in held if held[tensor] != alone.units[unit].get(tensor)
            ]
    return found


def _whole(runs: Sequence[Run]) -> bool:
    """Whether all members took part from the first step to the last, as the oracle's comparison needs."""
    steps = {tuple(run.losses) for run in runs}
    return len(steps) == 1


def _run(setting: Setting, case: Case, segments: Sequence[Segment], backend: Backend, pool: WarmWorkers) -> list[Run]:
    if backend == NCCL and not setting.on_gpu:
        network = Network(run_ahead=True)
        try:
            return run_simulated(case, segments, network)
        finally:
            network.close()
    return run_series(pool, case, segments, backend=backend)


def prepare(pool: WarmWorkers, count: int, gpus: int) -> None:
    """Give each worker its GPU, or its share of one, before it touches CUDA."""
    calls = [
        Call("tests.gpu_check.digests:become_member", {"index": index, "count": count, "gpus": gpus}) for index in range(count)
    ]
    pool.call(calls)


def become_member(index: int, count: int, gpus: int) -> None:
    """Set up a warm worker before anything else."""
    put_member_environment(index, count, gpus)
    nccl.quiet()
