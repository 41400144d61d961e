"""The main metric of a task: the first in tables, and the one that comparisons compare."""

from collections.abc import Iterable, Mapping
from typing import Any

USUAL = ("accuracy", "f1", "exact_match", "matthews", "pearson", "spearman", "perplexity")


def main_metric(names: Iterable[str], job: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return the metric that the trainer named in the result, else the job's, else the most usual one present; "loss" without
    any."""
    there = [name for name in names if name != "loss"]
    named = (result.get("settings", {}).get("main_metric"), (job.get("task") or {}).get("metric"), *USUAL, *there)
    return next((name for name in named if name in there), "loss")


def main_first(values: Mapping[str, float], main: str) -> dict[str, float]:
    """Return the same numbers with the main metric first, then the loss, then the others."""
    order = [name for name in (main, "loss") if name in values]
    return {name: values[name] for name in dict.fromkeys([*order, *sorted(values)])}
