"""The files of a comparison: comparison.json, comparison.md and two pictures."""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.durable_files import replace_durably
from frostline_contract.mesh import in_words
from frostline_controller.comparison.statistics import PairedDifference, paired_difference
from frostline_controller.comparison.trials import Outcome
from frostline_controller.ledger import words
from frostline_controller.ledger.sums import Ledger
from frostline_controller.ledger.uses import Use

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Comparison:
    """All outcomes of a comparison.

    Attributes:
        accuracy: outcomes of the runs for metric and loss.
        times: outcomes of the timed runs.
        micro_batch_seconds: median step seconds of the static arm, by the micro-batch sizes tried.
        placement_is_free: placement changes no bit of the job: exact numerics, and a batch that does not grow with replicas.
    """

    job_name: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    accuracy: tuple[Outcome, ...]
    times: tuple[Outcome, ...]
    micro_batch_seconds: dict[int, float]
    placement_is_free: bool = True

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with: static, else the first."""
        return "static" if "static" in self.arms else self.arms[0]

    @property
    def metric(self) -> str:
        """The task's metric: the first one of the outcomes, or the loss if they have no other."""
        names = [name for outcome in self.accuracy for name in outcome.final if name != "loss"]
        return names[0] if names else "loss"

    def values(self, arm: str, name: str) -> dict[int, float]:
        """Return a final number of an arm by seed."""
        return {outcome.seed: outcome.final[name] for outcome in self.accuracy if outcome.arm == arm and name in outcome.final}

    def seconds(self, arm: str, kind: str) -> dict[int, float]:
        """Return wall_seconds or training_seconds of an arm's timed runs by seed."""
        return {outcome.seed: getattr(outcome, kind) for outcome in self.times if outcome.arm == arm}

    def differences(self, name: str) -> dict[str, PairedDifference]:
        """Return the paired difference of every other arm from the baseline."""
        return {
            arm: paired_difference(self.values(arm, name), self.values(self.baseline, name))
            for arm in self.arms
            if arm != self.baseline and self.values(arm, name).keys() & self.values(self.baseline, name).keys()
        }

    def same_digests(self) -> dict[str, bool]:
        """Whether the digests agree, for each seed that was run on two placements with the same numerics (docs/protocols.md
        1.1); empty where they need not."""
        checks = {}
        for timed in self.times if self.placement_is_free else ():
            for outcome in self.accuracy:
                same = (
                    timed.arm == outcome.arm and timed.seed == outcome.seed and timed.micro_batch_size == outcome.micro_batch_size
                )
                if same and timed.arm != "static":
                    checks[f"{timed.arm}-{timed.seed}"] = timed.digest == outcome.digest
        return checks


def write_comparison(comparison: Comparison, out: Path) -> str:
    """Write the three kinds of result into `out`; return the Markdown."""
    replace_durably(out / "comparison.json", json.dumps(as_json(comparison), indent=1, allow_nan=False) + "\n")
    pictures = _write_pictures(comparison, out)
    text = as_markdown(comparison, pictures)
    replace_durably(out / "comparison.md", text)
    return text


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the documented result; bounds that do not exist are null."""
    names = list(dict.fromkeys([comparison.metric, "loss"]))
    return {
        "version": SCHEMA_VERSION,
        "job": comparison.job_name,
        "baseline": comparison.baseline,
        "metric": comparison.metric,
        "seeds": list(comparison.seeds),
        "differences": {name: {arm: _finite(found) for arm, found in comparison.differences(name).items()} for name in names},
        "time_ratios": {kind: _time_ratios(comparison, kind) for kind in ("wall_seconds", "training_seconds")},
        "static_micro_batch_step_seconds": {str(size): seconds for size, seconds in comparison.micro_batch_seconds.items()},
        "digests_agree": comparison.same_digests(),
        "accuracy_runs": [outcome.as_json() for outcome in comparison.accuracy],
        "time_runs": [outcome.as_json() for outcome in comparison.times],
    }


def as_markdown(comparison: Comparison, pictures: list[str]) -> str:
    """Return tables for people: each seed, then all seeds together."""
    metric = comparison.metric
    lines = [f"# {comparison.job_name}: {', '.join(comparison.arms)}", ""]
    lines += [f"## {metric} and loss on the test split", ""]
    head = ["seed", *(f"{arm} {name}" for name in dict.fromkeys([metric, "loss"]) for arm in comparison.arms)]
    names = list(dict.fromkeys([metric, "loss"]))
    rows = []
    for seed in comparison.seeds:
        rows.append([str(seed), *(_cell(comparison.values(arm, name).get(seed)) for name in names for arm in comparison.arms)])
    lines += _table(head, rows)
    differences = comparison.differences(metric)
    if differences:
        lines += ["", f"Mean paired difference of {metric} against {comparison.baseline}, with one-sided 95 % bounds:", ""]
        columns = ["arm", "seeds", "mean difference", "lower bound (t)", "upper bound (t)", "lower bound (sign-flip)"]
        found_rows = []
        for arm, found in differences.items():
            bounds = (found.mean, found.lower, found.upper, found.sign_flip_lower)
            found_rows.append([arm, str(len(found.differences)), *map(_cell, bounds)])
        lines += _table(columns, found_rows)
    frozen = [
        [arm, _range([o.freeze_point for o in comparison.accuracy if o.arm == arm]), str(comparison.accuracy[0].num_units)]
        for arm in comparison.arms
        if comparison.accuracy
    ]
    lines += ["", "Units frozen at the end:", "", *_table(["arm", "frozen units", "of"], frozen)]
    if comparison.times:
        lines += ["", *_time_lines(comparison)]
    lines += ["", *(f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})" for name in pictures)]
    return "\n".join(lines) + "\n"


def _time_lines(comparison: Comparison) -> list[str]:
    head = ["arm", "seed", "workers", "micro-batch", "wall seconds", "training seconds", "shapes", "cache hits"]
    rows = [
        [o.arm, str(o.seed), str(o.workers), str(o.micro_batch_size), f"{o.wall_seconds:.1f}", f"{o.training_seconds:.1f}",
         ", ".join(map(in_words, o.shapes)), f"{o.cache_hits:,}"]
        for o in sorted(comparison.times, key=lambda outcome: (outcome.seed, comparison.arms.index(outcome.arm)))
    ]  # fmt: skip
    lines = ["## Time", "", "Interleaved runs on one machine; static with fast numerics at its own best micro-batch size.", ""]
    lines += _table(head, rows)
    ratios = _time_ratios(comparison, "training_seconds")
    wall = _time_ratios(comparison, "wall_seconds")
    lines += ["", f"Time of {comparison.baseline} over time of the arm (above 1: the arm is faster), median over seeds:", ""]
    lines += _table(["arm", "training", "wall clock"], [[arm, _cell(ratio), _cell(wall[arm])] for arm, ratio in ratios.items()])
    checks = comparison.same_digests()
    lines += _ledger_lines(comparison)
    if checks:
        agree = sum(checks.values())
        lines += [
            "",
            f"Digest on {comparison.times[0].workers} workers equals the accuracy run's: {agree} of {len(checks)} runs.",
        ]
    return lines


def _ledger_lines(comparison: Comparison) -> list[str]:
    """Return a table of the uses of worker-seconds in the timed runs: means over the seeds of each arm, side by side."""
    ledgers = {
        arm: [one.ledger for one in comparison.times if one.arm == arm and one.ledger is not None] for arm in comparison.arms
    }
    arms = [arm for arm in comparison.arms if ledgers[arm]]
    if not arms:
        return []

    def row(name: str, seconds: Callable[[Ledger], float]) -> list[str]:
        return [name, *(f"{statistics.fmean(seconds(one) for one in ledgers[arm]):,.1f}" for arm in arms)]

    rows = [row(words.use_name(use), lambda one, use=use: one.used.get(use, 0.0)) for use in Use]
    rows.append(row("together", lambda one: one.total))
    rows += [row(f"saved {name}, estimated", lambda one, by=by: one.saved.get(by, 0.0)) for by, name in words.SAVINGS.items()]
    return ["", "Worker-seconds of the timed runs, mean over seeds:", "", *_table(["use", *arms], rows)]


def _time_ratios(comparison: Comparison, kind: str) -> dict[str, float]:
    baseline = comparison.seconds(comparison.baseline, kind)
    ratios = {}
    for arm in comparison.arms:
        own = comparison.seconds(arm, kind)
        common = sorted(own.keys() & baseline.keys())
        if arm != comparison.baseline and common:
            ratios[arm] = statistics.median(baseline[seed] / own[seed] for seed in common)
    return ratios


def _write_pictures(comparison: Comparison, out: Path) -> list[str]:
    """Write standalone SVG files: the metric by seed and arm, and the time."""
    from matplotlib.figure import Figure

    written = []
    colours = ["#5a6b7d", "#2c74b8", "#e07b39", "#2b9a72", "#b05cc6", "#c9a227"]
    readings = [
        (comparison.metric, {arm: comparison.values(arm, comparison.metric) for arm in comparison.arms}, comparison.metric)
    ]
    if comparison.times:
        readings.append(
            ("time", {arm: comparison.seconds(arm, "training_seconds") for arm in comparison.arms}, "training seconds")
        )
    for name, every_arm, label in readings:
        by_arm = {arm: values for arm, values in every_arm.items() if values}
        if not by_arm:  # no score of the test split was asked for
            continue
        figure = Figure(figsize=(7.5, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for place, values in enumerate(by_arm.values()):
            spread = [place + 0.06 * (i - (len(values) - 1) / 2) for i in range(len(values))]
            axes.plot(spread, list(values.values()), "o", color=colours[place % len(colours)], alpha=0.7, markersize=5)
            axes.hlines(
                statistics.fmean(values.values()), place - 0.34, place + 0.34, color=colours[place % len(colours)], linewidth=2.4
            )
        axes.set_xticks(range(len(by_arm)), list(by_arm))
        axes.set_ylabel(label.replace("_", " "))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        if name == "time":
            axes.set_ylim(bottom=0)
        figure.savefig(out / f"comparison-{name}.svg", metadata={"Date": None})
        written.append(f"comparison-{name}.svg")
    return written


def _finite(found: PairedDifference) -> dict[str, Any]:
    bound = found.sign_flip_lower
    infinite = bound is None or bound == float("-inf")
    return {**found.__dict__, "differences": list(found.differences), "sign_flip_lower": None if infinite else bound}


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def _cell(value: float | None) -> str:
    return "-" if value is None or value in (float("inf"), float("-inf")) else f"{value:.4f}"


def _range(values: list[int]) -> str:
    return f"{min(values)} to {max(values)}" if len(set(values)) > 1 else str(values[0]) if values else "-"
