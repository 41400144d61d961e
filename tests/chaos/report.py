"""The report of a series: a line for each case, a table of kinds and phases, and the results as JSON."""

import math
from collections import Counter
from statistics import median
from typing import Any

from tests.chaos.cases import Case
from tests.chaos.oracle import EITHER
from tests.chaos.running import Outcome, as_json

LOST_SHARE_LEAST = 0.2
UNHIT_SHARE_MOST = 0.1
SERIES_LEAST = 50
"""The number of cases from which the shares are judged."""


def case_line(outcome: Outcome) -> str:
    """Return one line: the seed, the faults of the run, and their cost."""
    backs = outcome.verdict.backs
    cost = f"back to step {', '.join(map(str, backs))}" if backs else "lost 0"
    recovered = f", recovered in {max(outcome.recovery_seconds):.2f} s" if outcome.recovery_seconds else ""
    late = f", decisions {sorted(outcome.late)} late" if outcome.late else ""
    happened = len(outcome.timeline.hits) if outcome.timeline is not None else 0
    planned = len(outcome.case.faults)
    missed = f" ({planned - happened} of {planned} not reached)" if happened < planned else ""
    verdict = "FAILED" if outcome.problems else "ok"
    what = f"{outcome.case.name:<14} {setting_text(outcome.case):<22} {outcome.case.story()}{missed}"
    return f"{what}: {verdict}, {cost}{late}, {outcome.seconds:.1f} s{recovered}"


def setting_text(case: Case) -> str:
    shape = f"{case.shape[0]}x{case.shape[1]}" if case.shape != (None, None) else "planned"
    depth, rows = f" x {case.depth}" * (case.depth > 1), " rows" * (case.tensor_rows == "split")
    shape += f" tp {case.tp}{depth}{rows}" if case.tp * case.depth > 1 else ""
    shape += f" {case.slices} slices" if case.slices else ""
    nodes = f" {case.pods_per_node}/node" if case.pods_per_node > 1 else ""
    speed = f" {case.worker_cpus:g} cpu" if case.worker_cpus else ""
    return f"{case.variant} {case.workers}w {shape}{nodes}{'' if case.buddies else ' bare'}{speed}"


def failure_text(outcome: Outcome) -> str:
    """Return the problems of a case, its run directory, and the command that repeats it."""
    case = outcome.case
    again = f"make chaos SEED={case.seed} CASES=1" if case.seed is not None else f'make chaos CASES=0 ARGS="--only {case.name}"'
    if case.worker_cpus and case.seed is not None:
        again += f" ARGS='--worker-cpus {case.worker_cpus:g}'"
    lines = [f"    {problem}" for problem in outcome.problems]
    return "\n".join([*lines, f"    run directory {outcome.folder}", f"    again: {again}"])


def table(outcomes: list[Outcome]) -> str:
    """Return the counts of faults that happened, by kind and phase."""
    counts = Counter((hit.fault.kind, hit.phase) for hit in _hits(outcomes))
    kinds = sorted({kind for kind, _ in counts})
    phases = sorted({phase for _, phase in counts}, key=lambda phase: -sum(n for (_, p), n in counts.items() if p == phase))
    width = max([len(kind) for kind in kinds], default=4)
    columns = [max(len(phase), 3) for phase in phases]
    lines = [" " * width + "  " + "  ".join(phases) + "  all"]
    for kind in kinds:
        cells = [str(counts[kind, phase] or ".").rjust(size) for phase, size in zip(phases, columns, strict=True)]
        total = sum(n for (k, _), n in counts.items() if k == kind)
        lines.append(f"{kind.ljust(width)}  " + "  ".join(cells) + f"  {total:3d}")
    return "\n".join(lines)


def summary(outcomes: list[Outcome]) -> str:
    """Return the series in a few lines."""
    lost = [outcome for outcome in outcomes if outcome.verdict.backs]
    recoveries = [recovery for outcome in outcomes for recovery in outcome.verdict.recoveries]
    seconds = sorted(second for outcome in outcomes for second in outcome.recovery_seconds)
    lines = [
        f"{len(outcomes)} cases: {sum(bool(outcome.problems) for outcome in outcomes)} failed, "
        f"{len(lost)} went back to a checkpoint, {sum(bool(outcome.late) for outcome in outcomes)} had late decisions",
        f"{len(_hits(outcomes))} faults happened, {sum(len(o.case.faults) for o in outcomes)} were planned; "
        f"{len(recoveries)} recoveries, {sum(recovery.late for recovery in recoveries)} with a late commit, "
        f"{sum(recovery.expected == EITHER for recovery in recoveries)} that the oracle leaves open",
    ]
    if seconds:
        lines.append(
            f"recovery: median {median(seconds):.2f} s, 90th percentile {seconds[math.ceil(0.9 * len(seconds)) - 1]:.2f} s, "
            f"most {seconds[-1]:.2f} s"
        )
    return "\n".join(lines)


def shortfalls(outcomes: list[Outcome]) -> list[str]:
    """Return the required contents of a long series that this one lacks."""
    if len(outcomes) < SERIES_LEAST:
        return []
    found = []
    lost = sum(bool(outcome.verdict.backs) for outcome in outcomes)
    if lost < LOST_SHARE_LEAST * len(outcomes):
        found.append(f"only {lost} of {len(outcomes)} cases lost a unit; at least {LOST_SHARE_LEAST:.0%} are wanted")
    unhit = [outcome for outcome in outcomes if outcome.timeline is None or not outcome.timeline.hits]
    if len(unhit) > UNHIT_SHARE_MOST * len(outcomes):
        found.append(f"in {len(unhit)} of {len(outcomes)} cases no fault happened")
    return found


def results(seed: int, outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """Return the series as JSON values, for other programs."""
    return {
        "version": 1,
        "seed": seed,
        "seconds": round(seconds, 1),
        "cases": [as_json(outcome) for outcome in outcomes],
        "shortfalls": shortfalls(outcomes),
    }


def _hits(outcomes: list[Outcome]) -> list[Any]:
    return [hit for outcome in outcomes if outcome.timeline is not None for hit in outcome.timeline.hits]
