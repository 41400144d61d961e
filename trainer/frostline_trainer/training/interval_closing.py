"""What is done after an interval's last step: the guard split is scored and the interval's statistics are frozen.

It can be done again: where a failure comes between, nothing of it is in the run state yet.
"""

import math

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.phases import Phase
from frostline_contract.statistics import GuardReading, IntervalStatistics
from frostline_trainer.engine.evaluation import evaluate, sample_losses
from frostline_trainer.engine.generation import Generation
from frostline_trainer.training.run_state import IntervalSums, RunState


def is_open(state: RunState, calendar: DecisionCalendar) -> bool:
    """Whether the last committed step ends an interval that has not been closed yet."""
    return state.step > 0 and calendar.ends_interval(state.step) and state.interval.first_step <= state.step


def close_interval(generation: Generation, state: RunState, calendar: DecisionCalendar) -> None:
    """Score the guard split where it is due, and freeze the statistics of the interval that ends with the last committed step.

    Collective. They leave when a later vote has passed.
    """
    context, step, sums = generation.context, state.step, state.interval
    number = calendar.interval_of(step)
    every = context.job.evaluation.every_intervals
    guard = _read_guard(generation) if every and number % every == 0 else None
    count = max(sums.accepted, 1)
    statistics = IntervalStatistics(
        number=number,
        lineage=state.lineage,
        first_step=calendar.first_step_of(number),
        last_step=step,
        freeze_point=state.freeze_point,
        unit_gradient_norms=tuple(math.sqrt(square / count) for square in sums.unit_squares or [0.0] * context.num_units),
        unit_parameters=tuple(sum(p.numel() for p in unit.parameters()) for unit in context.cut.units),
        unit_forward_flops=context.unit_flops,
        learning_rate=state.learning_rate if sums.accepted else 0.0,
        learning_rate_peak=state.learning_rate_peak,
        loss_mean=sums.loss_sum / count,
        accepted_steps=sums.accepted,
        guard=guard,
    )
    if guard is not None:
        loss, best = guard.metrics["loss"], state.best_guard_loss
        state.best_guard_loss = loss if best is None else min(best, loss)
        if state.unconfirmed is not None:
            state.unconfirmed = state.unconfirmed.model_copy(update={"evaluation": guard.metrics})
    state.unconfirmed_statistics, state.interval = statistics, IntervalSums(first_step=step + 1)


def _read_guard(generation: Generation) -> GuardReading:
    generation.phase(Phase.EVALUATE)
    rows, metrics = evaluate(generation, generation.context.data.guard)
    return GuardReading(losses=sample_losses(rows), metrics=metrics)
