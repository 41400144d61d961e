"""The permitted cost of faults, from the holders of each piece when the faults hit. Pure: reads a timeline, not the run's
decisions.

Each generation that answers a failure is judged separately. The plan of the generation before names the owners and buddies of
each piece; the faults name the workers that are dead, silent or torn since. The remaining copies of each piece decide: where
every piece has one, nothing may be lost; where one piece has none, all workers go back to the newest complete checkpoint.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from frostline_contract.phases import Phase
from frostline_contract.plan import CHECKPOINT, CONTINUE, SURVIVORS
from tests.chaos.acts import SIZES
from tests.chaos.checkpoints import newest_checkpoints
from tests.chaos.holding import Held, held_after, left_after
from tests.chaos.kinds import AT_A_PLACE, BEFORE_THE_VOTE, ENDING, ENDING_WELL, ERRORS, KILLED_RUN, SILENCING, SPOILING
from tests.chaos.left_state import goes_on_from_left_state, left_state_complaints
from tests.chaos.naming import named_as_flipped
from tests.chaos.timeline import Hit, Life, Timeline

WHOLE, LOST, EITHER = "whole", "lost", "either"


@dataclass(frozen=True)
class Recovery:
    """One answer to a failure.

    Attributes:
        expected: whole, lost or either.
        missing: pieces that no worker (surely) had.
        back_to: the step to which it went back; None where it went on.
        late: whether a worker had to commit its step late.
    """

    generation: str
    expected: str
    hits: tuple[Hit, ...]
    missing: tuple[int, ...]
    back_to: int | None
    late: bool


@dataclass(frozen=True)
class Verdict:
    """The judgement of a run. complaints: acts of the run that no fault allows; empty where all is correct."""

    recoveries: tuple[Recovery, ...]
    complaints: tuple[str, ...]

    @property
    def backs(self) -> list[int]:
        """The steps to which the run went back, in order."""
        return [recovery.back_to for recovery in self.recoveries if recovery.back_to is not None]


def judge(timeline: Timeline) -> Verdict:
    """Go through the generations, with the holdings of each worker and the faults that no generation has answered yet."""
    held: dict[str, Held] = {}
    open_hits = [one for hit in timeline.hits if breaks(hit, timeline.dead_after_seconds) for one in _one_by_one(hit)]
    recoveries, complaints = list[Recovery](), list[str]()
    flips_answered = 0
    for index, (base, life) in enumerate(pairwise(timeline.lives)):
        held = held_after(base, life, held, timeline.hits)
        if life.plan.start == CONTINUE:
            complaints += _unvoted(timeline, base, life)
            continue
        since = timeline.lives[index + 1 :]
        limit = _until(since)
        mine = [hit for hit in open_hits if _befell(hit, since, limit)]
        open_hits = [hit for hit in open_hits if hit not in mine]
        if _resumed(timeline, base, life):
            complaints += _gone_on_after_it(timeline, timeline.lives[: index + 1], life)
            continue
        if _answers_flip(timeline, base, life):
            flips_answered += 1
            complaints += [*_before_flip(timeline, life), *named_as_flipped(timeline, base, life)]
            recoveries.append(Recovery(life.name, LOST, tuple(mine), (), life.first_step - 1, late=False))
            continue
        left = left_after(life, held, mine)
        recovery = _recovery(timeline, life, left, mine)
        before = timeline.lives[index - 1] if index else None
        from_left = recovery.expected == LOST and goes_on_from_left_state(timeline, before, base, life)
        recoveries.append(recovery := replace(recovery, back_to=life.first_step - 1) if from_left else recovery)
        held = left
        complaints += [*_explained(timeline, base, life, mine), *_fenced(base, life, mine)]
        allowed = newest_checkpoints(timeline, timeline.lives[: index + 1], mine, limit)
        if recovery.back_to is None:
            complaints += _gone_on(timeline, base, life, mine)
        elif from_left:
            complaints += left_state_complaints(timeline, base, life, allowed)
        else:
            complaints += _gone_back(timeline, base, life, allowed)
        if (recovery.expected, recovery.back_to is None) in ((WHOLE, False), (LOST, True)):
            went = "went on" if recovery.back_to is None else f"went back to step {recovery.back_to}"
            complaints.append(f"{life.name} {went}, but {recovery.expected}: pieces {list(recovery.missing)} are left nowhere")
    complaints += _all_flips_found(timeline, flips_answered)
    return Verdict(tuple(recoveries), tuple(complaints))


def _answers_flip(timeline: Timeline, base: Life, life: Life) -> bool:
    """Whether the generation's lineage distrusts the results before it."""
    return life.plan.lineage in timeline.distrusting and life.plan.lineage != base.plan.lineage


def _before_flip(timeline: Timeline, life: Life) -> list[str]:
    """Check that the run goes back to a complete checkpoint from before the bit changed; return the complaints."""
    complete = {0, *(one.step for one in timeline.checkpoints)}
    steps = [hit.step for hit in timeline.hits if hit.fault.kind == "flip"]
    if steps and life.plan.start != SURVIVORS and life.first_step <= max(steps) and life.first_step - 1 in complete:
        return []
    how = f"{life.name} starts from {life.plan.start} with step {life.first_step}"
    return [f"{how}; bits changed in steps {steps}"]


def _all_flips_found(timeline: Timeline, answered: int) -> list[str]:
    """Check that each flip is answered once, or twice where the answering controller is killed; return the complaints.

    A flip is found before the next checkpoint or the end, in an audited step, or when the cache is read and audited, which may be
    never. The last bit of a moment may be averaged away before copies are compared; that the run ends with the reference's digest
    is checked beside this.
    """
    flips = [hit for hit in timeline.hits if hit.fault.kind == "flip"]
    least = len([hit for hit in flips if hit.fault.what not in ("cached_value", "moment")])
    most = len(flips) + sum(hit.fault.kind == "kill_controller" for hit in timeline.hits)
    if least <= answered <= most:
        return []
    return [f"bits changed in steps {[hit.step for hit in flips]}, and {answered} generations answer that"]


def _one_by_one(hit: Hit) -> list[Hit]:
    """Return one hit for each worker: those of a lost node do not end at the same moment, so the last may report, and be
    answered, before it ends too."""
    return [replace(hit, workers=(worker,)) for worker in hit.workers] or [hit]


def breaks(hit: Hit, dead_after_seconds: float) -> bool:
    """Whether a fault breaks the generation of the workers that it hits."""
    return hit.fault.kind in ENDING | ERRORS or silences(hit, dead_after_seconds)


def silences(hit: Hit, dead_after_seconds: float) -> bool:
    """Whether a fault keeps its workers from reporting, though their processes may live."""
    return hit.fault.kind in SILENCING or (hit.fault.kind == "cut" and hit.fault.seconds > dead_after_seconds)


def _recovery(timeline: Timeline, life: Life, left: dict[str, Held], hits: list[Hit]) -> Recovery:
    sure = {piece for pieces in left.values() for piece in pieces.sure}
    perhaps = {piece for pieces in left.values() for piece in pieces.perhaps}
    every = set(range(timeline.num_pieces))
    expected = LOST if every - perhaps else WHOLE if not every - sure else EITHER
    back = life.plan.start != SURVIVORS
    return Recovery(
        generation=life.name,
        expected=expected,
        hits=tuple(hits),
        missing=tuple(sorted(every - perhaps or every - sure)),
        back_to=life.first_step - 1 if back else None,
        late=life.plan.vote is not None and (str(life.plan.vote.generation), life.plan.vote.step) in timeline.late,
    )


def _befell(hit: Hit, since: Sequence[Life], limit: float) -> bool:
    """Whether a fault is part of the failure that the first of `since` answers, and not of a failure that a later one answers.

    A worker that was cut off may be a member of the answer: too few were left without it, and the answer waited until it was
    reachable.
    """
    if hit.time_seconds > limit:
        return False
    if hit.fault.kind in ERRORS:
        return hit.generation not in {life.name for life in since}
    back_again = hit.fault.kind == "cut" and hit.time_seconds + hit.fault.seconds <= limit
    return back_again or not set(hit.workers) & set(since[0].plan.participants)


def _until(lives: tuple[Life, ...]) -> float:
    """Return the latest time at which the answer was made: that of its first recorded step, or of a later generation's."""
    return min((life.first_vote_seconds for life in lives if life.first_vote_seconds is not None), default=math.inf)


def _explained(timeline: Timeline, base: Life, life: Life, hits: list[Hit]) -> list[str]:
    """Check that a generation failed only because a fault hit one of its members; a killed controller may answer a failure twice.

    No other worker may be given up, except a leaver that has sent its state, since its pod may have been handed back.
    """
    members = set(base.plan.participants)
    recorded_base = life.plan.base in (None, base.plan.generation)
    of_base = [hit for hit in hits if not recorded_base or members & set(hit.workers)]
    killed = any(hit.fault.kind == "kill_controller" for hit in timeline.hits)
    complaints = []
    if not of_base and not (killed and life.plan.generation.incarnation > base.plan.generation.incarnation):
        complaints.append(f"{life.name} answers a failure of {base.name} that no fault explains: {life.plan.reason}")
    if life.reported is not None:
        hurt = {worker for hit in timeline.hits for worker in hit.workers}
        free_to_go = set(base.plan.leavers) if base.recorded else set()
        for worker in sorted((life.ended | life.silent) & members - hurt - free_to_go):
            how = "ended" if worker in life.ended else "silent"
            complaints.append(f"{life.name} counts {worker} as {how}: no fault befell it")
    return complaints


def _resumed(timeline: Timeline, base: Life, life: Life) -> bool:
    """Whether the generation answers no failure.

    Either the run was drained or could not save its last weights, and was resumed by another controller; or it paused after a
    leave or a request for fewer workers, and has gone on by itself.
    """
    if _paused(timeline, life):
        return True
    ended = any(hit.fault.kind in ENDING_WELL for hit in timeline.hits)
    return ended and life.reported is None and life.plan.generation.incarnation > base.plan.generation.incarnation


def _paused(timeline: Timeline, life: Life) -> bool:
    fewer = any(hit.fault.kind in ("leave", *SIZES) for hit in timeline.hits)
    return fewer and life.reported is None and life.plan.start == CHECKPOINT and life.first_step - 1 in timeline.pauses


def _gone_on_after_it(timeline: Timeline, before: Sequence[Life], life: Life) -> list[str]:
    """Check that a drained run goes on after its last step, an unsaved one after a complete checkpoint, in a new lineage."""
    last = next((one.recorded[-1] for one in reversed(before) if one.recorded), 0)
    spoilt = any(hit.fault.kind in SPOILING for hit in timeline.hits)
    found = []
    if life.first_step != last + 1 and not (spoilt and life.first_step - 1 in {0, *(one.step for one in timeline.checkpoints)}):
        found.append(f"{life.name} goes on at step {life.first_step}, the run was drained at step {last}")
    if life.plan.lineage <= before[-1].plan.lineage:
        found.append(f"{life.name} goes on in lineage {life.plan.lineage}, which is not a new one")
    return found


def _fenced(base: Life, life: Life, hits: list[Hit]) -> list[str]:
    """Check that the run epoch is raised where a whole world may live on out of reach, and only there."""
    if life.plan.base != base.plan.generation:
        return []
    unreached = {worker for hit in hits if hit.fault.kind not in ENDING - KILLED_RUN | ERRORS for worker in hit.workers}
    expected = base.plan.run_epoch + (set(base.plan.placement.workers) <= unreached)
    if life.plan.run_epoch != expected:
        return [f"{life.name} has run epoch {life.plan.run_epoch}, expected {expected} after {base.name}'s {base.plan.run_epoch}"]
    return []


def _unvoted(timeline: Timeline, base: Life, life: Life) -> list[str]:
    """Check that a planned switch changes neither lineage nor step."""
    if life.plan.lineage != base.plan.lineage and life.plan.lineage not in timeline.rollbacks:
        return [f"{life.name} was switched to by a vote and begins lineage {life.plan.lineage}"]
    return []


def _gone_on(timeline: Timeline, base: Life, life: Life, hits: list[Hit]) -> list[str]:
    """Check that the lineage stays, and that the step is the last committed one, or one less where no worker saw its vote."""
    complaints = []
    began = life.plan.lineage != base.plan.lineage and life.plan.lineage not in timeline.rollbacks
    if began and not _may_have_run_between(base, life, hits):
        complaints.append(f"{life.name} goes on with all units and begins lineage {life.plan.lineage}")
    step, begun_with = life.plan.start_step, base.first_step - 1
    # A worker that dies entering tells its own last step: one less before a late commit, more where the run goes back.
    at = [replace(hit, step=begun_with) if (hit.phase, hit.generation) == (Phase.RESHAPE, base.name) else hit for hit in hits]
    lowest, highest = steps_allowed([hit for hit in at if hit.generation == base.name or hit.fault.kind not in AT_A_PLACE])
    if life.plan.lineage in timeline.rollbacks:
        # Steps that the guard rolled back are repeated: the step is at least the one to which the rollback returned, which may
        # precede the generation that rolled back.
        lowest, begun_with = (min(one, timeline.rollbacks[life.plan.lineage]) for one in (lowest, begun_with))
    if not max(lowest, begun_with) <= step <= max(highest, begun_with):
        complaints.append(f"{life.name} goes on from step {step}, the faults allow {lowest} to {highest}")
    return complaints


def _may_have_run_between(base: Life, life: Life, hits: list[Hit]) -> bool:
    """Whether a plan was prepared between the two, and the members that could report its vote ended.

    Then it is unknown whether that plan ran, so the run goes on in another lineage.
    """
    answered = life.plan.base or base.plan.generation
    skipped = life.plan.generation.counter - answered.counter > 1
    return skipped and any(hit.fault.kind in ENDING for hit in hits)


def steps_allowed(hits: list[Hit]) -> tuple[float, float]:
    """Return the least and the greatest last committed step after faults of one generation.

    A worker that computes step s has seen the vote of s - 1. No step passes a vote that one member has not entered.
    """
    lowest, highest = 0.0, math.inf
    for hit in hits:
        if hit.fault.kind not in AT_A_PLACE or hit.fault.kind == "kill_in_checkpoint":
            lowest = max(lowest, hit.step - 1)
        elif hit.phase in BEFORE_THE_VOTE:
            lowest, highest = max(lowest, hit.step - 1), min(highest, hit.step - 1)
        else:
            lowest, highest = max(lowest, hit.step - 1), min(highest, hit.step)
    return min(lowest, highest), highest


def _gone_back(timeline: Timeline, base: Life, life: Life, allowed: set[int]) -> list[str]:
    """Check that the run goes back to the newest complete checkpoint (`allowed`), in a new lineage, and reports it."""
    complaints = []
    step = life.first_step - 1
    if life.plan.lineage <= base.plan.lineage:
        complaints.append(f"{life.name} goes back to step {step} in lineage {life.plan.lineage}, which is not a new one")
    if step not in allowed:
        complaints.append(f"{life.name} goes back to step {step}, the newest complete checkpoint was {sorted(allowed)}")
    if not any(lineage == life.plan.lineage and f"back to step {step}" in reason for lineage, reason in timeline.failures):
        complaints.append(f"no failure event of lineage {life.plan.lineage} says 'back to step {step}'")
    if life.recorded and (life.plan.lineage, step) not in timeline.cuts:
        complaints.append(f"metrics.jsonl has no cut to step {step} for lineage {life.plan.lineage}")
    return complaints
