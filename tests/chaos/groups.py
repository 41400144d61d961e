"""Groups of workers, with columns or levels, and shared-out state for drawn cases whose blocks are in tiles.

They are drawn with random numbers of their own, so that every other choice of a seed is the one that it was without them.
"""

import random
from dataclasses import replace
from typing import Any

from tests.chaos.cases import Case
from tests.chaos.jobs import ADAPTED, ADAPTED_IN_TILES, IN_A_GRID, TILED, TILED_AND_SHARED

GROUP = 2
"""Workers of a group: as many as there are tiles."""
SHAPES: dict[int, tuple[tuple[int, int], ...]] = {
    3: ((1, 1),),
    4: ((1, 2), (2, 1)),
    5: ((1, 2), (2, 1)),
    6: ((1, 3), (3, 1)),
}
"""By number of workers: (pp, dp) of groups. The other aims need their shapes as they are drawn."""


def with_groups(case: Case) -> Case:
    """Return the case with groups, shared-out state, both or neither; other variants than blocks in tiles stay as they are.

    Half of the cases with adapters get tiles.
    """
    rng = random.Random(f"frostline chaos groups {case.seed}")
    if case.variant == ADAPTED and rng.random() < 0.5:
        case = replace(case, variant=ADAPTED_IN_TILES)
    if case.variant not in (TILED, ADAPTED_IN_TILES):
        return case
    chosen: dict[str, Any] = {}
    if case.variant == TILED and rng.random() < 0.7:
        shards = [rng.choice(("step", "use", "none")) for _ in range(len(case.reshapes) + 1)]
        chosen |= {"variant": TILED_AND_SHARED, "shard": shards[0], "reshapes_shard": tuple(shards[1:])}
    if case.aim in ("whole", "outside") and None not in case.shape and rng.random() < 0.8:
        shapes = SHAPES[case.workers]
        degrees = tuple(rng.choice((GROUP, GROUP, 1)) for _ in case.reshapes)
        reshapes = [
            (step, *rng.choice(shapes)) if tp == GROUP else (step, pp, dp)
            for (step, pp, dp), tp in zip(case.reshapes, degrees, strict=True)
        ]
        chosen |= {"shape": rng.choice(shapes), "tp": GROUP, "reshapes": tuple(reshapes), "reshapes_tp": degrees}
    if case.variant == TILED:
        chosen["tensor_rows"] = rng.choice(("whole", "split"))
    return _with_levels(replace(case, **chosen))


def _with_levels(case: Case) -> Case:
    """Return the case with levels in place of some groups' columns, for half of the cases that may share out state."""
    rng = random.Random(f"frostline chaos levels {case.seed}")
    if case.variant != TILED_AND_SHARED or rng.random() < 0.5:
        return case
    first, *later = [(rng.choice(((GROUP, 1), (1, GROUP))) if tp == GROUP else (1, 1)) for tp in (case.tp, *case.reshapes_tp)]
    return replace(
        case,
        variant=IN_A_GRID,
        tensor_rows="whole",
        tp=first[0],
        depth=first[1],
        reshapes_tp=tuple(tp for tp, _ in later),
        reshapes_depth=tuple(depth for _, depth in later),
    )
