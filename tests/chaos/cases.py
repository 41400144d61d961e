"""A case: one job with faults, drawn from one seed (or written down in `fixed`)."""

import random
from dataclasses import dataclass, field
from typing import Any

from frostline_contract.job.cluster import Fault
from tests.chaos.jobs import LAG, STEPS, VARIANTS

SILENT_KINDS = ("stop", "deadlock", "cut_node")
"""Kinds that only a deadline finds."""
QUICK_CLOCKS = {"dead_after_seconds": 3.0, "hang_floor_seconds": 3.0}
PATIENT_CLOCKS = {"dead_after_seconds": 20.0, "hang_floor_seconds": 60.0}
"""Where nothing falls silent, so that a busy machine is taken for no failure."""
CUT_SECONDS_LONG, CUT_SECONDS_SHORT = 8.0, 0.7
LATE_WAIT_SECONDS = 0.5
LATE_CUT_SECONDS = 8.0

SHAPES: dict[int, tuple[tuple[int | None, int | None], ...]] = {
    4: ((4, 1), (2, 2), (1, 4), (3, 1), (None, None)),
    5: ((5, 1), (2, 2), (1, 5)),
    6: ((6, 1), (3, 2), (2, 3)),
}
"""By workers: pinned (pp, dp), or the planner's choice (few on a small machine). Some leave a spare."""

WEIGHTS = {
    "kill_worker": 42, "late_commit": 7, "tear": 7, "raise": 6, "stop": 4, "deadlock": 4, "slow": 2, "cut": 4,
    "kill_in_checkpoint": 5, "kill_pod": 6, "kill_node": 5, "cut_node": 4, "leave": 8, "kill_controller": 10,
}  # fmt: skip
CACHE_WEIGHTS = {"kill_redis": 8, "kill_cache_server": 8}

STEP_PHASES = ("load", "schedule", "exchange", "norms", "prepared", "vote", "seen", "commit", "committed", "between")
RARE_PHASES = ("evaluate", "freeze", "checkpoint", "reshape", "recovery", "finish", "publish", "decision")


@dataclass(frozen=True)
class Case:
    """seed: replays it (None: a fixed case). aim: what it was drawn for; what came of it is the oracle's to say."""

    name: str
    seed: int | None
    variant: str
    workers: int
    shape: tuple[int | None, int | None]
    faults: tuple[Fault, ...]
    aim: str = "whole"
    reshapes: tuple[tuple[int, int, int], ...] = ()
    checkpoint_every: int = 10
    pods_per_node: int = 1
    buddies: bool = True
    cache: bool = False
    reshape_every_freeze: bool = False
    wait_seconds: float = 120.0
    clocks: dict[str, float] = field(default_factory=lambda: dict(PATIENT_CLOCKS))

    def job(self) -> dict[str, Any]:
        """The job file."""
        values = VARIANTS[self.variant].values
        return {
            **values,
            "decisions": {"lag_steps": LAG, "wait_seconds": self.wait_seconds},
            "placement": {
                "workers": self.workers,
                "pp_degree": self.shape[0],
                "dp_degree": self.shape[1],
                "pods_per_node": self.pods_per_node,
                "buddies": self.buddies,
                "reshape_every_freeze": self.reshape_every_freeze,
            },
            "elastic": {"cache": self.cache},
            "cache": {"use": "always" if self.cache else "never", "memory_bytes": 64 << 20},
            # So many that all manifests stay: the oracle reads from them what was complete when.
            "checkpoint": {"every_steps": self.checkpoint_every, "keep_last": 1000},
            "controller": {
                "heartbeat_seconds": 0.1,
                "join_settle_seconds": 0.2,
                "join_pause_seconds": 0.5,
                "start_timeout_seconds": 60.0,
                **self.clocks,
            },
            "reshapes": [{"step": step, "pp_degree": pp, "dp_degree": dp} for step, pp, dp in self.reshapes],
            "faults": [fault.model_dump(exclude_defaults=True) for fault in self.faults],
        }

    def story(self) -> str:
        """The faults in one line."""
        return ", ".join(fault_text(fault) for fault in self.faults)


def fault_text(fault: Fault) -> str:
    where = f" {fault.phase}" if fault.phase != Fault.model_fields["phase"].default else ""
    who = "" if fault.kind in ("kill_redis", "kill_cache_server", "kill_controller") else f" w{fault.worker}"
    return f"{fault.kind}{who}@{fault.step}{where}"


def draw_case(seed: int) -> Case:
    """The case of a seed: always the same."""
    rng = random.Random(f"frostline chaos {seed}")
    draw = _Draw(rng, seed)
    return rng.choices((draw.whole, draw.lost, draw.late), (66, 31, 3))[0]()


class _Draw:
    """One seed's choices."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        self._rng, self._seed = rng, seed

    def whole(self) -> Case:
        """Faults that the survivors should make good, one at a time or in each other's wake."""
        rng = self._rng
        workers = rng.choice((4, 4, 5, 6))
        pods_per_node = rng.choices((1, 2), (70, 30))[0]
        cache = rng.random() < 0.35
        kinds = {**WEIGHTS, **(CACHE_WEIGHTS if cache else {})}
        faults: list[Fault] = []
        step = rng.randint(2, 30)
        for _ in range(rng.choices((1, 2, 3), (40, 38, 22))[0]):
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            faults.append(self._fault(kind, min(step, STEPS - 1), rng.randrange(workers)))
            step += rng.choice((0, 0, 1, 5, 9, 13))
        faults = self._with_what_leads_to_it(faults, workers)
        return self._case("whole", workers, rng.choice(SHAPES[workers]), faults, pods_per_node=pods_per_node, cache=cache)

    def lost(self) -> Case:
        """Faults that take some unit's every copy: everything must go back together."""
        rng = self._rng
        workers = rng.choice((4, 5, 6))
        deep = (workers, 1)
        step, victim = rng.randint(3, 36), rng.randrange(workers)
        phase = rng.choice(STEP_PHASES)
        pattern = rng.choices(("bare", "one node", "together", "whole node", "cut off", "replicas"), (22, 16, 34, 8, 8, 12))[0]
        kind = rng.choice(("kill_worker", "kill_worker", "kill_pod", "stop", "deadlock", "tear"))
        faults = [planned(kind, step, victim, phase if kind in ("kill_worker", "stop", "deadlock") else "")]
        if pattern == "bare":
            return self._case("lost", workers, deep, self._and_perhaps_later(faults, workers), buddies=False)
        if pattern == "one node":
            return self._case("lost", workers, deep, self._and_perhaps_later(faults, workers), pods_per_node=workers)
        if pattern == "together":
            count = 2 if workers == 4 and rng.random() < 0.4 else 3
            victims = rng.sample(range(workers), count)
            return self._case("lost", workers, deep, [planned("kill_worker", step, one, phase) for one in victims])
        if pattern == "whole node":
            return self._case("lost", workers, deep, [planned("kill_node", step, victim)], pods_per_node=workers)
        if pattern == "cut off":
            faults = [planned("cut_node", step, victim, seconds=CUT_SECONDS_LONG)]
            return self._case("lost", workers, rng.choice(SHAPES[workers]), faults, pods_per_node=workers)
        return self._case("lost", 4, (2, 2), [planned("kill_worker", step, one, phase) for one in (victim % 2, victim % 2 + 2)])

    def late(self) -> Case:
        """A decision that cannot arrive: the numerics change, and a replay of them must give the same bits."""
        rng = self._rng
        interval = rng.choice((1, 2, 3))
        fault = planned("cut", interval * 8 - 2, rng.randrange(4), rng.choice(STEP_PHASES), seconds=LATE_CUT_SECONDS)
        case = self._case("late", 4, rng.choice(((4, 1), (2, 2))), [fault])
        return Case(**{**vars(case), "wait_seconds": LATE_WAIT_SECONDS, "clocks": dict(PATIENT_CLOCKS)})

    def _case(self, aim: str, workers: int, shape: tuple[int | None, int | None], faults: list[Fault], **more: Any) -> Case:
        rng = self._rng
        quick = any(fault.kind in SILENT_KINDS or (fault.kind == "cut" and fault.seconds > 3) for fault in faults)
        reshapes = []
        # What is drawn to lose something keeps its shape until then.
        first = max(fault.step for fault in faults) + 1 if aim == "lost" else 4
        for step in sorted(rng.sample(range(first, 38), rng.choice((0, 0, 1, 2)) if first < 34 else 0)):
            pp = rng.randint(1, min(workers, 4))
            reshapes.append((step, pp, rng.randint(1, workers // pp)))
        chosen = {
            "variant": rng.choices(("vit", "tied"), (75, 25))[0],
            "reshapes": tuple(reshapes),
            "checkpoint_every": rng.choice((0, 5, 8, 10)),
            "reshape_every_freeze": rng.random() < 0.4,
            "clocks": dict(QUICK_CLOCKS if quick else PATIENT_CLOCKS),
            **more,
        }
        return Case(f"seed {self._seed}", self._seed, workers=workers, shape=shape, faults=tuple(faults), aim=aim, **chosen)

    def _fault(self, kind: str, step: int, worker: int) -> Fault:
        rng = self._rng
        seconds = 5.0
        if kind == "slow":
            seconds = 0.05
        elif kind == "cut":
            seconds = rng.choice((CUT_SECONDS_SHORT, CUT_SECONDS_LONG))
        elif kind == "cut_node":
            seconds = CUT_SECONDS_LONG
        phase = ""
        if kind == "kill_controller":
            phase = rng.choice(("step", "planned", "announced", "recovering"))
        elif kind in ("kill_worker", "raise"):
            phase = rng.choice(STEP_PHASES) if rng.random() < 0.6 else rng.choice(RARE_PHASES)
        elif kind in ("stop", "deadlock", "cut", "slow"):
            phase = rng.choice(STEP_PHASES)
        return planned(kind, step, worker, phase, seconds)

    def _with_what_leads_to_it(self, faults: list[Fault], workers: int) -> list[Fault]:
        """A fault during a recovery needs one: where none of the others brings it about, a kill of somebody else goes before."""
        first = faults[0]
        needs = first.phase in ("recovery", "recovering")
        if not needs or any(other.kind == "kill_worker" and other.phase in STEP_PHASES for other in faults[1:]):
            return faults
        other = (first.worker + 1 + self._rng.randrange(workers - 1)) % workers
        leading = planned("kill_worker", first.step, other, self._rng.choice(STEP_PHASES))
        # The step that a recovery knows of is the last committed one, or the one that the controller has heard of.
        during = first.model_copy(update={"step": max(1, first.step - 2)})
        return [leading, during, *faults[1:]][:3]

    def _and_perhaps_later(self, faults: list[Fault], workers: int) -> list[Fault]:
        rng, step = self._rng, faults[0].step
        if rng.random() < 0.5 or step > 26:
            return faults
        kind = rng.choice(("kill_worker", "raise", "late_commit", "leave", "kill_controller"))
        return [*faults, self._fault(kind, step + rng.randint(4, 9), rng.randrange(workers))]


def planned(kind: str, step: int, worker: int, phase: str = "", seconds: float = 5.0) -> Fault:
    """A fault of the job file. phase: "" for kinds with a place of their own."""
    placed = {"phase": phase} if phase else {}
    return Fault(kind=kind, step=step, worker=worker, seconds=seconds, **placed)
