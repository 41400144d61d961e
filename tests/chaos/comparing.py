"""The comparison of a run with faults with the undisturbed run: every number with all its bits, every step and sample once."""

import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from frostline_contract.annotations import PLAN
from frostline_contract.intervals import DecisionCalendar
from frostline_controller.decisions.next_decision import decision_of_line
from frostline_controller.decisions.surviving import timeline
from frostline_controller.run.durable import decode_state
from frostline_trainer.data.order import PADDING, BatchOrder
from tests.chaos.jobs import INTERVAL, LAG, STEPS
from tests.e2e.runs import Ended

NUMERICS = (
    "step", "loss", "learning_rate", "gradient_norm", "unit_gradient_norms", "freeze_point", "refused", "numerics_hash",
    "evaluation",
)  # fmt: skip
DECIDED = ("number", "interval", "effective_step", "freeze_point", "decision_kind", "rollback_to_step", "void")


def differences(ended: Ended, reference: Ended, late: Collection[int] = (), replayed: bool = False) -> list[str]:
    """Return the differences of the results from `reference`, bit for bit, and missing or repeated steps and samples.

    late: decisions that came too late and changed nothing. replayed: `reference` is a replay, which has none of these, nor the
    decisions that were rolled back: only the decisions in force in the end are compared.
    """
    if ended.code != 0:
        return [f"exit status {ended.code}"]
    found = once(ended)
    for ours, theirs in zip(ended.records, reference.records, strict=False):
        wrong = [name for name in NUMERICS if bits(ours[name]) != bits(theirs[name])]
        if wrong:
            found.append(f"step {ours['step']} differs in {', '.join(wrong)}: {ours[wrong[0]]!r} and not {theirs[wrong[0]]!r}")
            break
    what = in_force_by_number if replayed else decided
    ours, theirs = ({line for line in what(run) if line[0] not in late} for run in (ended, reference))
    if ours != theirs:
        found.append(f"decisions {sorted(ours)} and not {sorted(theirs)}")
    if ended.result["digest"] != reference.result["digest"]:
        found.append(f"digest {ended.result['digest'][:12]} and not {reference.result['digest'][:12]}")
    if bits(ended.result["final"]) != bits(reference.result["final"]):
        found.append(f"final {ended.result['final']} and not {reference.result['final']}")
    return found


def bits(value: Any) -> str:
    """Return a value of a record with all bits of its numbers; the order of keys is ignored."""
    return json.dumps(value, sort_keys=True, allow_nan=True)


def decided(ended: Ended) -> set[tuple[Any, ...]]:
    """Return the decisions without their lineage: a decision made again after a restore must be the same.

    A rollback that a restore undid before it happened is recorded as void; if it is decided again, it counts once.
    """
    found = {tuple(line[name] for name in DECIDED) for line in ended.decisions}
    return {line for line in found if not (line[4] == "rollback" and line[-1] and (*line[:-1], False) in found)}


def in_force_by_number(ended: Ended) -> set[tuple[Any, ...]]:
    """Return (number, effective step, freeze point) of the surviving decisions; a rollback replaces the decision that it
    undoes."""
    calendar = DecisionCalendar(interval_steps=INTERVAL, lag_steps=LAG, total_steps=STEPS)
    kept = timeline([decision_of_line(line) for line in ended.decisions], calendar).values()
    return {(one.number, one.effective_step, one.freeze_point) for one in kept if not one.void}


def voids(ended: Ended) -> set[int]:
    """Return the numbers of the decisions that came too late, from the run's own events."""
    return {int(event["detail"]["number"]) for event in ended.events("decision_void")}


def once(ended: Ended) -> list[str]:
    """Check that steps 1 to the last exist once along the surviving lineage, and every sample once in each epoch; return the
    faults."""
    try:
        steps = [record["step"] for record in ended.records]
    except AssertionError as twice:
        return [str(twice)]
    if steps != list(range(1, STEPS + 1)):
        return [f"{len(steps)} steps are recorded, missing {sorted(set(range(1, STEPS + 1)) - set(steps))}"]
    lines = ended.lines("metrics.jsonl")
    keys = Counter((line["lineage"], line["step"]) for line in lines if "step" in line)
    twice = [key for key, count in keys.items() if count > 1]
    if twice:
        return [f"(lineage, step) {twice} are recorded more than once"]
    return _samples_once(ended, steps)


def train_samples(ended: Ended) -> int:
    """Return the size of the training split, as the first worker reported it and the run's durable state has it."""
    kept = json.loads((ended.folder / "cluster" / "statefulset.json").read_text())
    identity = decode_state(kept["metadata"]["annotations"][PLAN]).identity
    assert identity is not None, "a run that has ended knows what it trained on"
    return identity.train_samples


def _samples_once(ended: Ended, steps: list[int]) -> list[str]:
    settings = ended.result["settings"]
    replicas = ended.records[0]["degrees"]["dp"] if settings["batch"] == "per_replica" else 1
    order = BatchOrder(settings["seed"], train_samples(ended), settings["batch_size"] * replicas)
    seen: dict[int, Counter[int]] = {}
    for step in steps:
        samples = (sample for sample in order.indices(step) if sample != PADDING)
        seen.setdefault(order.place_of(step)[0], Counter()).update(samples)
    found = []
    for epoch, counts in seen.items():
        whole = epoch < order.place_of(steps[-1])[0] or steps[-1] % order.steps_per_epoch == 0
        if max(counts.values()) > 1 or (whole and set(counts) != set(range(order.num_samples))):
            found.append(f"epoch {epoch} visits {len(counts)} of {order.num_samples} samples, some {max(counts.values())} times")
    return found
