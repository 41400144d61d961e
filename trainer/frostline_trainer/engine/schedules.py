"""Pipeline schedules as data: for each pipeline rank the order of its forwards and backwards.

A schedule is a function of (pp_rank, pp_degree, virtual_stages, number of micro-batches) and nothing else; it moves no data and
changes no bit, since gradients are summed in the tree's order whatever the order of computation. Only the backwards of one leaf
must follow each other in ascending order on each stage, which `check_schedule` checks. A new schedule is one function and one
line in SCHEDULES, or an entry point of the group `frostline.schedules`.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from itertools import pairwise
from typing import NamedTuple

from frostline_contract.shape import stages_of


class Action(NamedTuple):
    """One forward or backward of one micro-batch (counted within the replica) through one stage."""

    forward: bool
    stage: int
    micro_batch: int


Schedule = Callable[[int, int, int, int], list[Action]]


def gpipe(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Action]:
    """All forwards, then all backwards (Huang et al. 2019). With virtual stages: chunk by chunk, and back."""
    stages = stages_of(pp_rank, pp_degree, virtual_stages)
    forwards = [Action(True, stage, m) for stage in stages for m in range(num_microbatches)]
    backwards = [Action(False, stage, m) for stage in reversed(stages) for m in range(num_microbatches)]
    return forwards + backwards


def one_forward_one_backward(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Action]:
    """1F1B (PipeDream-flush, Narayanan et al. 2021): warm-up, steady state, cool-down. One stage a rank."""
    if virtual_stages != 1:
        raise ValueError(f"schedule 1f1b runs one stage a rank, virtual_stages is {virtual_stages}; use interleaved_1f1b")
    warmup = min(pp_degree - 1 - pp_rank, num_microbatches)
    actions = [Action(True, pp_rank, m) for m in range(warmup)]
    for m in range(num_microbatches - warmup):
        actions += [Action(True, pp_rank, warmup + m), Action(False, pp_rank, m)]
    return actions + [Action(False, pp_rank, m) for m in range(num_microbatches - warmup, num_microbatches)]


def interleaved(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int) -> list[Action]:
    """Interleaved 1F1B (Narayanan et al. 2021): each rank alternates between its stages, in rounds of pp_degree micro-batches.

    A last round may hold fewer micro-batches than pp_degree, so that replicas may run any number of them: the order is that of
    whole rounds without the actions that are not there. (An order made from a short round itself can wait for ever: its
    warm-ups would no longer fit each other's.)
    """
    rounded = -(-num_microbatches // pp_degree) * pp_degree
    stages = stages_of(pp_rank, pp_degree, virtual_stages)
    forwards = _rounds(stages, pp_degree, rounded, forward=True)
    backwards = _rounds(stages[::-1], pp_degree, rounded, forward=False)
    warmup = min((pp_degree - pp_rank - 1) * 2 + (virtual_stages - 1) * pp_degree, len(forwards))
    actions = forwards[:warmup]
    for index, forward in enumerate(forwards[warmup:]):
        actions += [forward, backwards[index]]
    actions += backwards[len(forwards) - warmup :]
    return [action for action in actions if action.micro_batch < num_microbatches]


def _rounds(stages: list[int], pp_degree: int, num_microbatches: int, forward: bool) -> list[Action]:
    order = []
    for start in range(0, num_microbatches, pp_degree):
        members = range(start, start + pp_degree)
        order += [Action(forward, stage, m) for stage in stages for m in members]
    return order


SCHEDULES: dict[str, Schedule] = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "interleaved_1f1b": interleaved}


def schedule_named(name: str) -> Schedule:
    """The schedule of that name, built in or an entry point's. Raises ValueError that lists the known ones."""
    if name in SCHEDULES:
        return SCHEDULES[name]
    added = {point.name: point for point in entry_points(group="frostline.schedules")}
    if name in added:
        return added[name].load()
    raise ValueError(f"placement.schedule is {name!r}; known: {', '.join([*SCHEDULES, *added])}")


def check_schedule(schedule: Schedule, pp_degree: int, virtual_stages: int, leaf_sizes: Sequence[int]) -> None:
    """Run a schedule on paper. Raises ValueError where it misses or repeats an action, would wait for ever or lose a gradient.

    leaf_sizes: micro-batches of each leaf that the replica computes, in order (`training.num_microbatches` over
    `training.reduction_leaves`, as even as possible). Where sums are not exact there are no leaves: ones.
    """
    num_microbatches = sum(leaf_sizes)
    queues = [schedule(r, pp_degree, virtual_stages, num_microbatches) for r in range(pp_degree)]
    last = pp_degree * virtual_stages - 1
    done: set[Action] = set()
    places = [0] * pp_degree
    while any(place < len(queue) for place, queue in zip(places, queues, strict=True)):
        moved = False
        for r, queue in enumerate(queues):
            while places[r] < len(queue) and _may_run(queue[places[r]], last, done):
                if queue[places[r]] in done:
                    raise ValueError(f"schedule repeats {queue[places[r]]} on pp_rank {r}")
                done.add(queue[places[r]])
                places[r] += 1
                moved = True
        if not moved:
            waiting = {r: queue[place] for r, (place, queue) in enumerate(zip(places, queues, strict=True)) if place < len(queue)}
            raise ValueError(f"schedule waits for ever: {waiting}")
    if len(done) != 2 * (last + 1) * num_microbatches:
        raise ValueError(f"schedule runs {len(done)} actions, expected {2 * (last + 1) * num_microbatches}")
    for queue in queues:
        _check_leaves(queue, leaf_sizes)


def _check_leaves(queue: Sequence[Action], leaf_sizes: Sequence[int]) -> None:
    """A stage sums one leaf at a time (`engine.gradients`), so a leaf's backwards follow each other, in ascending order."""
    leaf_of = [leaf for leaf, size in enumerate(leaf_sizes) for _ in range(size)]
    for stage in sorted({action.stage for action in queue}):
        order = [action.micro_batch for action in queue if action.stage == stage and not action.forward]
        for before, micro_batch in pairwise([-1, *order]):
            first_of_leaf = micro_batch == 0 or leaf_of[micro_batch - 1] != leaf_of[micro_batch]
            if not first_of_leaf and before != micro_batch - 1:
                raise ValueError(
                    f"schedule runs the backward of micro-batch {micro_batch} on stage {stage} "
                    f"{f'after that of {before}' if before >= 0 else 'first'}: it belongs to one leaf with micro-batch "
                    f"{micro_batch - 1}, whose backward must come right before, or gradients are lost; order them so, "
                    "or set training.reduction_leaves to the number of micro-batches"
                )


def _may_run(action: Action, last_stage: int, done: set[Action]) -> bool:
    if action.forward:
        return action.stage == 0 or Action(True, action.stage - 1, action.micro_batch) in done
    if action.stage == last_stage:
        return Action(True, action.stage, action.micro_batch) in done
    own = Action(True, action.stage, action.micro_batch) in done
    return own and Action(False, action.stage + 1, action.micro_batch) in done
