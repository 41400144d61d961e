"""Mutants of plans: the plans that a worker takes and promises not to enter, and the participants in the answer to a failure."""

from tests.mutants.plant import Edit, Mutant

CONTROLLER = "controller/frostline_controller/"
TRAINER = "trainer/frostline_trainer/"

PLAN_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "stale-plan",
        "a plan of an older generation is accepted",
        (Edit(TRAINER + "generations/plan_table.py", "if plan.generation < self.newest:\n                return False", "pass"),),
        ("tests/unit/trainer/test_plan_table.py",),
    ),
    Mutant(
        "promise-of-the-answer",
        "a report promises away the plan that came while it was being made",
        (Edit(TRAINER + "generations/plan_table.py", "until or self.newest", "self.newest"),),
        ("tests/unit/trainer/test_plan_table.py",),
    ),
    Mutant(
        "named-and-ruled-out",
        "a member that stops rules out a plan that its last ballot has named",
        (Edit(TRAINER + "generations/plan_table.py", " and not row.named", ""),),
        ("tests/unit/trainer/test_plan_table.py",),
    ),
    Mutant(
        "copies-in-a-dying-node",
        "the answer to a failure leaves out the copies of another node",
        (
            Edit(
                CONTROLLER + "planner/plans.py",
                "leavers = givers + _few_of_each([workers for workers in elsewhere if workers])",
                "leavers = givers",
            ),
        ),
        ("tests/unit/controller/test_recovery_plans.py",),
    ),
)
