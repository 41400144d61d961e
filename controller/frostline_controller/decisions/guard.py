"""The guard: a statistical test on held-out samples for harm by a freeze, which is then rolled back.

A reading is the list of losses of the guard split, one for each sample in a fixed order, so that a reading after a freeze pairs
with the last reading before it. Two kinds of chance move a reading: which samples are in the split, and at which weights the
reading is taken, since the loss of a model that learns varies from interval to interval. The first kind is estimated from the
spread of the samples' rises d_i, the second from rises between readings without a freeze between them (`chance_of`). The freeze
is rolled back where the one-sided lower confidence bound

    mean(d) - t(confidence, f) * sqrt(sd(d)^2 / n + chance),   f: degrees of freedom by Welch and Satterthwaite

exceeds margin * (mean loss before). So neither an unlucky reading nor a rise within the margin suffices. A freeze is watched for
`guard_intervals` readings and is confirmed after that. The job's confidence holds for all of these readings together, and an
early reading needs a higher confidence than a later one (`confidence_of`), because a rise by chance is often gone at the next
reading and harm is not. A rollback restores weights, optimizer, data cursor and freeze point together and quarantines the
boundary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from frostline_contract.plan import Decision
from frostline_contract.statistics import GuardReading, IntervalStatistics
from frostline_controller.decisions.inputs import FreezeInputs, blocks_frozen, freeze_point_of
from frostline_controller.decisions.student_t import t_quantile
from frostline_controller.decisions.surviving import Change, changes, timeline

CHANCE_MOVES = 12
"""How many moves (differences between consecutive readings) the estimate of chance uses: the newest ones, since the model learnt
faster at older ones."""
SUREST = math.nextafter(1.0, 0.0)
"""Most confidence that a reading is held to: with very many readings the first ones' confidence would be rounded to certainty."""


@dataclass(frozen=True)
class Chance:
    """The estimated variation of readings without a freeze.

    Attributes:
        variance: of the relative change of the mean loss from one reading to a later one.
        rises: number of moves that were rises, from which the variance is estimated: its degrees of freedom.
        moves: number of moves that were examined.
    """

    variance: float = 0.0
    rises: int = 0
    moves: int = 0


@dataclass(frozen=True)
class Comparison:
    """Two paired readings.

    Attributes:
        breached: whether the rise is too large: `bound` is above `tolerated`, or the later reading is not finite.
        rise: mean rise of the loss.
        bound: the lower confidence bound of `rise`.
        tolerated: margin * |mean loss before|.
        samples: number of samples in each reading.
        by_chance: rise of a reading without a freeze (one standard deviation), estimated from `moves` moves; 0.0: not estimated.
    """

    breached: bool
    rise: float
    bound: float
    tolerated: float
    samples: int
    by_chance: float = 0.0
    moves: int = 0

    @property
    def text(self) -> str:
        """The comparison for people: rise, lower bound, verdict, and what readings rise by chance."""
        verdict = "exceeds" if self.breached else "is within"
        chance = f"; without a freeze it rose by {self.by_chance:.4g} by chance ({self.moves} readings)" if self.by_chance else ""
        return (
            f"guard loss {self.rise:+.4g} over {self.samples} samples, lower bound {self.bound:+.4g} "
            f"{verdict} the tolerated {self.tolerated:.4g}{chance}"
        )


@dataclass(frozen=True)
class Watched:
    """A freeze that the guard watches.

    Attributes:
        change: the freeze.
        before: the last finite reading before the freeze; None where there is none.
        reading: number of the newest reading, counted from 1 after the freeze.
    """

    change: Change
    before: GuardReading | None
    reading: int


def compare(
    before: GuardReading, after: GuardReading, margin: float, confidence: float, chance: Chance = Chance()
) -> Comparison:  # fmt: skip
    """The paired one-sided t test. A single sample has no bound and is never a breach.

    Args:
        before: the reading before the freeze, all losses finite.
        after: a reading after the freeze, of the same samples. A reading that is not finite is always a breach.
        margin: the tolerated rise, as a fraction of the mean loss before.
        confidence: of the lower bound, between 0 and 1.
        chance: how readings vary without a freeze; the default: not at all.

    Raises:
        ValueError: the readings do not pair.
    """
    count = len(before.losses)
    if len(after.losses) != count:
        raise ValueError(f"guard readings hold {count} and {len(after.losses)} samples; the guard split must not change in a run")
    tolerated = margin * abs(_mean(before))
    if not all(map(math.isfinite, after.losses)):
        return Comparison(True, math.nan, math.inf, tolerated, count)
    rises = [later - earlier for earlier, later in zip(before.losses, after.losses, strict=True)]
    mean = math.fsum(rises) / count
    if count < 2:
        return Comparison(False, mean, -math.inf, tolerated, count)
    deviation = math.sqrt(math.fsum((rise - mean) ** 2 for rise in rises) / (count - 1))
    of_samples, of_weights = deviation**2 / count, chance.variance * _mean(before) ** 2
    degrees = float(count - 1)
    if of_weights:
        parts = of_samples**2 / (count - 1) + of_weights**2 / chance.rises
        degrees = max(1.0, (of_samples + of_weights) ** 2 / parts)
    bound = mean - t_quantile(confidence, degrees) * math.sqrt(of_samples + of_weights)
    return Comparison(bound > tolerated, mean, bound, tolerated, count, math.sqrt(of_weights), chance.moves)


def confidence_of(reading: int, readings: int, overall: float) -> float:
    """The confidence that one reading is held to, so that all readings together are held to `overall`.

    Of the errors that `overall` allows, the share (reading / readings) cubed may have been spent by then (Kim and DeMets 1987).

    Args:
        reading: number of the reading, from 1.
        readings: number of readings for which a freeze is watched.
        overall: the job's confidence, 0.0 to 1.0.
    """
    spent = (reading / readings) ** 3 - ((reading - 1) / readings) ** 3
    return min(1.0 - (1.0 - overall) * spent, SUREST)


def chance_of(statistics: Sequence[IntervalStatistics], before: int) -> Chance:
    """The variation of readings by chance, estimated up to interval `before` from moves without a change of the freeze point.

    A move is measured relative to the mean of the two losses, since the variation shrinks with the loss. Only rises count, and
    they count twice: without a trend half of all moves by chance are falls, but a fall may also be learning. While the loss keeps
    falling, a rise by chance first has to make up for that fall. This holds after a freeze as before it, so the visible rises are
    the right measure.
    """
    read = [(entry, reading) for entry in statistics if entry.number <= before and (reading := finite_reading(entry))]
    moves = [
        _relative(_mean(earlier), _mean(later))
        for (first, earlier), (second, later) in pairwise(read)
        if first.freeze_point == second.freeze_point and len(later.losses) == len(earlier.losses)
    ][-CHANCE_MOVES:]
    rises = [move for move in moves if move > 0.0]
    if not rises:
        return Chance(moves=len(moves))
    return Chance(2.0 * math.fsum(rise * rise for rise in rises) / len(moves), len(rises), len(moves))


def _relative(earlier: float, later: float) -> float:
    """The rise divided by the mean of both values, so that a rise and the fall back have the same size."""
    middle = (abs(earlier) + abs(later)) / 2.0
    return (later - earlier) / middle if middle else 0.0


def _mean(reading: GuardReading) -> float:
    return math.fsum(reading.losses) / len(reading.losses)


def finite_reading(entry: IntervalStatistics) -> GuardReading | None:
    """An interval's guard reading where it can serve as a baseline: not empty, all losses finite."""
    reading = entry.guard
    return reading if reading and reading.losses and all(map(math.isfinite, reading.losses)) else None


def watched_freezes(inputs: FreezeInputs) -> tuple[Watched, ...]:
    """The freezes in force that are not yet confirmed, newest first: those that the newest interval's reading tests."""
    window = inputs.freeze.rails.guard_intervals
    # A void rollback changed nothing, so the reading that led to it does not count as one of the window's readings.
    unanswered = {
        number
        for number, decision in timeline(inputs.decisions, inputs.calendar).items()
        if decision.void and decision.kind == "rollback"
    }
    watched = []
    for change in changes(inputs.statistics, inputs.calendar):
        if not change.before < change.after <= inputs.current:
            continue
        earlier = [finite_reading(entry) for entry in inputs.statistics if entry.number <= change.number]
        before = next((reading for reading in reversed(earlier) if reading), None)
        read = [entry for entry in inputs.statistics if change.number < entry.number < inputs.newest.number and entry.guard]
        answered = sum(1 for entry in read if entry.number not in unanswered)
        if answered < window:
            watched.append(Watched(change, before, answered + 1))
    return tuple(reversed(watched))


def breach(inputs: FreezeInputs) -> tuple[Change | None, str]:
    """(the freeze to roll back or None, the finding in words, '' where no freeze was tested), by the newest reading.

    Where several freezes are watched, each is compared with its own baseline, and the newest one that breaches is rolled back.
    That undoes the fewest steps, and the repeated steps are tested again.
    """
    newest, rails = inputs.newest, inputs.freeze.rails
    if newest.guard is None:
        return None, ""
    findings = []
    for freeze in watched_freezes(inputs):
        if freeze.before is None:
            findings.append(f"freeze {freeze.change.number} has no reading before it to be held against")
            continue
        chance = chance_of(inputs.statistics, freeze.change.number)
        confidence = confidence_of(freeze.reading, rails.guard_intervals, rails.guard_confidence)
        result = compare(freeze.before, newest.guard, rails.guard_margin, confidence, chance)
        if result.breached:
            return freeze.change, result.text
        findings.append(f"freeze {freeze.change.number} holds: {result.text}")
    return None, "; ".join(findings)


def quarantined_from(decisions: Sequence[Decision]) -> int | None:
    """The shallowest freeze point that was rolled back, or None, from all decisions of all lineages.

    The rolled-back freeze took effect right after the step to which the rollback returned. Where this freeze is no longer among
    the decisions, it is taken to be one block deeper than the freeze point after the rollback.
    """
    boundaries = []
    for index, rollback in enumerate(decisions):
        if rollback.kind != "rollback" or rollback.void:
            continue
        undone = [
            earlier.freeze_point
            for earlier in decisions[:index]
            if earlier.kind == "freeze" and not earlier.void and earlier.effective_step == rollback.rollback_to_step + 1
        ]
        deeper = freeze_point_of(blocks_frozen(rollback.freeze_point) + 1)
        boundaries.append(undone[-1] if undone else deeper)
    return min(boundaries, default=None)
