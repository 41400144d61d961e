"""One worker's step against a plain PyTorch loop, and the share of a step that gradient-norm statistics take."""

import statistics
import time

import torch

from tests.benchmarks.measuring import Effort, Report, Row, Spread, interleave_both, milliseconds, ratios
from tests.benchmarks.plain_loop import PlainLoop
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import SUBJECTS, new_context

PAIRS = {"digits": 40, "bert": 10}
GOAL, NORMS_GOAL_PERCENT = 1.05, 2.0


def step_time(effort: Effort) -> Report:
    """Measure the engine's step against the plain loop's."""
    torch.set_num_threads(1)
    rows = [row for subject in SUBJECTS for row in _subject_rows(subject, effort)]
    return Report(
        "One worker's step against a plain PyTorch loop",
        "The engine's whole step (data, schedule, tree sum, per-unit norms, vote, clip, AdamW) against the usual loop around the "
        "unsplit Hugging Face model: the same batch, the same micro-batches, `loss.backward()` for each, `clip_grad_norm_`, "
        "fused AdamW. Both in one process with one thread, taking turns step by step. Beside it the loop at the micro-batch "
        "size that suits it best: what exact numerics' fixed micro-batches cost on one worker is a choice of the job, not of "
        "the engine.",
        rows,
    )


def _subject_rows(subject: str, effort: Effort) -> list[Row]:
    context = new_context(subject)
    own, batch = context.micro_batch_size, context.job.training.batch_size
    engine = Stepper(context)
    others = [size for size in (2 * own, 4 * own, 8 * own) if size <= batch]
    loops = {size: PlainLoop(context, size) for size in [own, *([batch] if effort.quick else others)]}
    first = engine.step(), loops[own].step()
    assert abs(first[0] - first[1]) < 1e-4 * abs(first[1]), f"engine and loop do not compute the same: losses {first}"
    parts: list[dict[str, float]] = []

    def engine_step() -> None:
        engine.step()
        parts.append(engine.parts)

    ways = {"engine": engine_step, **{str(size): loop.step for size, loop in loops.items()}}
    seconds, processor = interleave_both(ways, effort.pairs(PAIRS[subject]))
    best = min(loops, key=lambda size: statistics.median(seconds[str(size)]))
    ratio = Spread.of(ratios(seconds["engine"], seconds[str(own)]))
    sides = {"engine ms": milliseconds(seconds["engine"]), "plain loop ms": milliseconds(seconds[str(own)])}
    best_sides = {"engine ms": sides["engine ms"], f"plain loop at {best} ms": milliseconds(seconds[str(best)])}
    return [
        Row(f"{subject}, micro-batches of {own}", "engine / plain loop", "x", ratio, sides, at_most=GOAL, note=_where(parts)),
        Row(f"{subject}, processor time", "engine / plain loop", "x",
            Spread.of(ratios(processor["engine"], processor[str(own)]))),
        Row(f"{subject}, loop at its best ({best})", "engine / plain loop", "x",
            Spread.of(ratios(seconds["engine"], seconds[str(best)])), best_sides),
    ]  # fmt: skip


def _where(parts: list[dict[str, float]]) -> str:
    """Return the engine's median milliseconds by phase, in words."""
    names = list(dict.fromkeys(name for part in parts for name in part))
    middle = {name: statistics.median(part.get(name, 0.0) for part in parts) * 1e3 for name in names}
    return "engine's ms by phase: " + ", ".join(f"{name} {value:.2f}" for name, value in middle.items() if value >= 0.005)


def norm_statistics(effort: Effort) -> Report:
    """Measure the share of a step that the per-unit gradient norms take."""
    torch.set_num_threads(1)
    rows = []
    for subject in SUBJECTS:
        context = new_context(subject)
        engine, loop = Stepper(context), PlainLoop(context)
        shares, norm_seconds, loop_norm, step_seconds = [], [], [], []
        for turn in range(effort.pairs(PAIRS[subject]) + 1):
            engine.step()
            loop_seconds = _loop_norm_seconds(loop)
            if turn:
                shares.append(100 * engine.parts["norms"] / engine.seconds)
                norm_seconds.append(engine.parts["norms"])
                loop_norm.append(loop_seconds)
                step_seconds.append(engine.seconds)
        sides = {
            "norms ms": milliseconds(norm_seconds),
            "torch's total norm ms": milliseconds(loop_norm),
            "step ms": milliseconds(step_seconds),
        }
        rows.append(Row(subject, "share of a step", "%", Spread.of(shares), sides, at_most=NORMS_GOAL_PERCENT))
    return Report(
        "Per-unit gradient-norm statistics",
        "The phase that takes every unit's gradient norm (one foreach pass in float64, squares added in parameter order), as a "
        "share of the engine's own step on one worker. It is also the norm that clipping needs, so beside it stands "
        "`torch.nn.utils.get_total_norm` over the same gradients, which a plain loop pays as well.",
        rows,
    )


def _loop_norm_seconds(loop: PlainLoop) -> float:
    """Return the seconds of torch's own total norm over gradients of the model's shapes."""
    gradients = [torch.ones_like(parameter) for parameter in loop.model.parameters()]
    started = time.perf_counter()
    torch.nn.utils.get_total_norm(gradients, foreach=True)
    return time.perf_counter() - started
