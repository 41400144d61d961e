"""Bugs of token cells: what a plain loop over the same cells must find."""

from tests.mutants.plant import Edit, Mutant

STEP, FAMILIES = "trainer/frostline_trainer/step/", "trainer/frostline_trainer/families/"
CELLS = ("tests/integration/test_exactness_cells.py", "-m", "not wide")

CELL_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "one-mask-for-all-cells",
        "dropout's seed does not have the cell",
        (
            Edit(
                STEP + "stage.py",
                "seed = self._seed(step, micro_batch, self.first_unit + index, number)",
                "seed = self._seed(step, micro_batch, self.first_unit + index)",
            ),
        ),
        CELLS,
    ),
    Mutant(
        "keys-of-earlier-cells-learn-nothing",
        "the gradients of keys and values that later cells have read are dropped",
        (Edit(FAMILIES + "cells.py", "total[:, :, :stop] += gradient", "total[:, :, start:stop] = gradient[:, :, start:stop]"),),
        CELLS,
    ),
    Mutant(
        "gradients-of-keys-in-their-own-type",
        "gradients of keys and values are added in bfloat16 where keys are",
        (
            Edit(
                FAMILIES + "cells.py",
                "[torch.promote_types(content.dtype, torch.float32) for content in self._content]",
                "[content.dtype for content in self._content]",
            ),
        ),
        CELLS,
    ),
    Mutant(
        "cells-in-the-siblings-sum",
        "the cells of a leaf's only micro-batch are added one by one to the leaf before it",
        (Edit(STEP + "gradients.py", "self._members(leaf) == 1 and not self._in_cells", "self._members(leaf) == 1"),),
        CELLS,
    ),
)
