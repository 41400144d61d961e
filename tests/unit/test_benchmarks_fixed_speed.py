"""The benchmarks on workers of fixed speed, as far as they measure nothing: jobs, ways through a pipeline, and errors."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frostline_contract.job import load_job, parse_job
from frostline_contract.operations import Kind
from frostline_contract.plan import Placement
from frostline_contract.schedule_figures import timed
from frostline_contract.schedules import BUILT_IN
from frostline_contract.statistics import OperationTime, StepTrace
from frostline_trainer.process.setup import build_context
from frostline_trainer.profile import worker_profile
from tests.benchmarks.devices import SHARE, WORKERS, one_processor
from tests.benchmarks.fixed_speed import Stretch, measured_within
from tests.benchmarks.fixed_speed_jobs import fixed_speed_job, made_texts, through
from tests.benchmarks.in_turns import Way
from tests.benchmarks.machine_speed import MachineSpeed, measured_beside, read_speed
from tests.benchmarks.predicted import SHAPES, _walk_job
from tests.benchmarks.schedules import BLOCKS, FROZEN, UNITS
from tests.benchmarks.schedules import ways as ways_without_bubbles
from tests.benchmarks.slices import CELLS, UNSLICED, language_job, ways
from tests.benchmarks.subjects import DIGITS_JOB, SUBJECTS
from tests.benchmarks.vote_cost import idle_percent, vote_percent


@pytest.mark.parametrize("subject", [*SUBJECTS, "language"])
def test_jobs_are_jobs(subject: str) -> None:
    job = parse_job({**fixed_speed_job(subject, 40, (2, 2), frozen=4, cached=True), "reshapes": through(SHAPES, 10)})
    assert (job.placement.workers, job.placement.worker_cpus, job.training.steps) == (WORKERS, SHARE, 40)
    assert (job.initial_units, job.cache.use) == (4, "always")
    assert [(one.step, one.pp_degree, one.dp_degree) for one in job.reshapes] == [(10, 2, 2), (20, 1, 4), (30, 3, 1)]


def test_what_is_started_on_one_processor_stays_there() -> None:
    before = os.sched_getaffinity(0)
    with one_processor() as chosen:
        asked = [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]
        assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == f"{{{chosen}}}\n"
    assert os.sched_getaffinity(0) == before
    assert WORKERS * SHARE < 1


def test_a_cache_is_filled_before_the_shapes_are_walked_through() -> None:
    job = parse_job(_walk_job("digits", 12, leading=4, frozen=4, cached=True))
    assert (job.placement.pp_degree, job.training.steps) == (3, 12 * (4 + len(SHAPES)))
    assert [one.step for one in job.reshapes] == [48, 60, 72, 84]


def test_every_schedule_is_run_over_slices_and_one_without() -> None:
    found = ways()
    assert found[0] == Way(UNSLICED, 1, 1)
    assert {way.schedule for way in found[1:]} == {name for name, known in BUILT_IN.items() if known.takes_slices}
    for way in found:
        BUILT_IN[way.schedule].operations(0, WORKERS, way.virtual_stages, 4, way.slices)
    parse_job(language_job(8, placement={"slices": 1}))
    assert parse_job(language_job(8)).training.num_cells == CELLS
    assert parse_job(language_job(8, cells=1)).training.num_cells == 1


def test_schedules_without_bubbles_are_run_beside_1f1b_where_there_are_units_for_them() -> None:
    splitting = {name for name, known in BUILT_IN.items() if known.splits}
    for frozen in (0, FROZEN):
        first, *others = ways_without_bubbles(frozen)
        assert first == Way("1f1b", 1, 1)
        fitting = {name for name in splitting if not (frozen and BUILT_IN[name].folded)}
        assert {way.schedule for way in others} == fitting
        assert all(WORKERS * way.virtual_stages <= UNITS - frozen for way in others)
        parse_job({**fixed_speed_job("bert", 8, (WORKERS, 1), frozen, blocks=BLOCKS), "reshapes": [
            {"step": 4, "pp_degree": WORKERS, "dp_degree": 1, **way.fields} for way in others
        ]})  # fmt: skip


def test_an_error_is_by_how_much_the_prediction_is_above_the_median_step() -> None:
    placement = Placement(pp_degree=1, dp_degree=1, stage_bounds=(0, 8), leaf_bounds=(0, 8), workers=("w",))
    stretch = Stretch(placement, (1.0, 2.0, 4.0), 1.0, {"forward": 0.001, "vote": 1e-5}, {"schedule": 0.002})
    assert stretch.measured == 2.0
    assert stretch.error == -50.0
    assert stretch.errors == [0.0, -50.0, -75.0]
    assert stretch.in_words() == "predicted forward 1; measured on the first worker schedule 2"


def _traces(schedule: str, micro_batches: int) -> list[StepTrace]:
    """Return a step's traces on four ranks, in which a forward takes a second, and a whole backward two."""
    orders = [BUILT_IN[schedule].operations(pp_rank, 4, 1, micro_batches) for pp_rank in range(4)]
    ran = timed(orders, lambda _, one: 2.0 if one.kind is Kind.BACKWARD else 1.0)
    return [
        StepTrace(lineage=0, step=1, generation="1.0", freeze_point=0, pp_rank=pp_rank, operations=tuple(
            OperationTime(kind=one.operation.kind.value, stage=one.operation.stage, micro_batch=one.operation.micro_batch,
                          slice=0, start=one.start, end=one.end)
            for one in ran if one.pp_rank == pp_rank
        ))
        for pp_rank in range(4)
    ]  # fmt: skip


def test_the_vote_costs_a_schedule_without_bubbles_all_that_its_ranks_wait() -> None:
    """On paper, with equal times: 1F1B waits for 9 of 33 seconds at four ranks and eight micro-batches, zb_h2 for 3 of 27. The
    first rank of 1F1B begins first and ends last, so the vote adds nothing to its waits."""
    traced = [_traces("1f1b", 8), _traces("zb_h2", 8)]
    assert idle_percent(traced) == pytest.approx([100 * 9 / 33, 100 * 3 / 27])
    assert vote_percent(traced) == pytest.approx([0.0, 100 * 3 / 27])


def test_made_texts_are_the_same_every_time(tmp_path: Path) -> None:
    first, second = (made_texts(tmp_path / name).read_text() for name in ("a.csv", "b.csv"))
    assert first == second
    assert first.startswith("text,label\n")


def test_the_machines_speed_is_the_median_of_a_time_or_the_nearest() -> None:
    speed = MachineSpeed(((10.0, 0.2), (11.0, 0.3), (12.0, 0.9), (20.0, 0.4)))
    assert speed.seconds(10.0, 12.0) == 0.3
    assert speed.seconds(18.5, 19.0) == 0.4
    assert speed.seconds(0.0, 1.0) == 0.2
    assert speed.slowness(19.0, 21.0, (10.9, 11.1)) == pytest.approx(0.4 / 0.3), "not by the speed of all the time before"


def test_workers_logs_say_when_they_measured_their_units(tmp_path: Path) -> None:
    """The log line is a worker's own, in the format of its log; a slow start before the measuring does not count."""
    context = build_context(load_job(DIGITS_JOB, ["training.device=cpu"]))
    kept = logging.FileHandler(tmp_path / "trainer-0.log")
    kept.setFormatter(logging.Formatter("%(asctime)s trainer-0 %(levelname)s %(name)s %(message)s"))
    log = logging.getLogger("frostline_trainer")
    before = log.level
    log.setLevel("INFO")
    log.addHandler(kept)
    try:
        log.info("starts")
        time.sleep(0.5)  # the slow start
        began = time.time()
        worker_profile(context, [])
        ended = time.time()
    finally:
        log.removeHandler(kept)
        log.setLevel(before)
        kept.close()
    (tmp_path / "trainer-1.log").write_text("time=15:57:31 agent pod=trainer-1 worker started local_rank=0 process=1\n")
    low, high = measured_within(tmp_path)
    assert began - 0.01 <= low < high <= ended + 0.01, "a log line's times are rounded"
    (tmp_path / "trainer-0.log").unlink()
    with pytest.raises(ValueError, match="no worker's log says that it measured"):
        measured_within(tmp_path)


def test_the_same_work_is_timed_while_something_else_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "speed"
    with measured_beside(file):
        end = time.monotonic() + 60.0
        while len(file.read_text().splitlines()) < 3 and time.monotonic() < end:
            time.sleep(0.05)
    speed = read_speed(file)
    assert len(speed.samples) >= 3
    assert all(0 < seconds < 5 for _, seconds in speed.samples)
