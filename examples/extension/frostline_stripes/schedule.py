"""A pipeline schedule: 1F1B with twice the warm-up (eager 1F1B, Zhuang et al. 2023), which hides slow links behind computing.

A schedule is data: the order of forwards and backwards on one pipeline rank. It moves no tensor and changes no bit, since
gradients are summed in the tree's order whatever the order of computation. One rule comes with that: on each stage the backwards
of a leaf's micro-batches follow each other in ascending order. `check_schedule` runs a schedule on paper and says where it breaks
that rule or would wait for ever.
"""

from frostline_trainer.engine.schedules import Action


def eager_1f1b(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Action]:
    """Up to 2 * (pp_degree - pp_rank) - 1 micro-batches in flight. Raises ValueError for more than one stage a rank."""
    if virtual_stages != 1:
        raise ValueError(f"schedule eager_1f1b runs one stage a rank, virtual_stages is {virtual_stages}; set it to 1")
    ahead = min(2 * (pp_degree - 1 - pp_rank), num_microbatches)
    actions = [Action(True, pp_rank, number) for number in range(ahead)]
    for number in range(num_microbatches):
        if ahead + number < num_microbatches:
            actions.append(Action(True, pp_rank, ahead + number))
        actions.append(Action(False, pp_rank, number))
    return actions
