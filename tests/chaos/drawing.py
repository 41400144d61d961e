"""Draws the case of a seed: a job, up to five faults, and acts from outside."""

import random
from typing import Any

from frostline_contract.job.cluster import Fault
from tests.chaos.acts import FILES, OTHER_DATA, OTHER_WEIGHTS, Act
from tests.chaos.adding import with_additions, with_scale_requests
from tests.chaos.cases import (
    CUT_SECONDS_LONG,
    CUT_SECONDS_SHORT,
    LATE_CUT_SECONDS,
    LATE_WAIT_SECONDS,
    PATIENT_CLOCKS,
    QUICK_CLOCKS,
    SILENT_KINDS,
    STALLED_CLOCKS,
    STALLED_SECONDS,
    Case,
    planned,
)
from tests.chaos.cells import with_cells
from tests.chaos.groups import with_groups
from tests.chaos.jobs import FREEZES_AT, LOADED, SHARED, STEPS, TILED

SHAPES: dict[int, tuple[tuple[int | None, int | None], ...]] = {
    4: ((4, 1), (2, 2), (1, 4), (3, 1), (None, None)),
    5: ((5, 1), (2, 2), (1, 5)),
    6: ((6, 1), (3, 2), (2, 3)),
}
"""By number of workers: pinned (pp, dp), or the planner's choice (few on a small machine). Some leave a spare worker."""

WEIGHTS = {
    "kill_worker": 42, "late_commit": 7, "tear": 7, "raise": 6, "stop": 4, "deadlock": 4, "slow": 2, "cut": 4,
    "kill_in_checkpoint": 5, "kill_pod": 6, "kill_node": 5, "cut_node": 4, "leave": 8, "kill_controller": 10,
    "device_error": 6, "device_hang": 3,
}  # fmt: skip
CACHE_WEIGHTS = {"kill_redis": 8, "kill_cache_server": 8}
KEEPS_REPLICAS = ("kill_worker", "raise", "late_commit", "leave", "kill_controller", "kill_pod")
"""Faults after which a run of four workers goes on with the same two replicas."""
AIMS = {"whole": 40, "lost": 24, "late": 3, "outside": 23, "flip": 7, "long_ending": 3}

SCHEDULES = {
    "auto": 40, "gpipe": 10, "1f1b": 10, "interleaved_1f1b": 15,
    "zb_h1": 5, "zb_h2": 5, "zb_v": 5, "v_half": 5, "v_min": 5,
}  # fmt: skip
"""A reshape by command takes the case's where it has no bubbles, else 1F1B."""
HOLD_MORE = ("gpipe", "interleaved_1f1b")
"""Pinned schedules under which perhaps no shape needs less memory than a reshape's with 1F1B: that one may not run out of it."""

STEP_PHASES = ("load", "schedule", "exchange", "norms", "prepared", "vote", "seen", "commit", "committed", "between")
RARE_PHASES = ("evaluate", "freeze", "checkpoint", "reshape", "recovery", "finish", "publish", "decision", "audit")
ROLLBACK_STEP = 11
"""The first step under the first freeze, which the guard of the diverging job rolls back some steps later."""
FOUND_WITHIN = 10
"""Steps after which a changed bit of a weight or a moment has been found: a checkpoint is taken after eight at most."""
LAST_FREEZE = FREEZES_AT[-1]


def draw_case(seed: int) -> Case:
    """Return the case of a seed: always the same."""
    rng = random.Random(f"frostline chaos {seed}")
    draw = _Draw(rng, seed)
    case = with_cells(with_groups(getattr(draw, rng.choices(list(AIMS), list(AIMS.values()))[0])()))
    case = with_additions(case, random.Random(f"frostline chaos additions {seed}"))
    return with_scale_requests(case, random.Random(f"frostline chaos scale requests {seed}"))


class _Draw:
    """The random choices of one seed."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        self._rng, self._seed = rng, seed

    def whole(self) -> Case:
        """Draw faults that the survivors should recover from, one at a time or close together."""
        rng = self._rng
        variants = ("vit", "tied", "hurt", "replicas", LOADED, "early", "adapted", *SHARED, TILED)
        variant = rng.choices(variants, (24, 10, 14, 8, 8, 8, 8, 12, 8, 8))[0]
        if variant == "replicas":
            return self._replicas()
        workers = rng.choice((4, 4, 5, 6))
        cache = rng.random() < 0.35
        faults = self._faults(workers, cache, rng.choices((1, 2, 3, 4, 5), (30, 30, 20, 12, 8))[0])
        if variant == "hurt" and rng.random() < 0.6:
            faults[-1] = planned(rng.choice(("kill_worker", "raise")), ROLLBACK_STEP, rng.randrange(workers), "rollback")
        stale = variant == LOADED or rng.random() < 0.4
        acts = self._acts_beside(workers, cache, variant, faults) if stale else []
        pods = {"pods_per_node": rng.choices((1, 2), (70, 30))[0], "acts": tuple(acts), "variant": variant}
        shape = rng.choice([one for one in SHAPES[workers] if variant not in SHARED or one[1] != 1])
        # Neither a pinned shape nor the rest of a model that froze early has another plan that needs less memory.
        if shape == (None, None) and len(faults) < 5 and rng.random() < 0.5 and variant != "early":
            faults.append(planned("oom", rng.randint(2, 30), rng.randrange(workers), rng.choice(STEP_PHASES)))
        return self._case("whole", workers, shape, faults, cache=cache, **pods)

    def _replicas(self) -> Case:
        """Draw a case whose batch grows with the replicas, without faults that change their number, since these change the
        results.

        It keeps two workers at least: a run whose objective is cost has handed back the others, and goes on with the workers that
        it may have.
        """
        rng = self._rng
        steps = [4 + 18 * place + rng.randrange(9) for place in range(rng.choice((1, 1, 2)))]
        faults = [self._fault(rng.choice(KEEPS_REPLICAS), step, rng.choice((0, 1, 0, 1, 2))) for step in steps]
        return self._case("whole", 4, (1, 2), faults, variant="replicas", reshapes=(), acts=(), min_workers=2)

    def lost(self) -> Case:
        """Draw faults that destroy every copy of some unit: all workers must go back together."""
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
        """Draw a decision that cannot arrive: the numerics change, and a replay of them must give the same bits."""
        rng = self._rng
        interval = rng.choice((1, 2, 3))
        fault = planned("cut", interval * 8 - 2, rng.randrange(4), rng.choice(STEP_PHASES), seconds=LATE_CUT_SECONDS)
        case = self._case("late", 4, rng.choice(((4, 1), (2, 2))), [fault])
        return Case(**{**vars(case), "wait_seconds": LATE_WAIT_SECONDS, "clocks": dict(PATIENT_CLOCKS)})

    def outside(self) -> Case:
        """Draw stops, deaths and bad writes that no job file can plan, with few other faults or none."""
        rng = self._rng
        workers = rng.choice((3, 4, 4))
        step, cache = rng.randint(3, 33), rng.random() < 0.35
        kind = rng.choices(("drain", "kill_all", "kill_write", "kill_agent", "kill_preload", "write"), (16, 14, 28, 10, 3, 29))[0]
        acts = [self._act(kind, step, workers)]
        if kind == "write":
            acts += [self._act("write", rng.randint(3, 33), workers) for _ in range(rng.choice((1, 2, 3)))]
        elif kind in ("drain", "kill_all", "kill_write") and step < 24 and rng.random() < 0.25:
            acts.append(self._act(rng.choice(("drain", "kill_all", "kill_write")), step + rng.randint(6, 9), workers))
        faults = self._faults(workers, cache, rng.choice((1, 2)), quiet=True) if rng.random() < 0.4 else []
        if kind == "kill_preload":
            faults = []
        shape = rng.choice(((workers, 1), (1, workers), (2, workers // 2)))
        return self._case("outside", workers, shape, faults, acts=tuple(acts), cache=cache)

    def flip(self) -> Case:
        """Draw a bit that changes silently.

        Other faults beside it do not move a unit from one holder to another before the bit is found, since that might spread it;
        or they come after it is found.
        """
        rng = self._rng
        what = rng.choices(("cached_value", "weight", "moment", "activation", "gradient"), (25, 25, 20, 15, 15))[0]
        cached, computed, workers = what == "cached_value", what in ("activation", "gradient"), rng.choice((2, 3, 4))
        shape = (1, workers) if cached or workers == 3 else rng.choice(((1, workers), (2, workers // 2)))
        step = rng.randint(12, 26)
        faults = [Fault(kind="flip", step=step, worker=rng.randrange(shape[0] * shape[1]), what=what)]
        if rng.random() < 0.4:
            kind = rng.choice(("kill_controller", "kill_redis", "kill_cache_server") if cached else ("kill_controller",))
            phase = "step" if kind == "kill_controller" else ""
            faults.append(planned(kind, step + rng.choice((-4, 0, 1)), 0, phase))
        if workers > 2 and rng.random() < 0.5:
            kind = rng.choice(("kill_worker", "raise", "late_commit", "kill_pod"))
            faults.append(self._fault(kind, step + FOUND_WITHIN + rng.randrange(3), rng.randrange(workers)))
        acts = (self._act(rng.choice(("checkpoint", "hold_agent")), step - 3, workers),) if rng.random() < 0.3 else ()
        more = {"cache": cached, "audit": 1.0 if cached else 0.01, "reshapes": (), "reshape_every_freeze": False}
        if computed:
            more["audit_every"] = 1
        return self._case("flip", workers, shape, faults, checkpoint_every=rng.choice((5, 8)), acts=acts, **more)

    def long_ending(self) -> Case:
        """Draw last files that take far longer than any deadline, or fail more than once: no worker hangs, and nothing is
        lost."""
        rng = self._rng
        workers = rng.choice((2, 3, 4))
        how = rng.choice(("stall_write", "stall_write", "fail_write", "lie_write"))
        at = rng.choice(("sync", "name"))
        file = rng.choice([file for file in FILES[at] if file.startswith(("safetensors", "sha256", "manifest"))])
        stalled = how == "stall_write"
        act = Act(how, LAST_FREEZE + 2, file=file, at=at, seconds=STALLED_SECONDS if stalled else 0.0, times=1 if stalled else 3)
        shape = rng.choice(((workers, 1), (1, workers)))
        clocks = dict(STALLED_CLOCKS if stalled else PATIENT_CLOCKS)
        return self._case("ending", workers, shape, [], acts=(act,), checkpoint_every=0, reshapes=(), clocks=clocks)

    def _case(self, aim: str, workers: int, shape: tuple[int | None, int | None], faults: list[Fault], **more: Any) -> Case:
        rng = self._rng
        quick = any(fault.kind in SILENT_KINDS or (fault.kind == "cut" and fault.seconds > 3) for fault in faults)
        silent = quick or any(fault.kind == "cut" for fault in faults)
        reshapes = []
        # A case that is drawn to lose a unit keeps its shape until then.
        first = max(fault.step for fault in faults) + 1 if aim == "lost" else 4
        for step in sorted(rng.sample(range(first, 38), rng.choice((0, 0, 1, 2)) if first < 34 else 0)):
            pp = rng.randint(1, min(workers, 4))
            reshapes.append((step, pp, rng.randint(1, workers // pp)))
        schedule = rng.choices(list(SCHEDULES), list(SCHEDULES.values()))[0]
        if schedule in HOLD_MORE and reshapes and any(fault.kind == "oom" for fault in faults):
            schedule = "auto"
        in_pairs = aim in ("whole", "outside") and workers % 2 == 0 and not silent and rng.random() < 0.2
        variant = more.get("variant") or rng.choices(("vit", "tied", *SHARED, TILED), (50, 17, 16, 8, 9))[0]
        shards = [rng.choice(("step", "use", "none")) if variant in SHARED else "none" for _ in range(len(reshapes) + 1)]
        chosen = {
            "variant": variant,
            "shard": shards[0],
            "reshapes_shard": tuple(shards[1:]),
            "reshapes": tuple(reshapes),
            "checkpoint_every": rng.choice((0, 5, 8, 10)),
            "reshape_every_freeze": rng.random() < 0.4,
            "clocks": dict(QUICK_CLOCKS if quick else PATIENT_CLOCKS),
            "schedule": schedule,
            "virtual_stages": 2 if schedule == "interleaved_1f1b" else 1,
            "workers_per_pod": 2 if in_pairs else 1,
            "min_workers": rng.choice((1, 1, 1, 2, workers - 1)),
            "audit_every": rng.choice((1, 4) if any(fault.phase == "audit" for fault in faults) else (0, 0, 0, 1, 4)),
            "objective": "cost" if aim == "whole" and rng.random() < 0.1 else "throughput",
            **more,
        }
        if in_pairs:
            faults = [fault.model_copy(update={"worker": fault.worker // 2}) for fault in faults]
        return Case(f"seed {self._seed}", self._seed, workers=workers, shape=shape, faults=tuple(faults), aim=aim, **chosen)

    def _faults(self, workers: int, cache: bool, count: int, quiet: bool = False) -> list[Fault]:
        """Draw faults. quiet: none that only a deadline finds."""
        rng = self._rng
        kinds = {**WEIGHTS, **(CACHE_WEIGHTS if cache else {})}
        if quiet:
            kinds = {kind: weight for kind, weight in kinds.items() if kind not in (*SILENT_KINDS, "cut")}
        faults: list[Fault] = []
        step = rng.randint(2, 30)
        for _ in range(count):
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            faults.append(self._fault(kind, min(step, STEPS - 1), rng.randrange(workers)))
            step += rng.choice((0, 0, 1, 5, 9, 13))
        return self._with_what_leads_to_it(faults, workers)

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
        elif kind in ("kill_worker", "raise", "device_error"):
            phase = rng.choice(STEP_PHASES) if rng.random() < 0.6 else rng.choice(RARE_PHASES)
        elif kind in ("stop", "deadlock", "cut", "slow"):
            phase = rng.choice(STEP_PHASES)
        return planned(kind, step, worker, phase, seconds)

    def _acts_beside(self, workers: int, cache: bool, variant: str, faults: list[Fault]) -> list[Act]:
        """Draw commands of people and processes that stand still, beside faults; a resize is undone later."""
        rng = self._rng
        kinds = ["checkpoint", "freeze", "unfreeze", "resize", "hold_agent"]
        if not any(fault.kind in (*SILENT_KINDS, "cut") for fault in faults):
            kinds += ["hold_all", "hold_all", "hold_controller"]
        if variant in ("tied", LOADED):
            kind = OTHER_DATA if variant == "tied" else OTHER_WEIGHTS
            return [Act(kind, max(1, faults[0].step - 1), seconds=rng.choice((4.0, 8.0)))]
        kinds += ["hold_redis", "hold_cache_server"] if cache else []
        step = rng.randint(3, 25)
        acts = [self._act(kind, step + place, workers) for place, kind in enumerate(rng.sample(kinds, rng.choice((1, 1, 2))))]
        return acts + [Act("resize", act.step + 8, value=workers) for act in acts if act.kind == "resize"]

    def _act(self, kind: str, step: int, workers: int) -> Act:
        rng = self._rng
        if kind == "drain":
            return Act(kind, step, value=rng.randrange(3))
        if kind in ("kill_write", "write"):
            at = rng.choice(("sync", "name"))
            how = rng.choice(("fail_write", "lie_write", "stall_write")) if kind == "write" else kind
            seconds = rng.choice((1.5, 4.0)) if how == "stall_write" else 0.0
            times = rng.choice((1, 1, 3)) if how in ("fail_write", "lie_write") else 1
            return Act(how, step, file=rng.choice(FILES[at]), at=at, seconds=seconds, times=times)
        if kind.startswith("hold"):
            return Act(kind, step, rng.randrange(workers), seconds=rng.choice((2.0, 5.0)))
        value = {"freeze": rng.choice((2, 3)), "resize": max(2, workers - rng.choice((1, 2)))}.get(kind, 0)
        return Act(kind, step, rng.randrange(workers), value=value)

    def _with_what_leads_to_it(self, faults: list[Fault], workers: int) -> list[Fault]:
        """Add a kill of another worker before a fault during a recovery, where no other fault causes a recovery."""
        first = faults[0]
        needs = first.phase in ("recovery", "recovering")
        if not needs or any(other.kind == "kill_worker" and other.phase in STEP_PHASES for other in faults[1:]):
            return faults
        other = (first.worker + 1 + self._rng.randrange(workers - 1)) % workers
        leading = planned("kill_worker", first.step, other, self._rng.choice(STEP_PHASES))
        # The step known in a recovery is the last committed one, or the last one reported to the controller.
        during = first.model_copy(update={"step": max(1, first.step - 2)})
        return [leading, during, *faults[1:]][:5]

    def _and_perhaps_later(self, faults: list[Fault], workers: int) -> list[Fault]:
        rng, step = self._rng, faults[0].step
        if rng.random() < 0.5 or step > 26:
            return faults
        kind = rng.choice(("kill_worker", "raise", "late_commit", "leave", "kill_controller"))
        return [*faults, self._fault(kind, step + rng.randint(4, 9), rng.randrange(workers))]
