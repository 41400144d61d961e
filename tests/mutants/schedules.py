"""Bugs of schedules and of split backwards: what the program check and the unit tests must find."""

from tests.mutants.plant import Edit, Mutant

SCHEDULE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "leaf-out-of-order",
        "a leaf's micro-batches are added in descending order",
        (
            Edit(
                "proto/frostline_contract/schedules.py",
                "descending = [(m, part) for m in numbers for part",
                "descending = [(m, part) for m in reversed(numbers) for part",
            ),
        ),
        ("tests/unit/trainer/test_engine_programs.py",),
    ),
    Mutant(
        "newest-weights-first",
        "a zero-bubble order fills a wait with the newest gradient of weights that is left, not with the oldest",
        (Edit("proto/frostline_contract/zero_bubble.py", "return here.late.popleft()", "return here.late.pop()"),),
        ("tests/unit/trainer/test_engine_programs.py",),
    ),
    Mutant(
        "a-weight-used-twice",
        "a weight that two operations take in is asked at each, as if it had two gradients",
        (Edit("trainer/frostline_trainer/step/split_backward.py", "if seen & beside:", "if False:"),),
        ("tests/unit/trainer/test_split_backward.py",),
    ),
)
