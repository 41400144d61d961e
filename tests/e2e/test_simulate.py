"""`frostline simulate` on a finished run: the simulation follows the run's decisions and predicts its steps."""

from itertools import pairwise
from pathlib import Path

from frostline_controller.simulation.finished import read_finished
from frostline_controller.simulation.question import Question, answer
from tests.e2e.conftest import RESHAPES
from tests.e2e.runs import Ended, Workshop

LEAST, MOST = 0.4, 1.25
"""Bounds of a step's predicted seconds, divided by those of the fastest measured step. A busy machine only adds to a step, so
the fastest of many is nearest to the units' profile. The prediction may be below it, for steps of milliseconds: drawing samples,
norms, the clip and records have costs outside the cost model. It may be a little above: the profile was taken while all
started."""
RUNS = 8
"""Most runs that are measured. A run has one profile: where other processes held the cores while it was taken, and not during
the steps, the two are of different machines, and another run is asked."""


def test_a_finished_run_is_followed(one_worker: Ended) -> None:
    run = read_finished(one_worker.folder)
    found = answer(Question(run=run))
    replayed = found.simulation.arms["job"]
    frozen = [record["freeze_point"] for record in one_worker.records]
    assert [span.freeze_point for span in replayed.spans for _ in range(span.steps)] == frozen
    again = answer(Question(run=run, ask_policy=True)).simulation.arms["job"]
    assert [span.freeze_point for span in again.spans for _ in range(span.steps)] == frozen
    assert sum(before != after for before, after in pairwise(frozen)) == 2


def test_a_step_is_predicted_from_the_runs_profile(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    ratios = [predicted_over_fastest(one_worker)]
    while not LEAST < ratios[-1] < MOST and len(ratios) < RUNS:
        again = workshop.run(tmp_path / f"run{len(ratios)}", {"reshapes": RESHAPES[1]}, "--workers", "1")
        ratios.append(predicted_over_fastest(again))
    assert LEAST < ratios[-1] < MOST, ratios


def predicted_over_fastest(ended: Ended) -> float:
    """Predicted seconds of the longest stretch of like steps, divided by the seconds of its fastest step."""
    found = answer(Question(run=read_finished(ended.folder)))
    assert found.comparison is not None
    longest = max(found.comparison.rows, key=lambda row: row.steps)
    steps = range(longest.first_step, longest.first_step + longest.steps)
    assert len(steps) > 20
    return longest.predicted / min(record["step_seconds"] for record in ended.records if record["step"] in steps)
