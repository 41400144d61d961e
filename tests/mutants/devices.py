"""Bugs of what stands between members and their devices: NCCL's timeouts, connections and aborts; threads; what kernels are
given."""

from tests.mutants.plant import Edit, Mutant

COMM = "trainer/frostline_trainer/transport/"

DEVICE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "short-timeouts",
        "NCCL's works may take half a minute, after which torch ends the process of whoever waits for a slow member",
        (Edit(COMM + "nccl.py", "WORK_SECONDS = timedelta(days=1)", "WORK_SECONDS = timedelta(seconds=30)"),),
        ("tests/unit/trainer/test_nccl.py",),
    ),
    Mutant(
        "connect-beside-a-step",
        "a generation's communicators are connected while the one that it continues is in a step on the same device",
        (
            Edit(
                "trainer/frostline_trainer/generations/formation.py",
                "        if self.plan.start != CONTINUE:\n            groups.connect()\n",
                "        groups.connect()\n",
            ),
        ),
        ("tests/unit/trainer/test_beside_nccl.py",),
    ),
    Mutant(
        "abort-before-the-word",
        "a group's work ends by an abort before the group says that it is interrupted",
        (
            Edit(
                COMM + "collectives.py",
                "            self._interrupted.set()\n            if self.backend",
                "            if self.backend",
            ),
            Edit(
                COMM + "collectives.py",
                "                self._aborting = nccl.abort_all([group])\n",
                "                self._aborting = nccl.abort_all([group])\n                self._aborting.join()\n"
                "            self._interrupted.set()\n",
            ),
        ),
        ("tests/unit/trainer/test_beside_nccl.py",),
    ),
    Mutant(
        "one-backward-at-a-time",
        "tiles that are checked apart leave their backward passes to the device's one thread, in which each waits for the others",
        (
            Edit(
                "trainer/frostline_trainer/tensor/apart.py",
                "ThreadPoolExecutor(len(self._units), initializer=backward_in_own_thread)",
                "ThreadPoolExecutor(len(self._units))",
            ),
        ),
        ("tests/unit/trainer/test_backward_thread.py",),
    ),
    Mutant(
        "norms-with-gaps",
        "a gradient's norm is taken where and as it lies, so that it depends on the kernel that a GPU takes for the whole list",
        (Edit("trainer/frostline_trainer/step/norms.py", "aligned(gradient.contiguous(), ALIGNMENT_BYTES) for", "gradient for"),),
        ("tests/unit/trainer/test_norms.py",),
    ),
)
