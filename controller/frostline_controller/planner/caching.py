"""Whether the frozen prefix is read from the cache or computed (docs/design.md 8): fetch against recompute, build cost until
paid."""

from frostline_controller.planner.cost import cache_seconds
from frostline_controller.planner.inputs import PlanInputs


def cache_verdict(inputs: PlanInputs) -> tuple[bool, str]:
    """(use the cache, why), by seconds a sample.

    A cache that is in use already has paid for its fills; one that is not must save more on later passes than its first
    pass over the training split costs. Where train_samples is unknown the build cost is one fill for each sample left. In a
    cache that several runs share, the first pass may find what another run has filled, and what it fills is read by the next:
    it counts as a later pass.
    """
    if inputs.freeze_point == 0:
        return False, "no cache: nothing is frozen"
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
    if inputs.current is not None and inputs.current.use_cache:
        return True, f"cache: {figures}; its build is paid for"
    left = inputs.steps_left * inputs.samples_of_step(inputs.current.dp_degree if inputs.current else 1)
    first_pass = min(left, inputs.train_samples) if inputs.train_samples else left / 2
    later = left if inputs.cache_shared else left - first_pass
    build, saved = first_pass * fill, later * (recompute - fetch)
    if saved <= build:
        return (
            False,
            f"no cache: {figures}, but {saved:.3g} s saved in {left} samples left would not repay {build:.3g} s of filling",
        )
    sharing = ", which other runs share" if inputs.cache_shared else ""
    return True, f"cache: {figures}; it saves {saved:.3g} s in {left} samples left and costs {build:.3g} s to fill{sharing}"


def verdict_in(reason: str) -> str:
    """What `cache_verdict` said, from the reason of a plan that ends with it; the whole reason where it does not."""
    starts = [place for mark in ("no cache: ", "cache: ") if (place := reason.find(mark)) >= 0]
    return reason[min(starts) :].removeprefix("no ").removeprefix("cache: ") if starts else reason
