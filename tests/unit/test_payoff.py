"""The benchmark `payoff`, its pure parts: the split, what is worth measuring, what is missing, what the lines say together."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from frostline_contract.job import Job, load_job
from frostline_contract.statistics import SizeProfiles, UnitProfile, WorkerProfile
from tests.benchmarks.__main__ import DOCS
from tests.benchmarks.payoff.figures import MARGIN, SEEDS, agreeing_digests, apart, difference, ratio, text_median, verdict
from tests.benchmarks.payoff.going import Asked, Piece, best_static, make_all, missing
from tests.benchmarks.payoff.lines import FILE, Key, Line, Lines
from tests.benchmarks.payoff.page import page_text, write_page
from tests.benchmarks.payoff.static_search import WHOLE, Candidate, best_of, candidates, memory_cap, shapes, worth_measuring
from tests.benchmarks.payoff.tasks import CAPS, TASKS, arm_fields, switches
from tests.benchmarks.payoff.text_sets import is_test, labelled, split

FIGURES: Line = {
    "machine": "m",
    "torch": "2",
    "date": "2026-01-02T03:04",
    "commit": "abc",
    "go": "g",
    "seconds": 10.0,
    "training_seconds": 8.0,
    "accuracy": 0.8,
    "loss": 0.5,
    "digest": "d",
    "micro_batch": 8,
    "leaves": 4,
    "shapes": [{"pp": 4, "dp": 1}],
    "shares": {"computing": 1.0},
    "cache_hits": 0,
    "over_cap": [],
}


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path / "payoff.jsonl")


def timed(lines: Lines, arm: str, seconds: float, seed: int = 0, task: str = "reviews", cap: str = "free", **more: Any) -> None:
    lines.add(Key("time", task, "whole", cap, arm, seed), {**FIGURES, "seconds": seconds, **more})


def scored(lines: Lines, arm: str, accuracy: float, seed: int, **more: Any) -> None:
    lines.add(Key("accuracy", "reviews", "whole", "", arm, seed), {**FIGURES, "accuracy": accuracy, **more})


def test_a_text_is_on_one_side_whatever_stands_beside_it() -> None:
    texts = [(f"text {number}", number % 2) for number in range(400)]
    train, test = split(texts, 0.25)
    assert sorted(train + test) == sorted(texts)
    assert split(reversed(texts[::3]), 0.25)[1] == [sample for sample in test if sample in texts[::3]]
    assert 60 < len(test) < 140  # 100 of 400: five deviations of 8.7 either way
    assert [is_test(text, 1.0) for text, _ in texts] == [True] * 400


def test_labels_are_signs_and_a_repeated_text_counts_once() -> None:
    lines = ["1\t0.5\tgood ", "2\t-2\tbad", "3\t0\tneither", "4\t-1\tgood"]
    assert labelled(lines) == [("good", 1), ("bad", 0)]


UNITS, SECONDS = 6, 0.01


def static_job(**fields: Any) -> Job:
    settings = [f"placement.{name}={value}" for name, value in fields.items()]
    task = TASKS["digits"]
    return load_job(str(task.job), [*task.overrides("whole"), *switches(()), *WHOLE, *settings])


def measured(job: Job, seconds_each: float = SECONDS) -> SizeProfiles:
    """Units whose state outweighs what a micro-batch keeps, the more the smaller it is."""

    def unit(size: int) -> UnitProfile:
        seconds = seconds_each * (1 + size / 8)
        return UnitProfile(
            forward_seconds=seconds, backward_seconds=2 * seconds, parameter_bytes=10**6, optimizer_bytes=2 * 10**6,
            activation_bytes=10**5 * size, output_bytes=10**3 * size,
        )  # fmt: skip

    sizes = (4, 8, 16, 32, 64)
    return SizeProfiles(profiles=tuple(WorkerProfile(micro_batch_size=size, units=(unit(size),) * UNITS) for size in sizes))


def test_the_cap_lies_between_what_three_devices_need_and_two() -> None:
    job = static_job()
    cap, size = memory_cap(job, measured(job)), job.training.batch_size // 4
    every = candidates(job, measured(job), 4, cap)
    assert {one.workers for one in every if one.micro_batch_size == size} <= {3, 4}
    assert any(one.workers == 3 for one in every)
    assert max(one.peak_bytes for one in every) <= cap


def test_every_shape_is_costed_and_slower_devices_make_longer_steps() -> None:
    job = static_job()
    every = candidates(job, measured(job), 4, None)
    assert {(one.pp_degree, one.dp_degree) for one in every} == set(shapes(4))
    assert [one.predicted_seconds for one in every] == sorted(one.predicted_seconds for one in every)
    slower = candidates(job, measured(job, 2 * SECONDS), 4, None)
    alone, slow_alone = (next(c for c in found if c.name == "pp1-dp1-mb64") for found in (every, slower))
    assert slow_alone.predicted_seconds == pytest.approx(2 * alone.predicted_seconds, rel=0.01)  # votes do not grow


def test_replicas_share_state_out_where_they_do_not_fit_otherwise() -> None:
    job = static_job()
    roomy = {one.name: one for one in candidates(job, measured(job), 4, None)}
    assert not any(one.shares_state for one in roomy.values())
    narrow = {one.name: one for one in candidates(job, measured(job), 4, roomy["pp1-dp4-mb16"].peak_bytes - 1)}
    shared = narrow["pp1-dp4-mb16-shared"]
    assert "pp1-dp4-mb16" not in narrow and shared.peak_bytes < roomy["pp1-dp4-mb16"].peak_bytes
    assert {"training.numerics=exact", "training.state_ranges=4", "placement.shard=step"} <= set(shared.settings(64))
    assert {"training.numerics=fast", "placement.shard=none"} <= set(roomy["pp1-dp4-mb16"].settings(64))


def candidate(seconds: float, size: int = 8) -> Candidate:
    return Candidate(2, 2, size, seconds, 1)


def test_only_what_no_error_of_the_prediction_explains_is_left_out() -> None:
    found = [candidate(1.0, 8), candidate(1.25, 16), candidate(1.5, 32)]
    assert worth_measuring(found) == found[:2]
    assert worth_measuring([]) == []
    assert best_of({"pp2-dp2-mb8": 2.0, "pp2-dp2-mb16": 1.5, "pp2-dp2-mb32": None}, found) == found[1]
    with pytest.raises(ValueError, match="none of 3 static placements"):
        best_of({}, found)


def test_a_pair_counts_where_both_sides_took_turns(lines: Lines) -> None:
    timed(lines, "static", 30.0)
    assert ratio(lines, "reviews", "whole", "free") is None
    timed(lines, "elastic", 15.0)
    timed(lines, "static", 40.0, seed=1)
    timed(lines, "elastic", 10.0, seed=1, go="another")
    timed(lines, "static", 30.0, seed=2)
    timed(lines, "elastic", 10.0, seed=2)
    found = ratio(lines, "reviews", "whole", "free")
    assert found is not None and found.values == (2.0, 3.0) and found.median == 2.5
    assert ratio(lines, "reviews", "whole", "capped") is None and ratio(lines, "reviews", "small", "free") is None


def test_the_median_is_over_text_tasks_alone(lines: Lines) -> None:
    assert text_median(lines, "whole", "free") is None
    for task, seconds in (("digits", 1.0), ("reviews", 10.0), ("tweets", 5.0), ("editorials", 4.0)):
        timed(lines, "static", 20.0, task=task)
        timed(lines, "elastic", seconds, task=task)
    assert text_median(lines, "whole", "free") == (4.0, 3)


def test_the_bound_is_judged_by_all_seeds_or_not_at_all(lines: Lines) -> None:
    for seed in range(SEEDS):
        assert difference(lines, "reviews", "whole") is None or "seeds" in verdict(difference(lines, "reviews", "whole"))
        scored(lines, "static", 0.8, seed)
        scored(lines, "elastic", 0.8 - MARGIN / 2 + 0.001 * (seed % 2), seed)
    found = difference(lines, "reviews", "whole")
    assert found is not None and found.lower is not None and -MARGIN < found.lower < found.mean == pytest.approx(-0.0045)
    assert verdict(found) == "no loss beyond the margin"
    scored(lines, "elastic", 0.6, 0)
    assert verdict(difference(lines, "reviews", "whole")).startswith("not shown")


def test_digests_are_compared_where_the_numerics_are_the_same(lines: Lines) -> None:
    scored(lines, "elastic", 0.8, 0)
    timed(lines, "elastic", 1.0)
    timed(lines, "elastic", 1.0, cap="capped", micro_batch=4, digest="another")
    assert agreeing_digests(lines, "reviews", "whole") == (1, 1)
    timed(lines, "elastic", 1.0, machine="m, 1 cores")
    assert agreeing_digests(lines, "reviews", "whole") == (1, 1), "of one processor, with another number of cores"
    timed(lines, "elastic", 1.0, machine="n")
    assert agreeing_digests(lines, "reviews", "whole") == (0, 0)
    timed(lines, "elastic", 1.0, digest="wrong")
    assert agreeing_digests(lines, "reviews", "whole") == (0, 1)


def test_pairs_of_two_machines_are_counted_and_said(lines: Lines) -> None:
    for seed in range(2):
        scored(lines, "static", 0.8, seed)
        scored(lines, "elastic", 0.8, seed, machine="m" if seed else "another")
    assert apart(lines, "reviews", "whole") == 1
    assert "2 of 10 seeds; in 1 the arms computed on different machines" in page_text(lines, [])


def made(key: Key) -> Line:
    """What a piece of work would have left."""
    if key.kind == "prepared":
        found = [
            {"pp_degree": 4, "dp_degree": 1, "micro_batch_size": 8, "predicted_seconds": s, "peak_bytes": 1} for s in (1.0, 2.0)
        ]
        found[1]["pp_degree"] = 1
        return {
            **FIGURES,
            "batch_size": 32,
            "cap_bytes": 10**6 if key.cap == "capped" else None,
            "reason": "",
            "candidates": found,
        }
    return {**FIGURES, "predicted_seconds": 9.0, "steps": 8}


ASKED = Asked(
    ("reviews", "digits"),
    CAPS,
    seeds=(0, 1),
    time_seeds=2,
    pairs=1,
    kinds=("time", "ablation", "accuracy"),
    scale="whole",
    go="g",
)


def all_of(lines: Lines, asked: Asked, most: int = 1000) -> Iterator[Key]:
    """Keys of what a go makes, each made as it comes, at most so many."""
    for piece in islice(missing(lines, asked), most):
        lines.add(piece.key, {**made(piece.key), "go": asked.go})
        yield piece.key


def test_a_go_makes_what_is_missing_and_the_next_one_goes_on(lines: Lines, tmp_path: Path) -> None:
    at_once = list(all_of(Lines(tmp_path / "other.jsonl"), ASKED))
    first = list(all_of(lines, ASKED, most=11))
    again = Lines(tmp_path / "payoff.jsonl")  # as another process reads them
    assert first + list(all_of(again, ASKED)) == at_once
    assert list(all_of(again, ASKED)) == []
    assert len(set(at_once)) == len(at_once)
    runs = 2 * (1 + 5 * 2) + 2 * 2  # by cap one placement and five arms of two seeds; by seed static and elastic alone
    assert len(at_once) == 2 * (2 + runs)
    assert best_static(again, "whole", "reviews", "free").name == "pp4-dp1-mb8"


def test_the_frontier_has_the_settings_of_each_task(lines: Lines) -> None:
    asked = replace(ASKED, caps=("free",), seeds=(0,), kinds=("frontier", "accuracy"))
    done = [key for key in all_of(lines, asked) if key.kind in ("time", "accuracy")]
    settings = {
        "reviews": ["static", "elastic", "initial-2", "initial-4", "initial-5"],
        "digits": ["static", "elastic", "half-50", "half-40", "half-30"],
    }
    for task in settings:
        for kind in ("time", "accuracy"):
            assert [key.arm for key in done if (key.task, key.kind) == (task, kind)] == settings[task]
    page = page_text(lines, [])
    assert "| film reviews | 5 units from step 1 | not run | 1.00x (1) | +0.00 points (1) |" in page
    assert "| digits, from scratch | half, at 30 % | not run | 1.00x (1) | +0.00 points (1) |" in page


def test_a_setting_of_the_frontier_is_a_job_that_freezes_half_at_once() -> None:
    task = TASKS["digits"]
    freeze = load_job(str(task.job), [*task.overrides("whole"), *arm_fields(task, "half-40")]).freeze
    assert (freeze.policy.name, freeze.policy.stairs) == ("stairs", {0.4: 0.5})
    assert freeze.rails.warmup_fraction == 0.0 and freeze.rails.total_fraction == 0.5


def test_a_pair_that_was_cut_off_is_made_whole_again(lines: Lines) -> None:
    asked = replace(ASKED, tasks=("reviews",), caps=("free",), seeds=(0,), kinds=("time",))
    cut = list(all_of(lines, asked, most=3))
    assert [key.arm for key in cut[2:]] == ["static"]
    assert [key.arm for key in all_of(lines, replace(asked, go="later"))] == ["static", "elastic"]


def test_a_pair_is_begun_where_all_of_it_fits(lines: Lines) -> None:
    asked = replace(ASKED, tasks=("reviews",), caps=("free",), kinds=("time",))
    done = {piece.key: piece.guess for piece in taking(lines, asked)}
    assert [guess for key, guess in done.items() if key.kind == "time"] == [0.0, 0.0, 20.0, 10.0]


def taking(lines: Lines, asked: Asked) -> Iterator[Piece]:
    for piece in missing(lines, asked):
        yield piece
        lines.add(piece.key, made(piece.key))


def test_accuracy_runs_go_side_by_side_and_a_mistake_ends_the_go(lines: Lines) -> None:
    both = Barrier(2)
    keys = [Key("accuracy", "reviews", "whole", "", "static", seed) for seed in range(4)]

    def meet(end: float) -> Line:
        both.wait(timeout=30)  # nobody passes alone
        return FIGURES

    def fail(end: float) -> Line:
        raise RuntimeError("refused")

    make_all([Piece(key, meet, 0.0) for key in keys], lines, seconds=60.0, at_once=2)
    assert [lines.get(key) is not None for key in keys] == [True] * 4
    with pytest.raises(RuntimeError, match="refused"):
        make_all([Piece(replace(key, task="tweets"), fail, 0.0) for key in keys], lines, seconds=60.0, at_once=2)
    make_all([Piece(replace(key, task="tweets"), meet, 0.0) for key in keys], lines, seconds=0.0, at_once=2)
    assert lines.of(task="tweets") == []


def test_the_page_names_what_is_not_run_and_follows_from_the_lines_alone(lines: Lines, tmp_path: Path) -> None:
    empty = write_page(lines, tmp_path)[0].read_text()
    assert "2.00x" not in empty and empty.index("fixed before any run") < empty.index("not run")
    timed(lines, "static", 20.0, cap="capped")
    timed(lines, "elastic", 10.0, cap="capped", over_cap=["worker-1 holds 7 bytes"])
    page, picture = write_page(lines, tmp_path)
    text = page.read_text()
    assert "| median over the text tasks, with the cap | >= 1.8x | 2.00x, over 1 of 4 tasks |" in text
    assert "| film reviews | without a cap | not run |" in text
    assert "| accuracy, tweets | bound above -1.0 points | not run |" in text
    assert "2 timed runs with the cap 1 held more than it:\n\n- film reviews, elastic: worker-1 holds 7 bytes" in text
    assert picture.name == "payoff-time.svg"


def test_the_committed_page_follows_from_the_committed_lines(tmp_path: Path) -> None:
    for fresh in write_page(Lines(FILE), tmp_path):
        committed = DOCS / "comparison" / fresh.name
        assert committed.read_text() == fresh.read_text(), f"{committed.name} is not what payoff.jsonl gives"
