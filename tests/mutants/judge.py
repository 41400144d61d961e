"""Judges every mutant: its tests pass without the bug and fail with it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.plant import TESTS_FAILED, Mutant, PlantError, check_imports, planted, run_tests


@dataclass(frozen=True)
class Verdict:
    """The verdict on one mutant. caught: the tests failed with the bug. detail: pytest's last line, or the fault of the table."""

    name: str
    caught: bool
    detail: str


def judge(copy: Path, mutants: Iterable[Mutant], log: Callable[[str], None]) -> list[Verdict]:
    """Return one verdict for each mutant. Tests that fail without the bug prove nothing, so they do not count as a catch."""
    check_imports(copy)
    clean: dict[tuple[str, ...], str | None] = {}
    verdicts = []
    for mutant in mutants:
        try:
            verdict = _judge_one(copy, mutant, clean)
        except PlantError as error:
            verdict = Verdict(mutant.name, False, str(error))
        log(f"{'caught ' if verdict.caught else 'MISSED '} {mutant.name:<22} {mutant.bug}\n         {verdict.detail}")
        verdicts.append(verdict)
    return verdicts


def _judge_one(copy: Path, mutant: Mutant, clean: dict[tuple[str, ...], str | None]) -> Verdict:
    with planted(copy, mutant):
        pass  # a missing text is reported before any test is run
    if mutant.tests not in clean:
        run = run_tests(copy, mutant.tests)
        clean[mutant.tests] = None if run.exit_status == 0 else run.output
    if clean[mutant.tests] is not None:
        raise PlantError(f"its tests do not pass without the bug: {' '.join(mutant.tests)}\n{clean[mutant.tests]}")
    with planted(copy, mutant):
        run = run_tests(copy, mutant.tests)
    if run.exit_status not in (0, TESTS_FAILED):
        raise PlantError(f"pytest ended with status {run.exit_status}, so no test judged the bug: {run.summary}")
    return Verdict(mutant.name, run.exit_status == TESTS_FAILED, _first_failure(run.output) or run.summary)


def _first_failure(output: str) -> str:
    """The first line of pytest's summary that names a failed test."""
    return next((line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR tests"))), "")
