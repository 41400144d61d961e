"""Step time beside a plain PyTorch loop in bfloat16, and frozen and cached epochs beside the limits given by unit times."""

import math
import statistics
from pathlib import Path

from frostline_contract.cache_identity import CacheIdentity
from frostline_trainer.profile import profile_units
from frostline_trainer.step.context import RunContext
from tests.benchmarks.measuring import interleave, ratios
from tests.benchmarks.plain_loop import PlainLoop
from tests.benchmarks.stepper import Stepper
from tests.cache_stack import CacheStack, cache_stack
from tests.gpu_check import subjects
from tests.gpu_check.determinism import accepted
from tests.gpu_check.findings import Verdict
from tests.gpu_check.setting import Setting

PRECISIONS = ("mixed_bfloat16", "bfloat16")
"""Precisions in order of preference: the first as in real training, the next an approximation for a rehearsal."""
PAIRS = 8
CACHE_BYTES = 4 << 30
LEAST_STEPS = 12
"""Steps of a timed epoch, at least: the first ones of a cached epoch have not been prefetched."""


def speed(setting: Setting) -> None:
    """Measure every subject's step, and the epochs of those whose prefix is long."""
    families = ("gpt2",) if setting.quick else subjects.FAMILIES
    setting.findings.expect(
        [_step_line(setting, family) for family in families] + [_epoch_line(setting, family) for family in families]
    )
    for family in families:
        ask_step(setting, family)
    for family in families:
        ask_epochs(setting, family)


def precision_on(device: str) -> str:
    return next(one for one in PRECISIONS if accepted(one, device))


def _step_line(setting: Setting, family: str) -> str:
    return f"{family}: the engine's step beside a plain loop, {precision_on(setting.device)}"


def _epoch_line(setting: Setting, family: str) -> str:
    words = "an epoch with half the blocks frozen, computed and cached, beside one that learns"
    return f"{family}: {words}, {precision_on(setting.device)}"


def ask_step(setting: Setting, family: str) -> None:
    """Measure the steps in turns, in one process, with the same batches and micro-batches; both wait for the device at a step's
    end."""
    context = subjects.build(family, setting.device, precision_on(setting.device))
    engine, loop = Stepper(context), PlainLoop(context)
    first = engine.step(), loop.step()
    close = abs(first[0] - first[1]) < 0.02 * abs(first[1])  # bfloat16 has eight bits; a wrong model would be far off
    if not close:
        setting.findings.judge(_step_line(setting, family), False, f"engine and loop do not compute the same: losses {first}")
        return
    seconds = interleave({"engine": lambda: engine.step(), "plain": lambda: loop.step()}, 2 if setting.quick else PAIRS)
    figures = {f"{name} ms": 1e3 * statistics.median(taken) for name, taken in seconds.items()}
    figures["engine / plain"] = statistics.median(ratios(seconds["engine"], seconds["plain"]))
    size = subjects.SIZES[family, setting.device]
    figures["samples/s"] = 1e3 * size.batch / figures["engine ms"]
    setting.findings.add(_step_line(setting, family), Verdict.MEASURED, "", figures)


def ask_epochs(setting: Setting, family: str) -> None:
    """Measure epochs as `frostline_trainer` runs them: prefetched, audited, from a real Redis on this machine."""
    folder = setting.folder / f"cache-{family}"
    folder.mkdir()
    with cache_stack(folder, shard_bytes=CACHE_BYTES if setting.on_gpu else CACHE_BYTES >> 6) as stack:
        _measure(setting, family, stack, folder)


def _measure(setting: Setting, family: str, stack: CacheStack, folder: Path) -> None:
    # Two models: the frozen prefix must stay equal to the cached one while the other model trains on.
    learning, frozen = (subjects.build(family, setting.device, precision_on(setting.device)) for _ in range(2))
    point = frozen.num_units // 2
    profile = [(unit.forward_seconds, unit.backward_seconds) for unit in profile_units(learning).units]
    unfrozen = Stepper(learning)
    stepper = Stepper(frozen, freeze_point=point)
    cache = stack.connect(frozen.hidden_shape, frozen.dtype)
    identity = CacheIdentity("check", frozen.data.train.digest[:32], "train", point)
    stack.ready(cache, identity, values=len(frozen.data.train))
    stepper.generation.use_cache(cache, None)
    reader = stepper.generation.prefix
    assert reader is not None
    _fill(frozen, reader, cache)
    once = stepper.generation.feed.steps_per_epoch
    steps = once * math.ceil(LEAST_STEPS / once)

    def epoch(member: Stepper) -> None:
        for _ in range(steps):
            member.step()
            ahead = member.step_number + frozen.job.cache.prefetch_steps
            member.generation.prefetch(range(ahead, ahead + 1))

    def with_prefix(prefix: object) -> None:
        stepper.generation.prefix = prefix  # type: ignore[assignment]
        epoch(stepper)

    cache.take_counts()
    ways = {"cached": lambda: with_prefix(reader), "computed": lambda: with_prefix(None), "unfrozen": lambda: epoch(unfrozen)}
    seconds = interleave(ways, 1 if setting.quick else 3)
    counts = cache.take_counts()
    whole, rest = (sum(forward + backward for forward, backward in part) for part in (profile, profile[point:]))
    prefix = sum(forward for forward, _ in profile[:point])
    figures = {f"{name} ms": 1e3 * statistics.median(taken) for name, taken in seconds.items()}
    figures |= {
        "computed / cached": statistics.median(ratios(seconds["computed"], seconds["cached"])),
        "allowed": (prefix + rest) / rest,
        "unfrozen / cached": statistics.median(ratios(seconds["unfrozen"], seconds["cached"])),
        "allowed there": whole / rest,
        "hits %": 100.0 * counts.hits / max(1, counts.hits + counts.misses),
    }
    seen = "allowed: by the planner's unit times, where a fetch costs nothing"
    setting.findings.add(_epoch_line(setting, family), Verdict.MEASURED if counts.hits else Verdict.FAILED, seen, figures)


def _fill(context: RunContext, reader: object, cache: object) -> None:
    """Write every sample into the cache, by the engine's own reader."""
    size, count = context.job.training.batch_size, len(context.data.train)
    for start in range(0, count, size):
        samples = list(range(start, min(count, start + size)))
        reader.rows(samples, [0] * len(samples))  # type: ignore[attr-defined]
        cache.flush()  # type: ignore[attr-defined]
