"""Adds to a drawn case what does not change the rest of it: another place for files, another fault beside the drawn ones.

The choices come from a generator of their own, so that the rest of a seed's case stays the same.
"""

import random
from dataclasses import replace

from tests.chaos.acts import BESIDE_FILES, OTHER_DATA, OTHER_WEIGHTS, OWN_PRELOAD, SCALE, SECOND_OWNER, STOPS, WRITES, Act
from tests.chaos.cases import OTHER_ROOT, Case

MANY_REPLICAS = 3
"""So many replicas outvote a device that repeats its wrong bits: one is named, and only its pod is replaced."""


def with_additions(case: Case, rng: random.Random) -> Case:
    """Return the case with what is drawn for it."""
    if rng.random() < 0.15:
        case = replace(case, checkpoint_uri=OTHER_ROOT)
    if case.cache and rng.random() < 0.5:
        case = replace(case, cache_shards=2)
    if case.aim == "flip":
        return _broken_core(case, rng)
    if any(act.kind in (OTHER_DATA, OTHER_WEIGHTS) for act in case.acts):
        # A run that needs more than the untouched pods ends after three tries of each pod, and says so: it is no longer a fault.
        case = replace(case, min_workers=1)
    if case.aim not in ("whole", "outside") or case.variant == "replicas":
        return case
    return replace(case, acts=(*case.acts, *_acts(case, rng)))


def with_scale_requests(case: Case, rng: random.Random) -> Case:
    """Return the case with scale requests: in the place of resizes, and a burst of them, taken back later. Some come while the
    answer to the one before is about to be written."""
    if case.aim != "whole" or case.variant == "replicas":
        return case
    acts = [_as_scale(act, case) if act.kind == "resize" and rng.random() < 0.5 else act for act in case.acts]
    # Fewer workers may have no plan that needs less memory.
    if rng.random() < 0.2 and not any(fault.kind == "oom" for fault in case.faults):
        step, pods = rng.randint(3, 25), case.workers // case.workers_per_pod
        least = -(-2 // case.workers_per_pod)  # one worker alone has no buddy, and the oracle does not know when leavers are gone
        if rng.random() < 0.4 and not any(act.kind == SECOND_OWNER for act in acts):
            acts.append(Act("stall_write", step, file="statefulset.json", at="sync", seconds=1.5))
        acts += [Act(SCALE, step + rng.choice((0, 0, 1)), value=rng.randint(least, pods)) for _ in range(rng.choice((1, 2, 3)))]
        if rng.random() < 0.7:
            acts.append(Act(SCALE, step + 8, value=pods))
    return replace(case, acts=tuple(acts))


def _as_scale(act: Act, case: Case) -> Act:
    return replace(act, kind=SCALE, value=-(-act.value // case.workers_per_pod))


def _broken_core(case: Case, rng: random.Random) -> Case:
    """Let a device compute wrongly ever after, where enough others contradict it."""
    flip = case.faults[0]
    computed = flip.what in ("activation", "gradient")
    if not computed or case.workers < MANY_REPLICAS or rng.random() < 0.3:
        return case
    faults = (flip.model_copy(update={"lasting": True}), *case.faults[1:])
    return replace(case, faults=faults, shape=(1, case.workers), audit_every=rng.choice((1, 4)))


def _acts(case: Case, rng: random.Random) -> list[Act]:
    """Draw acts beside those of the case, each in a few cases of a hundred."""
    acts, step = [], rng.randint(3, 30)
    kinds = {act.kind for act in case.acts}
    if case.cache and rng.random() < 0.2:
        acts.append(Act("kill_shard", step, rng.randrange(case.cache_shards)))
    if rng.random() < 0.1 and not any(fault.kind == "oom" for fault in case.faults):
        # A shape of a person's choice is no plan that may be given up for one that needs less memory.
        pp = rng.randint(1, min(case.workers, 4))
        acts.append(Act("reshape", step, shape=(pp, rng.randint(1, case.workers // pp))))
    if not kinds & {*STOPS, *WRITES} and rng.random() < 0.1:
        # While the run lives: where it has been stopped, another owner is welcome.
        acts.append(Act(SECOND_OWNER, min(step, 20)))
    if case.aim == "outside" and rng.random() < 0.3:
        acts.append(_write(step, rng))
    if case.aim == "outside" and not kinds & set(OWN_PRELOAD) and rng.random() < 0.15:
        acts.append(Act("hold_preload", step, seconds=rng.choice((2.0, 5.0))))
    return acts


def _write(step: int, rng: random.Random) -> Act:
    at = rng.choice(("sync", "name"))
    how = rng.choice((*WRITES, "kill_write"))
    seconds = rng.choice((1.5, 4.0)) if how == "stall_write" else 0.0
    times = rng.choice((1, 1, 3)) if how in ("fail_write", "lie_write") else 1
    return Act(how, step, file=rng.choice(BESIDE_FILES[at]), at=at, seconds=seconds, times=times)
