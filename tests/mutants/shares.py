"""Mutants of state that replicas share out, which tests of its bits find."""

from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
SHARED = ("tests/integration/test_sharding.py", "-k", "oracles")
GROUPS = ("tests/integration/test_exactness_tensor_groups.py", "-k", "plain_loop and shard")

PROGRAMS = ("tests/unit/trainer/test_gathered_programs.py",)
MEMORY = ("tests/unit/trainer/test_local_shards.py",)

SHARE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "left-out-gather",
        "a replica takes no part in the gathers of micro-batches that it lacks",
        (
            Edit(
                TRAINER + "step/programs.py",
                "            found.append(Instruction(Kind.GATHER, one.stage, one.micro_batch, one.slice, of=one.kind))\n",
                "            continue\n",
            ),
        ),
        PROGRAMS,
    ),
    Mutant(
        "kept-weights",
        "a unit that was used keeps its memory",
        (
            Edit(
                TRAINER + "step/local_shards.py",
                "        tensor.untyped_storage().resize_(0)\n",
                "        tensor.untyped_storage().resize_(tensor.nbytes)\n",
            ),
        ),
        MEMORY,
    ),
    Mutant(
        "stale-gather",
        "the last unit of a schedule is not gathered again after the update",
        (
            Edit(
                TRAINER + "step/gathering_pipeline.py",
                "        self.gathering.free()\n        return result\n",
                "        return result\n",
            ),
        ),
        SHARED,
    ),
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
