"""`frostline simulate` on a finished run: the simulation follows the run's decisions and predicts its steps."""

from itertools import pairwise

from frostline_controller.simulation.finished import read_finished
from frostline_controller.simulation.question import Question, answer
from tests.e2e.runs import Ended

LEAST, MOST = 0.4, 1.25
"""Bounds of a step's predicted seconds, divided by those of the fastest measured step. A busy machine only adds to a step, so
the fastest of many is nearest to the units' profile. The prediction may be below it, for steps of milliseconds: drawing samples,
norms, the clip and records have costs outside the cost model. It may be a little above: the profile was taken while all
started."""


def test_a_finished_run_is_followed_and_its_step_predicted(one_worker: Ended) -> None:
    run = read_finished(one_worker.folder)
    found = answer(Question(run=run))
    replayed = found.simulation.arms["job"]
    frozen = [record["freeze_point"] for record in one_worker.records]
    assert [span.freeze_point for span in replayed.spans for _ in range(span.steps)] == frozen
    again = answer(Question(run=run, ask_policy=True)).simulation.arms["job"]
    assert [span.freeze_point for span in again.spans for _ in range(span.steps)] == frozen
    assert sum(before != after for before, after in pairwise(frozen)) == 2
    assert found.comparison is not None
    longest = max(found.comparison.rows, key=lambda row: row.steps)
    steps = range(longest.first_step, longest.first_step + longest.steps)
    fastest = min(record["step_seconds"] for record in one_worker.records if record["step"] in steps)
    assert len(steps) > 20
    assert LEAST < longest.predicted / fastest < MOST
