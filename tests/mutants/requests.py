"""Mutants of what people ask for and read: scale requests, and the events about pods that cannot start."""

from tests.mutants.plant import Edit, Mutant

CONTROLLER = "controller/frostline_controller/"

REQUEST_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "scale-overwritten",
        "the number of pods is written over a person's newer one",
        (Edit(CONTROLLER + "run/pods.py", "self._backend.scale, pods, known)", "self._backend.scale, pods)"),),
        ("tests/unit/controller/test_scale_races.py",),
    ),
    Mutant(
        "older-request-counts",
        "of two scale requests that wait, the older one is carried out",
        (Edit(CONTROLLER + "run/commands.py", "                self._queue[place] = asked\n", ""),),
        ("tests/unit/controller/test_scale_races.py",),
    ),
    Mutant(
        "newest-reason-only",
        "of two reasons why a pod cannot start, the first has no event",
        (Edit(CONTROLLER + "members/start_failures.py", "trouble.unannounced.append(text)", "trouble.unannounced[:] = [text]"),),
        ("tests/integration/test_controller_start_failures.py",),
    ),
)
