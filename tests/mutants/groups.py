"""Mutants of groups that share stages tile by tile, which tests of their bits find."""

from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
GROUPS = ("tests/integration/test_exactness_tensor_groups.py", "-k", "plain_loop")
STATE = ("tests/unit/trainer/test_tile_state.py",)
AUDITS = ("tests/unit/trainer/test_group_audits.py",)
MESSAGES = ("tests/unit/trainer/test_tensor_messages.py",)

GROUP_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "own-tiles-only",
        "members of a group update from the gradients of their own tiles alone",
        (
            Edit(
                TRAINER + "step/reduction.py",
                "        if (group := self._groups.tensor) is not None and not self._divides_tiles:\n",
                "        if (group := None) is not None:\n",
            ),
        ),
        GROUPS,
    ),
    Mutant(
        "audits-in-its-own-place",
        "members of the only group compute their own tiles again, so that a broken one repeats itself",
        (Edit(TRAINER + "replication/audits.py", "(holders[place - 1],)", "(holders[place],)"),),
        AUDITS,
    ),
    Mutant(
        "sums-by-member",
        "members in each other's places sum in the order of the members and not of the tiles",
        (Edit(TRAINER + "tensor/group.py", "by_member[(place - ahead) % group.size]", "by_member[place]"),),
        AUDITS,
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
        "a-copy-for-state",
        "the gather of a frozen block's tiles overwrites a buddy's copy, which is state",
        (
            Edit(
                TRAINER + "step/tile_state.py",
                "            (by_tile[tile] in kept, part.of(unit, weights[part.name]))\n",
                "            (place == group.index, part.of(unit, weights[part.name]))\n",
            ),
        ),
        STATE,
    ),
    Mutant(
        "tiles-for-others-dropped",
        "a module that gives up tiles drops those that this worker keeps for others",
        (
            Edit(
                TRAINER + "step/tile_state.py",
                "            if piece in here and tile not in wanted:\n",
                "            if False:\n",
            ),
        ),
        STATE,
    ),
    Mutant(
        "tiles-dealt-in-turns",
        "a tile's piece is owned by another member of the group than the one that computes the tile",
        (
            Edit(
                "proto/frostline_contract/shape.py",
                "tp_rank = tile * self.tp_degree // tiles",
                "tp_rank = tile % self.tp_degree",
            ),
        ),
        ("tests/unit/test_contract_groups.py",),
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
