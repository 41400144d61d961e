"""Units that are frozen from step 1, before any decision: `freeze.initial_units` and the units before the first adapter.

The module also checks that the model has that many units which may freeze.
"""

from frostline_contract.job import Job


def check_initial_units(units: int, num_units: int) -> None:
    """Raise ValueError where a model of `num_units` units cannot begin with the first `units` frozen."""
    deepest = num_units - 1
    if units > deepest:
        raise ValueError(
            f"freeze.initial_units is {units}, and the model has {num_units} units: the head always learns; "
            f"set it to {deepest} or less"
        )


def initial_freeze_reason(job: Job, num_units: int, tied: bool) -> str:
    """Why units are frozen from step 1, in words; empty where none are.

    Args:
        job: the run's job.
        num_units: number of units of the model.
        tied: whether the head uses the matrix of unit 0.
    """
    units, lowest = job.initial_freeze_point(num_units), job.lowest_freeze_point(num_units)
    if units == 0:
        return ""
    named = "unit 0 is" if units == 1 else f"units 0 to {units - 1} are"
    why = f"freeze.initial_units is {units}" if units > lowest else f"unit {lowest} is the first one with adapters"
    text = f"{why}: {named} frozen from step 1, of {num_units} units"
    return f"{text}; {about_the_tie(job.model.untie_on_freeze)}" if tied else text


def about_the_tie(untie_on_freeze: bool) -> str:
    """A sentence on the effect of freezing unit 0 where the head shares its matrix (docs/protocols.md 1.7)."""
    if untie_on_freeze:
        return "tied embeddings: untie_on_freeze lets the head's own matrix go on learning"
    return "tied embeddings: freezing unit 0 stops the head's matrix too"
