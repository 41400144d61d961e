"""Bugs of token cells: what a plain loop over the same cells must find."""

from tests.mutants.plant import Edit, Mutant

STEP, FAMILIES = "trainer/frostline_trainer/step/", "trainer/frostline_trainer/families/"
CELLS = ("tests/integration/test_exactness_cells.py", "-m", "not wide")
SEVERAL_CELLS_A_SLICE = (*CELLS, "-k", "v_min")
LONG_SEQUENCES = (*CELLS, "-k", "of256 and gpt2")
HELD = ("tests/integration/test_held_cells.py", "-k", "1f1b")
PROGRAMS = ("tests/unit/trainer/test_engine_programs.py",)
PREFIX_IN_CELLS = """\
    def _trainable_input(self, stage, entry, micro_batch, step):
        from frostline_trainer.families.cells import Cell, Memory

        if not stage.num_frozen:
            return super()._trainable_input(stage, entry, micro_batch, step)
        first, found = int(stage.first_unit == 0), []
        whole = stage.run_frozen(None, micro_batch.inputs, 0, 1) if first else entry
        memories = [Memory(self._grid[-1]) for _ in stage.units]
        with torch.no_grad():
            for low, high in pairwise(self._grid):
                hidden = whole[:, low:high].contiguous()
                for index in range(first, stage.num_frozen):
                    hidden = stage.units[index](hidden, micro_batch.inputs, Cell(low, high, memories[index]))
                found.append(hidden)
        return torch.cat(found, dim=1)

"""

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
    Mutant(
        "cells-first-to-last",
        "the backward takes a slice's cells from the first to the last (Memory refuses that, so no bits are compared)",
        (
            Edit(
                STEP + "strand.py",
                "partial(self._backward_cell, cell, weights) for cell in reversed(cells)]",
                "partial(self._backward_cell, cell, weights) for cell in cells]",
            ),
        ),
        SEVERAL_CELLS_A_SLICE,
    ),
    Mutant(
        "cell-without-mask",
        "a cell without padding gets no mask, as a whole sequence does, and attends to the first keys in place of its own",
        (
            Edit(
                FAMILIES + "masks.py",
                """\
    if cell is not None:
        return _mask_of_cell(x, valid, attention, cell)
    nothing_hidden = valid is None or _all_valid(valid)
    if nothing_hidden and attention != "eager":
        return None
""",
                """\
    nothing_hidden = valid is None or _all_valid(valid)
    if nothing_hidden and attention != "eager":
        return None
    if cell is not None:
        return _mask_of_cell(x, valid, attention, cell)
""",
            ),
        ),
        ("tests/unit/trainer/test_cells.py", "-k", "mask"),
    ),
    Mutant(
        "unit-0-from-one-cell",
        "the embedding learns from the first cell's gradient alone",
        (
            Edit(STEP + "strand.py", "(output, torch.empty_like(output))", "(output, torch.zeros_like(output))"),
            Edit(
                STEP + "strand.py",
                "        if self._embedded is not None:\n",
                "        if self._embedded is not None and cell == 0:\n",
            ),
        ),
        SEVERAL_CELLS_A_SLICE,
    ),
    Mutant(
        "prefix-in-cells",
        "frozen blocks compute cells too: the bits of long sequences change, and cached values with them",
        (Edit(STEP + "cell_pipeline.py", "    def abandon(self)", PREFIX_IN_CELLS + "    def abandon(self)"),),
        LONG_SEQUENCES,
    ),
    Mutant(
        "micro-batches-in-turn",
        "the backwards of slices of several micro-batches alternate (without the check of programs, which refuses such an order)",
        (
            Edit(
                "proto/frostline_contract/schedules.py",
                "descending = [(m, part) for m in numbers for part in reversed(range(slices))]",
                "descending = [(m, part) for part in reversed(range(slices)) for m in numbers]",
            ),
            Edit(STEP + "program_check.py", "            _check_slices(program, shape.slices)\n", ""),
        ),
        (*CELLS, "-k", "gpipe"),
    ),
    Mutant(
        "message-without-slice",
        "messages of all slices of a micro-batch are taken for one (the check of programs refuses that, so nothing is sent)",
        (
            Edit(
                STEP + "programs.py",
                "    carried: Carried\n    stage: int\n    micro_batch: int\n    slice: int\n",
                "    carried: Carried\n    stage: int\n    micro_batch: int\n    slice: int\n\n"
                "    def __eq__(self, other):\n        return self[:3] == other[:3]\n\n"
                "    def __ne__(self, other):\n        return self[:3] != other[:3]\n\n"
                "    def __hash__(self):\n        return hash(self[:3])\n",
            ),
        ),
        PROGRAMS,
    ),
    Mutant(
        "saved-cells-kept",
        "a strand forgets no cell before its last backward, as if evidence of each micro-batch were wanted",
        (Edit(STEP + "strand.py", "for cell in () if self._keep else cells:", "for cell in ():"),),
        HELD,
    ),
    Mutant(
        "strands-kept",
        "keys and values of a micro-batch are not freed after its backward",
        (Edit(STEP + "cell_pipeline.py", "                del self._strands[place]\n", "                pass\n"),),
        HELD,
    ),
)
