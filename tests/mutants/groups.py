"""Mutants of groups that share stages tile by tile, which tests of their bits find."""

from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
GROUPS = ("tests/integration/test_exactness_tensor_groups.py", "-k", "plain_loop")
SHARES = ("tests/integration/test_exactness_tensor_groups.py", "-k", "plain_loop and shard")
STATE = ("tests/unit/trainer/test_tile_state.py",)
PIECES = ("tests/unit/trainer/test_tile_pieces.py",)
AUDITS = ("tests/unit/trainer/test_group_audits.py",)
ROWS = ("tests/unit/trainer/test_row_tiles.py",)
VOCABULARY = ("tests/unit/trainer/test_vocabulary_tiles.py",)
MESSAGES = ("tests/unit/trainer/test_tensor_messages.py",)

GROUP_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "ranges-from-a-tiles-beginning",
        "a range of a tile has as many elements as it should, from the tile's first one on",
        (
            Edit(
                TRAINER + "step/parts.py",
                "tile_views(unit, self.name, tensor, self.tile, self.low, self.high)",
                "tile_views(unit, self.name, tensor, self.tile, 0, self.high - self.low)",
            ),
        ),
        PIECES,
    ),
    Mutant(
        "a-row-as-a-matrix",
        "a range of exactly one row of a tile has two dimensions, and so have its moments, where the member holds several tiles",
        (Edit(TRAINER + "tensor/state.py", "if start + high - low <= width else", "if start + high - low < width else"),),
        PIECES,
    ),
    Mutant(
        "common-parameters-of-the-first",
        "what no tile cuts is updated by the first member of each group alone",
        (
            Edit(
                TRAINER + "step/generation.py",
                "        own = self.plan.pieces_of(self.worker_id)\n",
                "        own = self.plan.pieces_of(self.worker_id)\n"
                "        own = [one for one in own if self.in_group.speaks or context.pieces.tile_of(one) is not None]\n",
            ),
        ),
        GROUPS,
    ),
    Mutant(
        "gathers-along-the-wrong-axis",
        "shares are exchanged and weights gathered over the members of a group, which have other tiles of the same ranges",
        (
            Edit(
                TRAINER + "step/reduction.py",
                "sharing = Sharing(self._context, self._plan, index, replicas)\n",
                "sharing = Sharing(self._context, self._plan, index, self._groups.tensor or replicas)\n",
            ),
        ),
        SHARES,
    ),
    Mutant(
        "audits-in-its-own-place",
        "members of the only group compute their own tiles again, so that a broken one repeats itself",
        (Edit(TRAINER + "replication/audits.py", "(holders[place - next_place],)", "(holders[place],)"),),
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
                "[(piece in kept, view) for view in part.of(unit, weights[part.name])]",
                "[(tile // held == group.index, view) for view in part.of(unit, weights[part.name])]",
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
                "        if piece in here and part.tile not in numbers:\n",
                "        if False:\n",
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
                "if self.tp_rank(one) == place)",
                "if self.tp_rank(one) == tile % self.tp_degree)",
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
    Mutant(
        "own-samples-only",
        "a norm's gradient is of a member's own samples alone",
        (
            Edit(
                TRAINER + "tensor/by_rows.py",
                "        if rows.exchange is not None and nodes:\n",
                "        if False:\n",
            ),
        ),
        ROWS,
    ),
    Mutant(
        "row-tiles-added-as-one",
        "the gradient of a row layer's bias is of all samples at once where one worker has them",
        (Edit(TRAINER + "tensor/linear.py", 'self.fanned.get("bias", (self.bias,))', "(self.bias,)"),),
        ROWS,
    ),
    Mutant(
        "samples-in-its-own-place",
        "a member that audits another one's work computes its own samples",
        (Edit(TRAINER + "tensor/group.py", "Rows(total, (group.index + ahead) % group.size", "Rows(total, group.index"),),
        ("tests/integration/test_exactness_row_tiles.py", "-k", "tp and not wide"),
    ),
    Mutant(
        "lookups-added-as-numbers",
        "a lookup crosses between members as a sum of numbers, which has no negative zero",
        (
            Edit(
                TRAINER + "tensor/tiles.py",
                "self.join(values.view(torch.int32)).view(values.dtype)",
                "self.join(values)",
            ),
        ),
        VOCABULARY,
    ),
    Mutant(
        "padding-learns",
        "the entry of padding tokens gets a gradient where tiles cut the vocabulary",
        (Edit(TRAINER + "tensor/vocabulary.py", "                is_here &= ids != ctx.padding\n", "                pass\n"),),
        VOCABULARY,
    ),
    Mutant(
        "tied-tiles-cross-in-shares",
        "members with other tiles of a tied matrix each exchange shares of them, as if all had the same",
        (
            Edit(
                TRAINER + "step/reduction.py",
                "own_line(self._transport) if self._is_tie_divided else self._transport",
                "self._transport",
            ),
        ),
        ("tests/integration/test_exactness_vocabulary_tiles.py", "-k", "tied"),
    ),
    Mutant(
        "tied-elements-of-one-copy",
        "of a tied matrix a member reduces only the elements that it owns of the embedding's copy",
        (
            Edit(
                TRAINER + "step/share.py",
                "    for unit in (0, context.num_units - 1):\n        module, name",
                "    for unit in (0,):\n        module, name",
            ),
        ),
        SHARES,
    ),
    Mutant(
        "tiles-before-ranges",
        "a group gathers a frozen block's tiles before their members have the other replicas' ranges of them",
        (
            Edit(
                TRAINER + "step/reduction.py",
                "        self._complete_ranges(units, everything)\n"
                "        if everything and self._divides_tiles:\n"
                "            self._complete_frozen(units)\n",
                "        if everything and self._divides_tiles:\n"
                "            self._complete_frozen(units)\n"
                "        self._complete_ranges(units, everything)\n",
            ),
        ),
        SHARES,
    ),
)
