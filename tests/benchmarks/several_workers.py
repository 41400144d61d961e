"""Exact against fast numerics, and our pipeline executor against torch.distributed.pipelining, on gloo."""

import statistics
from typing import Any

from tests.benchmarks.measuring import Effort, Report, Row, Spread, milliseconds, ratios
from tests.benchmarks.members import call_all, make_plan, slowest, store_ports
from tests.benchmarks.subjects import SUBJECTS, placement_of
from tests.warm_workers import WarmWorkers

TURNS = {"digits": 30, "bert": 8}
DIGITS_GOAL_PERCENT, BERT_GOAL_PERCENT = 3.0, 20.0
REPLICAS = (1, 2, 4)
DEPTHS = (2, 4)


def numerics(effort: Effort) -> Report:
    """Measure the cost of exact sums."""
    rows = []
    pool = WarmWorkers()
    try:
        for subject in SUBJECTS:
            for replicas in REPLICAS[1:] if effort.quick else REPLICAS:
                members = _turns(pool, "numerics_turns", subject, 1, replicas, effort)
                rows.append(_numerics_row(subject, replicas, members))
    finally:
        pool.close()
    return Report(
        "Exact against fast numerics",
        "The same step of the same weights under `numerics: exact` (gradients summed over the fixed tree, exchanged in its "
        "order) and `numerics: fast` (one accumulator, the library's all-reduce), in turns, on 1, 2 and 4 replicas over gloo; a "
        "step takes as long as its slowest replica. The note says which phases the difference comes from: `schedule` holds the "
        "leaf sums, `exchange` the traffic.",
        rows,
    )


def _numerics_row(subject: str, replicas: int, members: list[dict[str, Any]]) -> Row:
    exact, fast = slowest(members, "exact"), slowest(members, "fast")
    percent = [100 * (a / b - 1) for a, b in zip(exact, fast, strict=True)]
    goal = DIGITS_GOAL_PERCENT if subject == "digits" else BERT_GOAL_PERCENT if replicas == 4 else None
    return Row(f"{subject}, {replicas} replica{'s' if replicas > 1 else ''}", "exact over fast", "%", Spread.of(percent),
               {"exact ms": milliseconds(exact), "fast ms": milliseconds(fast)}, at_most=goal,
               note=_difference(members))  # fmt: skip


def _difference(members: list[dict[str, Any]]) -> str:
    """Return the median milliseconds of each phase on worker 0, exact - fast, in words."""
    parts = members[0]["exact"]["parts"], members[0]["fast"]["parts"]
    names = dict.fromkeys(name for side in parts for part in side for name in part)
    words = []
    for name in names:
        exact, fast = (statistics.median(part.get(name, 0.0) for part in side) * 1e3 for side in parts)
        if abs(exact - fast) >= 0.02:
            words.append(f"{name} {exact:.2f} - {fast:.2f}")
    return "worker 0's ms, exact - fast: " + (", ".join(words) or "no phase differs")


def pipelining(effort: Effort) -> Report:
    """Measure our executor against torch's schedule."""
    rows = []
    pool = WarmWorkers()
    try:
        for subject in SUBJECTS:
            for depth in DEPTHS:
                members = _turns(pool, "pipeline_turns", subject, depth, 1, effort)
                peer = slowest(members, "peer")
                for name in ("exact", "fast"):
                    ours = slowest(members, name)
                    sides = {"ours ms": milliseconds(ours), "torch ms": milliseconds(peer)}
                    rows.append(
                        Row(f"{subject}, {depth} stages, {name}", "ours / torch", "x", Spread.of(ratios(ours, peer)), sides)
                    )
    finally:
        pool.close()
    return Report(
        "Our pipeline executor against torch.distributed.pipelining",
        "A whole step (1F1B, clip over all stages, AdamW) by the engine and by torch's Schedule1F1B over the same stage modules, "
        "cut alike, static shapes, gloo, in turns in the same processes. Ours computes more: per-unit norms, the vote, and in "
        "exact numerics the tree sum. There is no goal; docs/adr/0002-own-pipeline-executor.md says why the executor is our own.",
        rows,
    )


def _turns(
    pool: WarmWorkers, function: str, subject: str, pp_degree: int, dp_degree: int, effort: Effort
) -> list[dict[str, Any]]:
    """Return every member's answer."""
    count = pp_degree * dp_degree
    plan = make_plan(placement_of(pp_degree, dp_degree), store_ports(pool, count))
    fields = plan.model_dump(mode="json")
    return call_all(pool, function, count, plan=fields, subject=subject, turns=effort.pairs(TURNS[subject]))
