"""Mutants of state that replicas share out, which tests of its bits find."""

from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
SHARED = ("tests/integration/test_sharding.py", "-k", "oracles")

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
)
