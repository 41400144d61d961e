"""Mutants of groups that share stages tile by tile, which tests of their bits find."""

from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
GROUPS = ("tests/integration/test_exactness_tensor_groups.py", "-k", "plain_loop")

GROUP_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "own-tiles-only",
        "members of a group update from the gradients of their own tiles alone",
        (
            Edit(
                TRAINER + "step/reduction.py",
                "        if (group := self._groups.tensor) is not None:\n",
                "        if (group := None) is not None:\n",
            ),
        ),
        GROUPS,
    ),
    Mutant(
        "tiles-in-reverse",
        "gradients of a group's tiles are put where another member's belong",
        (
            Edit(
                TRAINER + "tensor/group.py",
                "        start = place * room\n",
                "        start = (group.size - 1 - place) * room\n",
            ),
        ),
        GROUPS,
    ),
    Mutant(
        "everybody-tells-the-loss",
        "each member of a group tells the vote the losses that all of it know alike",
        (Edit(TRAINER + "step/generation.py", " if self.in_group.speaks else {}", ""),),
        GROUPS,
    ),
)
