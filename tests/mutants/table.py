"""The bugs, as data: which text of which file becomes which, and the fast tests that must notice."""

from tests.mutants import cells, devices, groups, plans, requests, schedules, shares, tiles
from tests.mutants.plant import Edit, Mutant

TRAINER = "trainer/frostline_trainer/"
EXACT = ("tests/integration/test_exactness.py", "-m", "not wide")
RESHAPE = ("tests/integration/test_reshape_moves.py", "-k", "journey or moments")

MUTANTS: tuple[Mutant, ...] = (
    *(groups.GROUP_MUTANTS + plans.PLAN_MUTANTS + requests.REQUEST_MUTANTS),
    *(cells.CELL_MUTANTS + devices.DEVICE_MUTANTS + schedules.SCHEDULE_MUTANTS + shares.SHARE_MUTANTS + tiles.TILE_MUTANTS),
    Mutant(
        "lost-micro-batch",
        "the last micro-batch of a leaf is never added",
        (
            Edit(
                TRAINER + "step/generation.py",
                "for leaf in leaves for m in leaf_micro_batches(leaf, self.num_microbatches, self.num_leaves)]",
                "for leaf in leaves for m in leaf_micro_batches(leaf, self.num_microbatches, self.num_leaves)][:-1]",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "step-twice",
        "a step's update is applied twice",
        (
            Edit(
                TRAINER + "step/generation.py",
                "        self.optimizer.step(learning_rate, self.reduction.gradients(gradients.totals))\n",
                "        self.optimizer.step(learning_rate)\n        self.optimizer.step(learning_rate)\n",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "deaf-worker",
        "a fault in a thread of the controller's line ends the thread",
        (
            Edit(
                TRAINER + "control/client.py",
                'log.exception("thread %s met a fault and goes on", threading.current_thread().name)\n',
                "return\n",
            ),
        ),
        ("tests/unit/trainer/test_control_client.py",),
    ),
    Mutant(
        "rank-based-seeds",
        "dropout is seeded by the place of a unit within its stage, so by who computes it",
        (
            Edit(
                TRAINER + "step/stage.py",
                "self._seed(step, micro_batch, self.first_unit + index)",
                "self._seed(step, micro_batch, index)",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "key-without-revision",
        "a cache key does not name the revision of the prefix",
        (
            Edit(
                "proto/frostline_contract/cache_identity.py",
                'f"{self.prefix_revision}|{self.dataset_digest}|{self.split}|{self.boundary}"',
                'f"{self.dataset_digest}|{self.split}|{self.boundary}"',
            ),
        ),
        ("tests/unit/test_contract_cache.py",),
    ),
    Mutant(
        "fresh-head",
        "the head is initialised anew when its state arrives",
        (
            Edit(
                TRAINER + "generations/moves.py",
                "            import_piece(table, piece, module, context.moments, unpack(payload))\n",
                "            if table.unit_of(piece) + 1 < context.num_units:\n"
                "                import_piece(table, piece, module, context.moments, unpack(payload))\n",
            ),
        ),
        RESHAPE,
    ),
    Mutant(
        "lost-moments",
        "a unit moves without its optimizer state",
        (
            Edit(
                TRAINER + "generations/moves.py",
                "pack(export_piece(table, piece, module, context.moments))",
                "pack(export_piece(table, piece, module, {}))",
            ),
        ),
        RESHAPE,
    ),
    Mutant(
        "wrong-range",
        "a piece's weights are written at the beginning of the parameter, wherever the piece lies",
        (
            Edit(
                TRAINER + "step/unit_state.py",
                "own = {part.name: part_of(unit, piece, part, weights[part.name]) for part in parts}",
                "own = {part.name: weights[part.name].view(-1)[: part.high - part.low] for part in parts}",
            ),
        ),
        ("tests/unit/trainer/test_piece_state.py",),
    ),
    Mutant(
        "local-count",
        "a micro-batch's loss is divided by its own count of valid items: a mean of means",
        (
            Edit(
                TRAINER + "step/building.py",
                "task.loss(logits, inputs, batch.counts)",
                'task.loss(logits, inputs, (max(1, int((inputs["labels"] != -100).sum())) * len(batch.indices) '
                "// self._context.micro_batch_size,))",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "freeze-too-far",
        "a freeze takes one block more than the argmin names",
        (
            Edit(
                "controller/frostline_controller/decisions/policies/gradient_argmin.py",
                "key=lambda block: scores[block]) + 1",
                "key=lambda block: scores[block]) + 2",
            ),
        ),
        ("tests/unit/controller/test_freezing_policies.py",),
    ),
    Mutant(
        "boundary-not-advanced",
        "a value of the old boundary is used at the new one as it is",
        (
            Edit(
                TRAINER + "prefix/prefix.py",
                "            self._compute(samples, variants, found, out, first=self._previous_boundary)\n",
                "            self._compute(samples, variants, found, out, first=self._freeze_point)\n",
            ),
        ),
        ("tests/integration/test_exactness_cache.py", "-k", "cached_missed"),
    ),
    Mutant(
        "order-by-shape",
        "replicas' pieces are added one after another instead of over the tree, so that the order follows the shape",
        (
            Edit(
                TRAINER + "step/exchange.py",
                "        tree.push(low, size, value)\n",
                "        whole = tree.nodes.get((0, num_leaves))\n"
                "        tree.nodes[0, num_leaves] = value if whole is None else whole + value\n",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "misaligned-operand",
        "a slice goes into a kernel wherever it lies",
        (
            Edit(
                TRAINER + "step/alignment.py",
                "return tensor if is_aligned(tensor, boundary) else tensor.clone(memory_format=torch.contiguous_format)",
                "return tensor",
            ),
        ),
        ("tests/integration/test_alignment.py",),
    ),
    Mutant(
        "skipped-place-check",
        "nobody asks whether a sample's bits depend on its place in a tile",
        (
            Edit(
                TRAINER + "process/setup.py",
                "context.place_dependence = find_place_dependence(context)",
                'context.place_dependence = ""',
            ),
        ),
        ("tests/unit/trainer/test_tile_check.py",),
    ),
    Mutant(
        "lineage-minus-one",
        "a worker files a rollback under the lineage before the one that it opens, as if no earlier one had come too late",
        (
            Edit(
                TRAINER + "control/mailbox.py",
                "        self._decisions[decision.decided_in, decision.number] = decision\n",
                '        lineage = decision.lineage - 1 if decision.kind == "rollback" else decision.lineage\n'
                "        self._decisions[lineage, decision.number] = decision\n",
            ),
        ),
        ("tests/unit/trainer/test_engine_notices.py",),
    ),
    Mutant(
        "reader-without-cut",
        "a reader of metrics.jsonl applies a lineage's cut to the lines above it only",
        (
            Edit(
                "controller/frostline_controller/run_result.py",
                "        records = RunDirectory(self.directory).read_records().surviving\n",
                "        from frostline_contract.jsonl import read_jsonl\n"
                "        kept: dict[int, dict[str, Any]] = {}\n"
                "        for entry in read_jsonl(RunDirectory(self.directory).metrics):\n"
                '            if "starts_at_step" in entry:\n'
                '                kept = {step: one for step, one in kept.items() if step <= entry["starts_at_step"]}\n'
                "            else:\n"
                '                kept[entry["step"]] = entry\n'
                "        records = [kept[step] for step in sorted(kept)]\n",
            ),
        ),
        ("tests/unit/test_contract_lineage.py",),
    ),
    Mutant(
        "vote-before-device",
        "a member votes when it has given its device the step's work, not when that is done",
        (
            Edit(
                TRAINER + "step/generation.py",
                "        self._fence()\n        self.replication.post()\n",
                "        self.replication.post()\n",
            ),
        ),
        ("tests/unit/trainer/test_engine_fence.py",),
    ),
    Mutant(
        "abort-is-success",
        "work that an abort has ended is taken for work that is done",
        (
            Edit(
                TRAINER + "step/fence.py",
                "        groups.check()  # an abort",
                "        pass  # an abort",
            ),
        ),
        ("tests/unit/trainer/test_engine_fence.py",),
    ),
    Mutant(
        "sick-device-survives",
        "a worker whose device has failed reports what it holds as intact",
        (
            Edit(
                TRAINER + "generations/worker.py",
                "        end_if_sick(failure)\n        newest_received = ",
                "        newest_received = ",
            ),
        ),
        ("tests/integration/test_sick_devices.py::test_a_worker_whose_device_fails_ends_and_reports_nothing",),
    ),
    Mutant(
        "one-communicator-a-pair",
        "two pipeline ranks send to each other over one NCCL communicator",
        (
            Edit(TRAINER + "transport/nccl.py", ".send([payload], 1, 0)", ".send([payload], int(to > self.index), 0)"),
            Edit(TRAINER + "transport/nccl.py", ".recv([tensor], 0, 0)", ".recv([tensor], int(source > self.index), 0)"),
            Edit(
                TRAINER + "transport/nccl.py",
                "return self._communicators[sender, receiver]",
                "return self._communicators[min(sender, receiver), max(sender, receiver)]",
            ),
        ),
        ("tests/integration/test_transport.py", "-k", "simulated_nccl"),
    ),
    Mutant(
        "receive-out-of-order",
        "receives are posted in the order of need, which is not the order in which their sender sends",
        (
            Edit(
                TRAINER + "step/programs.py",
                "message = next(left.get((sender, pp_rank), iter(())), wanted)",
                "message = wanted",
            ),
        ),
        ("tests/unit/trainer/test_engine_programs.py",),
    ),
    Mutant(
        "rounded-where-cut",
        "in mixed precision only what leaves a stage is rounded, so that the cut decides bits",
        (
            Edit(
                TRAINER + "step/stage.py",
                "return output if self._is_head(index) else",
                "return output if index < len(self.units) - 1 or self._is_head(index) else",
            ),
        ),
        (*EXACT, "-k", "mixed"),
    ),
    Mutant(
        "takes-before-it-gives",
        "units come to the device before others have left it",
        (Edit(TRAINER + "step/generation.py", "key=here.__contains__", "key=lambda unit: unit"),),
        ("tests/unit/trainer/test_switch_memory.py",),
    ),
)
