"""The history of a run by its own files: generations, faults that were carried out, checkpoints, events. Read once, then plain
data."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frostline_contract.job.cluster import Fault
from frostline_contract.plan import Plan
from tests.chaos.acting import done
from tests.chaos.acts import Act
from tests.chaos.cases import Case, checkpoint_root
from tests.chaos.kinds import KILLED_RUN
from tests.e2e.runs import json_lines

BY_WORKER_ID = ("sources", "buddies")
"""Fields that the file has by worker id, and a plan by place."""
FAULTS_OF_A_POD = ("kill_pod", "kill_node", "cut_node", "leave")
"""Kinds of faults that are carried out through the cluster when the controller hears of the step."""
COMMITTED_LATE = re.compile(r"committed step (\d+) of (\S+) late")


@dataclass(frozen=True)
class Hit:
    """A fault that was carried out.

    Attributes:
        workers: those that it hit (empty for a service).
        step: the step that was being computed, or else the last committed one; for faults of pods and services the last step
            reported to the controller.
        generation: "" where none ran.
        torn: pieces half written by it.
        time_seconds: Unix time.
    """

    fault: Fault | Act
    workers: tuple[str, ...]
    step: int
    phase: str
    generation: str
    torn: tuple[int, ...]
    time_seconds: float


@dataclass(frozen=True)
class Life:
    """A generation that was announced. first_vote_seconds: Unix time of its first recorded step; None: it has none.

    reported, ended, silent: the workers that reported, had ended or were silent in the recovery that made it; `reported` is None
    where the run does not record it.
    """

    plan: Plan
    first_step: int
    recorded: tuple[int, ...] = ()
    first_vote_seconds: float | None = None
    reported: frozenset[str] | None = None
    ended: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return str(self.plan.generation)


@dataclass(frozen=True)
class Complete:
    """A complete checkpoint. published: Unix time of its manifest."""

    lineage: int
    step: int
    published: float


@dataclass(frozen=True)
class Timeline:
    """The history of a run, as the oracle reads it.

    Attributes:
        cuts: (lineage, starts_at_step) lines of metrics.jsonl.
        failures: reasons of failure events by lineage.
        late: (generation, step) of votes whose step some worker committed late.
        rollbacks: of the guard, by lineage: the step to which each returned.
        distrusting: lineages that distrust the results before them.
        pauses: steps at which the run paused, since too few workers stayed.
        wrong_bits: details of the events that tell of wrong bits, by lineage.
    """

    num_pieces: int
    lives: tuple[Life, ...]
    hits: tuple[Hit, ...]
    checkpoints: tuple[Complete, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    failures: tuple[tuple[int, str], ...] = ()
    dead_after_seconds: float = 20.0
    late: frozenset[tuple[str, int]] = frozenset()
    rollbacks: dict[int, int] = field(default_factory=dict)
    distrusting: frozenset[int] = frozenset()
    pauses: frozenset[int] = frozenset()
    wrong_bits: tuple[tuple[int, dict[str, Any]], ...] = ()


def read_timeline(folder: Path, case: Case, num_pieces: int) -> Timeline:
    """Read the oracle's input from a run directory."""
    metrics = json_lines(folder / "metrics.jsonl")
    lives = [_life(line, metrics) for line in json_lines(folder / "plans.jsonl") if line["kind"] == "plan"]
    events = json_lines(folder / "events.jsonl")
    return Timeline(
        num_pieces=num_pieces,
        lives=tuple(lives),
        hits=_hits(folder, case),
        checkpoints=_complete(checkpoint_root(folder, case.job())),
        cuts=tuple((line["lineage"], line["starts_at_step"]) for line in metrics if "starts_at_step" in line),
        failures=tuple((event["lineage"], event["reason"]) for event in events if event["kind"] == "failure"),
        dead_after_seconds=case.clocks["dead_after_seconds"],
        late=_late(folder / "logs"),
        rollbacks=_rollbacks(json_lines(folder / "plans.jsonl")),
        distrusting=frozenset(line["lineage"] for line in metrics if line.get("distrusts")),
        pauses=frozenset(event["step"] for event in events if event["kind"] == "pause"),
        wrong_bits=tuple((event["lineage"], event["detail"]) for event in events if event["kind"] == "wrong_bits"),
    )


def _life(line: dict[str, Any], metrics: list[dict[str, Any]]) -> Life:
    plan = Plan.model_validate({name: value for name, value in line.items() if name in (*Plan.model_fields, *BY_WORKER_ID)})
    mine = [record for record in metrics if record.get("generation") == str(plan.generation)]
    answers = line.get("answers")
    return Life(
        plan=plan,
        first_step=line["first_step"],
        recorded=tuple(sorted(record["step"] for record in mine)),
        first_vote_seconds=min((record["time_seconds"] for record in mine), default=None),
        reported=frozenset(answers["reported"]) if answers else None,
        ended=frozenset(answers["ended"]) if answers else frozenset(),
        silent=frozenset(answers["silent"]) if answers else frozenset(),
    )


def _hits(folder: Path, case: Case) -> tuple[Hit, ...]:
    """Return the planned faults that were carried out and the acts from outside, by time."""
    found = [_act_hit(act, said, folder / "plans.jsonl") for act, said in done(folder.parent, case.acts)]
    plans = [line for line in json_lines(folder / "plans.jsonl") if line["kind"] == "plan"]
    named = {worker for line in plans for worker in line["placement"]["workers"]}
    for path in (folder / "cluster" / "faults").glob("[0-9]*"):
        said = json.loads(path.read_text())
        fault = case.faults[said["index"]]
        found.append(
            Hit(
                fault=fault,
                workers=_befallen(fault, said["worker_ids"], named),
                step=said["step"],
                phase=said["phase"],
                generation=said["generation"],
                torn=tuple(said["pieces"]) if fault.kind == "tear" else (),
                time_seconds=said["time_seconds"],
            )
        )
    return tuple(sorted(found, key=lambda hit: hit.time_seconds))


def _befallen(fault: Fault, announced: list[str], named: set[str]) -> tuple[str, ...]:
    """Return the workers that a fault hit: of a pod's fault all its workers, also those that a new controller did not yet know
    when it wrote the event."""
    pods = {worker.partition("/")[0] for worker in announced} if fault.kind in FAULTS_OF_A_POD else set()
    return tuple(sorted({*announced, *(worker for worker in named if worker.partition("/")[0] in pods)}))


def _act_hit(act: Act, said: dict[str, Any], plans: Path) -> Hit:
    workers = whom_it_befell(act, said, plans)
    return Hit(act, workers, said["step"], act.phase, "", (), said["time_seconds"])


def whom_it_befell(act: Act, said: dict[str, Any], plans: Path) -> tuple[str, ...]:
    """Return the workers that an act hit: of the pods in its own record, or, where it ended the whole run, all in its
    controllers' plans.

    The length of plans.jsonl and the durable plan's generation at that time identify these controllers. A durable plan, which may
    be its controller's first one, may be added to the file only later.
    """
    before = [line for line in json_lines(plans, said["plans_bytes"]) if line["kind"] == "plan"]
    every = [line for line in json_lines(plans) if line["kind"] == "plan"]
    if act.kind not in KILLED_RUN:
        found = [_workers_then(pod, before, every[len(before) :]) for pod in said["pods"]]
        return tuple(sorted(worker for workers in found for worker in workers))
    made = [line["generation"]["incarnation"] for line in before]
    made += [int(said["generation"].partition(".")[0])] if said["generation"] else []
    mine = [line for line in every if line["generation"]["incarnation"] <= max(made, default=0)]
    return tuple(sorted({worker for line in mine for worker in (*line["placement"]["workers"], *line["leavers"])}))


def _workers_then(pod: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Return the workers of a pod when the last plan of `before` was the newest; a pod that no plan named yet, since a resume
    began it, had those of the next plan that names it."""
    for line in (*before[-1:], *after):
        if found := [worker for worker in line["placement"]["workers"] if worker.startswith(f"{pod}/")]:
            return found
    return []


def _rollbacks(plans: list[dict[str, Any]]) -> dict[int, int]:
    return {line["lineage"]: line["rollback_to_step"] for line in plans if line.get("decision_kind") == "rollback"}


def _late(logs: Path) -> frozenset[tuple[str, int]]:
    found = set()
    for log in logs.glob("trainer-*.log"):
        found |= {(name, int(step)) for step, name in COMMITTED_LATE.findall(log.read_text(errors="replace"))}
    return frozenset(found)


def _complete(root: Path) -> tuple[Complete, ...]:
    found = []
    for path in root.glob("*/*/*/manifest.json"):
        manifest = json.loads(path.read_text())
        found.append(Complete(manifest["lineage"], manifest["step"], path.stat().st_mtime))
    return tuple(sorted(found, key=lambda complete: complete.published))
