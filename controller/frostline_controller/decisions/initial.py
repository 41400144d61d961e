"""What is frozen before any decision: `freeze.initial_units`, and whether a model has so many units that may freeze."""

from frostline_contract.job import Job


def check_initial_units(units: int, num_units: int) -> None:
    """Raise ValueError where a model of `num_units` units cannot begin with the first `units` frozen."""
    deepest = num_units - 1
    if units > deepest:
        raise ValueError(
            f"freeze.initial_units is {units}, and the model has {num_units} units: the head always learns; "
            f"set it to {deepest} or less"
        )


def initial_freeze_reason(job: Job, num_units: int) -> str:
    """Why units are frozen from step 1, in words; empty where none are."""
    units = job.initial_freeze_point
    if units == 0:
        return ""
    named = "unit 0 is" if units == 1 else f"units 0 to {units - 1} are"
    return f"freeze.initial_units is {units}: {named} frozen from step 1, of {num_units} units"
