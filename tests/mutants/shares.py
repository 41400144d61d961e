"""Mutants of state that replicas share out, which tests of its bits find."""

from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
SHARED = ("tests/integration/test_sharding.py", "-k", "oracles")
GROUPS = ("tests/integration/test_exactness_tensor_groups.py", "-k", "plain_loop and shard")

SHARE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "stale-copies",
        "a replica computes with what it had of the others' weights a step before",
        (
            Edit(
                TRAINER + "step/reduction.py",
                "            self.sharing.stale = True\n",
                "            self.sharing.stale = False\n",
            ),
        ),
        SHARED,
    ),
    Mutant(
        "uncounted-share",
        "only the first replica tells the vote of its share's norm",
        (
            Edit(
                TRAINER + "step/reduction.py",
                "        given = self.gradients(totals)\n",
                "        given = {} if self._groups.replicas.index else self.gradients(totals)\n",
            ),
        ),
        SHARED,
    ),
    Mutant(
        "own-tiles-of-a-share",
        "members of a group update their replica's share from the gradients of their own tiles alone",
        (Edit(TRAINER + "step/sharing.py", "        for runs in self._cut[stage].values():\n", "        for runs in ():\n"),),
        GROUPS,
    ),
    Mutant(
        "all-owners-report",
        "each member of a group tells the vote the norms of the share that all of it own",
        (
            Edit(
                TRAINER + "step/reduction.py",
                " for (piece, name), part in given.items() if piece in spoken]",
                " for (piece, name), part in given.items()]",
            ),
        ),
        GROUPS,
    ),
)
