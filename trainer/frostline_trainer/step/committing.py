"""Commits a step whose vote has passed: updates weights and run state, with equal results on all members, at once or late.

After an interval's last step `close_interval` scores the guard split and fixes the interval's statistics. It can be repeated
after a failure, because it writes to the run state only at its end.
"""

import logging
import math
import time
from collections.abc import Sequence
from itertools import pairwise

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job
from frostline_contract.learning_rate import learning_rate
from frostline_contract.phases import Phase
from frostline_contract.plan import Decision, StateTag
from frostline_contract.statistics import GuardReading, IntervalStatistics, StepRecord
from frostline_trainer.families.base import learnable
from frostline_trainer.step.evaluation import evaluate, sample_losses
from frostline_trainer.step.generation import Generation, StepGradients
from frostline_trainer.step.probing import Likeness, output_changes, read_likenesses
from frostline_trainer.step.run_state import IntervalSums, RunState
from frostline_trainer.step.usage import gather_usage
from frostline_trainer.step.vote import VoteResult
from frostline_trainer.tensor.state import whole_elements

log = logging.getLogger(__name__)


def commit_step(generation: Generation, state: RunState, calendar: DecisionCalendar, step: int, gradients: StepGradients,
                result: VoteResult) -> None:  # fmt: skip
    """Update the weights, or refuse the step if a value is not finite. The caller calls `record_step` next.

    `state` changes only after all units are intact again.
    """
    training = generation.context.job.training
    tag = StateTag(lineage=state.lineage, step=step, generation=generation.plan.generation)
    audited_step = step if gradients.audited else state.audited_step
    if not result.finite:
        log.warning("step %d refused: loss %s, gradient norm %s", step, result.loss, result.gradient_norm)
        generation.refuse(gradients, tag)
        state.refused_steps += 1
        state.audited_step = audited_step
        return
    rate = learning_rate(training.optimizer, training.schedule, state.accepted_steps + 1, calendar.total_steps)
    rate *= _rate_scale(generation)
    generation.commit(gradients, rate, result.gradient_norm, tag)
    # With batch: per_replica one step counts as dp_degree steps of the learning-rate schedule.
    state.accepted_steps += generation.shape.dp_degree if training.batch == "per_replica" else 1
    state.learning_rate_peak = max(state.learning_rate_peak, rate)
    state.learning_rate = rate
    state.audited_step = audited_step
    sums = state.interval
    sums.accepted += 1
    sums.loss_sum += result.loss
    sums.unit_squares = [
        a + b for a, b in zip(sums.unit_squares or [0.0] * len(result.unit_squares), result.unit_squares, strict=True)
    ]


def record_step(generation: Generation, state: RunState, step: int, result: VoteResult, seconds: float,
                parts: dict[str, float]) -> None:  # fmt: skip
    """Make the step the last committed one; its record stays unconfirmed until a later vote.

    Args:
        generation, state, step, result: As for `commit_step`.
        seconds: The step's duration.
        parts: Seconds of the step by phase.
    """
    shape = generation.shape
    state.step, state.vote_lineage, state.vote_generation = step, state.lineage, generation.plan.generation
    state.data_epoch, state.data_offset = generation.feed.place_of(step + 1)
    refused = not result.finite
    if result.cache_hits + result.cache_misses and not state.cache_step:
        state.cache_step = step
    state.unconfirmed = StepRecord(
        lineage=state.lineage,
        step=step,
        loss=result.loss,
        learning_rate=0.0 if refused else state.learning_rate,
        gradient_norm=result.gradient_norm,
        unit_gradient_norms=tuple(math.sqrt(square) for square in result.unit_squares),
        freeze_point=state.freeze_point,
        refused=refused,
        degrees=shape.degrees,
        generation=str(generation.plan.generation),
        step_seconds=seconds,
        step_parts=parts,
        samples_per_second=generation.context.batch_size(shape.dp_degree) / seconds if seconds > 0 else 0.0,
        cache_hits=result.cache_hits,
        cache_misses=result.cache_misses,
        time_seconds=time.time(),
        numerics_hash=state.chain(step, refused, generation.context.numerics),
    )
    if refused and state.refused_steps > generation.context.job.training.refused_steps_max:
        state.failure = _refusal_text(generation, state, step, result)


def is_open(state: RunState, calendar: DecisionCalendar) -> bool:
    """Whether the last committed step ends an interval that has not been closed yet."""
    return state.step > 0 and calendar.ends_interval(state.step) and state.interval.first_step <= state.step


def close_interval(generation: Generation, state: RunState, calendar: DecisionCalendar) -> None:
    """Score the guard split if it is due, and fix the statistics of the interval that ends with the last committed step.

    Collective. The statistics are sent after a later vote has passed.
    """
    context, step, sums = generation.context, state.step, state.interval
    number = calendar.interval_of(step)
    guard = _read_guard(generation, step) if guard_is_due(context.job, context.num_units, state.decisions, number) else None
    likenesses = _read_outputs(generation) if context.job.freeze.probes and context.job.elastic.freeze else []
    count = max(sums.accepted, 1)
    statistics = IntervalStatistics(
        number=number,
        lineage=state.lineage,
        first_step=calendar.first_step_of(number),
        last_step=step,
        freeze_point=state.freeze_point,
        unit_gradient_norms=tuple(math.sqrt(square / count) for square in sums.unit_squares or [0.0] * context.num_units),
        unit_parameters=tuple(whole_elements(unit, learnable(unit)) for unit in context.cut.units),
        unit_forward_flops=context.unit_flops,
        learning_rate=state.learning_rate if sums.accepted else 0.0,
        learning_rate_peak=state.learning_rate_peak,
        loss_mean=sums.loss_sum / count,
        accepted_steps=sums.accepted,
        guard=guard,
        unit_output_changes=output_changes(state.likenesses, likenesses),
    )
    if state.unconfirmed is not None:
        state.unconfirmed = state.unconfirmed.model_copy(update={"usage": gather_usage(generation)})
    if guard is not None:
        loss, best = guard.metrics["loss"], state.best_guard_loss
        state.best_guard_loss = loss if best is None else min(best, loss)
        if state.unconfirmed is not None:
            state.unconfirmed = state.unconfirmed.model_copy(update={"evaluation": guard.metrics})
        if generation.placement.use_cache and state.freeze_point:
            state.cache_step = state.cache_step or step  # the score may have read the cache before any step has
    state.unconfirmed_statistics, state.interval, state.likenesses = statistics, IntervalSums(first_step=step + 1), likenesses


def guard_is_due(job: Job, num_units: int, decisions: Sequence[Decision], interval: int) -> bool:
    """Whether the guard split is scored at an interval's end: every `evaluation.every_intervals`, and while a freeze is watched.

    The second case finds a harmful freeze after one interval, however seldom the split is scored otherwise.

    Args:
        job: The run's.
        num_units: Of the model.
        decisions: All adopted decisions.
        interval: The interval's number.
    """
    every, rails = job.evaluation.every_intervals, job.freeze.rails
    if every <= 1 or interval % every == 0:
        return bool(every)
    points = [(0, job.initial_freeze_point(num_units)), *((one.number, one.freeze_point) for one in decisions)]
    freezes = [number for (_, before), (number, after) in pairwise(points) if after > before]
    watched = range(freezes[-1] + 1, freezes[-1] + rails.guard_intervals + 1) if freezes else ()
    return "guard" not in rails.off and interval in watched


def _rate_scale(generation: Generation) -> float:
    """Factor of the learning rate. With batch: per_replica the global batch grows with dp_degree; the rate may too (opt-in)."""
    training, degree = generation.context.job.training, generation.shape.dp_degree
    if training.batch != "per_replica" or training.learning_rate_scaling == "none":
        return 1.0
    return float(degree) if training.learning_rate_scaling == "linear" else degree**0.5


def _refusal_text(generation: Generation, state: RunState, step: int, result: VoteResult) -> str:
    bad = [unit for unit, square in enumerate(result.unit_squares) if not square < float("inf")]
    names = [generation.context.cut.unit_names[unit] for unit in bad]
    samples = [index for index in generation.feed.batch(step).indices if index >= 0]
    return (
        f"{state.refused_steps} steps had non-finite values, more than "
        f"training.refused_steps_max {generation.context.job.training.refused_steps_max}; "
        f"step {step}: loss {result.loss}, gradient not finite in {names[:1] or 'no unit'}, samples {samples[:8]}...; "
        "lower training.optimizer.learning_rate or check these samples"
    )


def _read_outputs(generation: Generation) -> list[Likeness]:
    generation.phase(Phase.EVALUATE)
    return read_likenesses(generation)


def _read_guard(generation: Generation, step: int) -> GuardReading:
    generation.phase(Phase.EVALUATE)
    rows, metrics = evaluate(generation, generation.context.data.guard, step)
    return GuardReading(losses=sample_losses(rows), metrics=metrics)
