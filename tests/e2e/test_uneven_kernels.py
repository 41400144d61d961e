"""Whole runs on a machine whose products depend on a sample's place in its tile: both remedies keep the uncached run's digest."""

from collections.abc import Iterator

import pytest

from tests.e2e.runs import ROOT, Ended, Workshop, warm_preload

UNEVEN = {"FROSTLINE_WORKER_MODULE": "tests.e2e.uneven_worker", "PYTHONPATH": str(ROOT)}
CASES: dict[str, dict] = {
    # Pinned: otherwise a measurement picks the cheaper of the two, and no test may depend on that.
    "cached": {"cache": {"prefix_tile": "sample"}},
    "uncached_one_sample": {"elastic": {"cache": False}, "cache": {"prefix_tile": "sample"}},
    "refused": {"cache": {"prefix_tile": "micro_batch"}},
    "uncached": {"elastic": {"cache": False}},
}


@pytest.fixture(scope="module")
def ended(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    """Run all four side by side: each is one worker that trains 32 steps."""
    folder = tmp_path_factory.mktemp("uneven")
    with warm_preload(**UNEVEN) as socket:
        env = {**UNEVEN, "FROSTLINE_PRELOAD": socket}
        started = {name: workshop.start(folder / name, {"training": {"steps": 32}, **CASES[name]}, **env) for name in CASES}
        yield {name: running.end() for name, running in started.items()}


def test_one_sample_at_a_time_has_the_digest_of_the_run_without_a_cache(ended: dict[str, Ended]) -> None:
    cached, plain = ended["cached"], ended["uncached_one_sample"]
    assert cached.digest == plain.digest
    assert sum(record["cache_hits"] for record in cached.records) > 0
    assert sum(record["cache_hits"] for record in plain.records) == 0


def test_a_refused_cache_has_it_too(ended: dict[str, Ended]) -> None:
    refused, plain = ended["refused"], ended["uncached"]
    assert refused.digest == plain.digest != ended["cached"].digest
    assert sum(record["cache_hits"] for record in refused.records) == 0


def test_the_reason_is_said(ended: dict[str, Ended], workshop: Workshop) -> None:
    found = "gives a sample other bits in a tile of 4 x 5 tokens that is reversed (float32)"
    for name, said in (("cached", "cache.prefix_tile is sample"), ("refused", "so nothing is cached")):
        run = ended[name]
        status = workshop.command("status", str(run.folder)).stdout
        assert found in status and said in status
        assert said in (run.folder / "logs" / "controller.log").read_text()
        plans = [line for line in run.lines("plans.jsonl") if line["kind"] == "plan"]
        assert {plan["prefix_tile"] for plan in plans} == {"sample" if name == "cached" else "micro_batch"}
    refusals = [line["reason"] for line in ended["refused"].lines("plans.jsonl") if line["kind"] == "plan"]
    assert any(f"no cache: block 0 {found}" in reason for reason in refusals)
