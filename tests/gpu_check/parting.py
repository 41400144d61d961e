"""Where a run parts from the oracle's: the first step that differs, and by how much, for a report that must explain itself."""

from collections.abc import Iterable

from tests.engine_member import Run
from tests.exact_cases import Case, oracle_trace, without_checkpointing
from tests.integration.test_exactness import differences


def parting(case: Case, runs: list[Run]) -> str:
    """Return what differs from the oracle, in words; empty where nothing does."""
    found = differences(case, runs)
    if not found:
        return ""
    trace = oracle_trace(without_checkpointing(case))
    run = max(runs, key=lambda one: len(one.losses))
    pairs = {
        "losses": (run.losses, trace.losses),
        "gradient norms": (run.gradient_norms, trace.gradient_norms),
    }
    figures = [
        f"{name} from step {min(apart)} on, by {max(apart.values()):.1e} at most"
        for name, (mine, wanted) in pairs.items()
        if (apart := relative(mine.items(), wanted))
    ]
    return "; ".join([*figures, *found[:3]])


def relative(mine: Iterable[tuple[int, float]], wanted: list[float]) -> dict[int, float]:
    """Return {step: relative difference} of the steps, counted from 1, whose figures differ."""
    return {
        step: abs(value - wanted[step - 1]) / max(abs(wanted[step - 1]), 1e-300)
        for step, value in mine
        if value != wanted[step - 1]
    }
