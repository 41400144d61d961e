"""The decision whether the frozen prefix is read from the cache or computed (docs/design.md 8).

It compares the seconds of a fetch with those of a recompute, and counts the cost of filling until that is paid back.
"""

from frostline_controller.planner.cache_costs import cache_seconds
from frostline_controller.planner.inputs import PlanInputs


def cache_verdict(inputs: PlanInputs) -> tuple[bool, str]:
    """Return (whether to use the cache, why), judged by seconds a sample.

    The fills of a cache that is in use at this boundary are already paid for; else it must save more on later passes than the
    fills of its first pass over the training split cost. The steps of both are compared afterwards (`frozen_units`).
    """
    if inputs.freeze_point == 0:
        return False, "no cache: nothing is frozen"
    if inputs.prefix_whole is False:
        return False, "no cache: the frozen units are divided over stages"
    if not inputs.elastic.cache:
        return False, "no cache: elastic.cache is off"
    if not inputs.cache_available:
        return False, f"no cache: {inputs.uncacheable or 'no server is reachable'}"
    if inputs.cache_use == "never":
        return False, "no cache: cache.use is never"
    fetch, fill, _ = cache_seconds(inputs)
    prefix = sum(unit.forward_seconds for unit in inputs.units[: inputs.freeze_point])
    recompute = prefix / inputs.micro_batch_size
    measured = inputs.cache is not None and inputs.cache.fetch_seconds_per_sample > 0
    figures = f"{'measured' if measured else 'predicted'} fetch {fetch:.3g} s against recompute {recompute:.3g} s a sample"
    if inputs.cache_use == "always":
        return True, f"cache: cache.use is always; {figures}"
    if fetch >= recompute:
        return False, f"no cache: {figures}"
    if is_filled(inputs):
        return True, f"cache: {figures}; its build is paid for"
    first_pass, later = passes_left(inputs)
    left = first_pass + later
    build, saved = first_pass * fill, later * (recompute - fetch)
    if saved <= build:
        return (
            False,
            f"no cache: {figures}, but {saved:.3g} s saved in {left} samples left would not repay {build:.3g} s of filling",
        )
    sharing = ", which other runs share" if inputs.cache_shared else ""
    return True, f"cache: {figures}; it saves {saved:.3g} s in {left} samples left and costs {build:.3g} s to fill{sharing}"


def is_filled(inputs: PlanInputs) -> bool:
    """Return whether the cache is in use at this very boundary, so that its fills are paid for."""
    return 0 < inputs.freeze_point == inputs.cached_point


def passes_left(inputs: PlanInputs) -> tuple[float, float]:
    """Return the samples left of the run: those of the first pass over the training split, which fill a cache, and later ones.

    Where train_samples is unknown, half of them count as the first pass. In a cache that several runs share, the first pass may
    read values that another run has filled, and its own fills are read by later runs: so it counts as a later one.
    """
    left = inputs.steps_left * inputs.samples_of_step(inputs.current.dp_degree if inputs.current else 1)
    first = min(left, inputs.train_samples) if inputs.train_samples else left / 2
    return (0, left) if inputs.cache_shared else (first, left - first)


def verdict_in(reason: str) -> str:
    """Return the words of `cache_verdict`, without their "cache: ", from a plan's reason that ends with them; else the reason."""
    starts = [place for mark in ("no cache: ", "cache: ") if (place := reason.find(mark)) >= 0]
    return reason[min(starts) :].removeprefix("no ").removeprefix("cache: ") if starts else reason
