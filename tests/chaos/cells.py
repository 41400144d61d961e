"""Token cells, and their slices, for drawn cases of a causal language model, and of the job that is rolled back, then one too.

They are drawn with random numbers of their own, so that every other choice of a seed is the one that it was without them.
"""

import random
from dataclasses import replace

from tests.chaos.cases import Case
from tests.chaos.jobs import CELLS, IN_CELLS


def with_cells(case: Case) -> Case:
    """Return the case with cells or without; other variants than those of `IN_CELLS` stay as they are.

    Cells are not gathered for, so a case that gathers at each use has none.
    """
    rng = random.Random(f"frostline chaos cells {case.seed}")
    if case.variant not in IN_CELLS or "use" in (case.shard, *case.reshapes_shard) or rng.random() < 0.4:
        return case
    slices = [rng.choice((None, *range(1, len(CELLS) + 1))) for _ in range(len(case.reshapes) + 1)]
    return replace(case, variant=IN_CELLS[case.variant], slices=slices[0], reshapes_slices=tuple(slices[1:]))
