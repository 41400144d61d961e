"""Steps and samples of passes over the training data, as the trainer counts: a pass's last step has what is left of it."""

from math import ceil

ROUNDING = 1e-6
"""Samples by which a product of epochs and samples may exceed its exact value."""


def samples_after(samples: int, steps: int, samples_of_step: int, train_samples: int) -> int:
    """Return the samples trained after further steps.

    Args:
        samples: samples trained before.
        steps: number of the further steps.
        samples_of_step: samples of each step but the last of a pass.
        train_samples: of the training split; 0: unknown, and all steps are alike.
    """
    if not train_samples:
        return samples + steps * samples_of_step
    passes, offset = divmod(samples, train_samples)
    to_end = ceil((train_samples - offset) / samples_of_step)
    if steps < to_end:
        return samples + steps * samples_of_step
    whole, rest = divmod(steps - to_end, ceil(train_samples / samples_of_step))
    return (passes + 1 + whole) * train_samples + rest * samples_of_step


def steps_to(wanted: float, samples: int, samples_of_step: int, train_samples: int) -> int:
    """Return the least number of further steps after which `wanted` samples are trained; 0 or less where they are already.

    Args:
        wanted: samples in all.
        samples, samples_of_step, train_samples: as in `samples_after`.
    """
    wanted = ceil(wanted - ROUNDING)
    if not train_samples or wanted <= samples:
        return ceil((wanted - samples) / samples_of_step)
    (passes, offset), (later, rest) = divmod(samples, train_samples), divmod(wanted, train_samples)
    if later == passes:
        return ceil((wanted - samples) / samples_of_step)
    between = (later - passes - 1) * ceil(train_samples / samples_of_step)
    return ceil((train_samples - offset) / samples_of_step) + between + ceil(rest / samples_of_step)
