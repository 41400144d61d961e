"""The learning rate of a step: warm-up, then decay, by accepted steps (a refused step does not move it)."""

import math

from frostline_contract.job.training import OptimizerSection, ScheduleSection


def learning_rate(section: OptimizerSection, schedule: ScheduleSection, accepted_step: int, total_steps: int) -> float:
    """The learning rate of an accepted step.

    Linear from 0 over the first round(warmup_fraction * total_steps) steps, whose last has the peak; then from the peak to
    final_fraction of it, by the share of the remaining steps. Plain float arithmetic, so every worker gets the same bits.

    Args:
        section: the job's optimizer, with the peak.
        schedule: the job's schedule.
        accepted_step: number of the accepted step, from 1.
        total_steps: steps of the run.
    """
    assert accepted_step >= 1, f"accepted steps count from 1, got {accepted_step}"
    peak = section.learning_rate
    warmup_steps = round(schedule.warmup_fraction * total_steps)
    if accepted_step <= warmup_steps:
        return peak * accepted_step / warmup_steps
    progress = min(1.0, (accepted_step - warmup_steps) / max(1, total_steps - warmup_steps))
    final = schedule.final_fraction
    if schedule.name == "constant":
        return peak
    if schedule.name == "linear":
        return peak * (final + (1.0 - final) * (1.0 - progress))
    return peak * (final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress)))
