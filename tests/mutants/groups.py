"""Mutants of groups that share stages tile by tile, which tests of their bits find."""

from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
GROUPS = ("tests/integration/test_exactness_tensor_groups.py", "-k", "plain_loop")
MESSAGES = ("tests/unit/trainer/test_tensor_messages.py",)

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
        "shares-in-reverse",
        "the last member of a group sends the first share of a tensor that crosses stages, and the first member the last one",
        (
            Edit(
                TRAINER + "tensor/messages.py",
                "    share = flat[group.index * each : (group.index + 1) * each]\n",
                "    share = flat[(group.size - 1 - group.index) * each :][:each]\n",
            ),
        ),
        MESSAGES,
    ),
    Mutant(
        "padding-is-kept",
        "a tensor whose elements do not divide is left out of the gather that fills it",
        (Edit(TRAINER + "tensor/messages.py", "        flat.copy_(gathered[: flat.numel()])\n", "        pass\n"),),
        MESSAGES,
    ),
    Mutant(
        "tied-uses-cross-whole",
        "a member whose group gathers messages waits for the two uses of a tied matrix without a gather",
        (Edit(TRAINER + "tensor/messages.py", "                one.gather()\n", "                pass\n"),),
        MESSAGES,
    ),
    Mutant(
        "everybody-tells-the-loss",
        "each member of a group tells the vote the losses that all of it know alike",
        (Edit(TRAINER + "step/generation.py", " if self.in_group.speaks else {}", ""),),
        GROUPS,
    ),
)
