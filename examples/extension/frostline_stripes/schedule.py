"""A pipeline schedule: all forwards, then the backwards with the newest micro-batch first.

A schedule is data: the order of forwards and backwards on one pipeline rank. It moves no tensor and changes no bit, since
gradients are summed in the tree's order whatever the order of computation. `check_schedule` runs one on paper.
"""

from frostline_trainer.engine.schedules import Action


def last_in_first_out(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Action]:
    """GPipe with its backwards in reverse order. Raises ValueError for more than one stage a rank."""
    if virtual_stages != 1:
        raise ValueError(f"schedule last_in_first_out runs one stage a rank, virtual_stages is {virtual_stages}; set it to 1")
    numbers = range(num_microbatches)
    forwards = [Action(True, pp_rank, number) for number in numbers]
    return forwards + [Action(False, pp_rank, number) for number in reversed(numbers)]
