"""Events of kind `cache`: logged at the first freeze and at each change of the cache's use, once, whoever leads."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from frostline_contract.job import parse_job
from frostline_contract.plan import GenerationId, Plan
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.planner.caching import verdict_in
from frostline_controller.run.cache_news import CacheNews
from frostline_controller.run.durable import DurableStore
from frostline_controller.run.run import Run
from tests.hand_made_plans import Layout
from tests.integration.scripted_worker import job_values

Announced = list[tuple[int, bool, str]]


def new_run(folder: Path, **sections: Any) -> Run:
    job = parse_job(yaml.safe_load(yaml.safe_dump(job_values(**sections))))
    store = DurableStore(LocalBackend(folder / "cluster"))
    return Run(job, folder, LocalBackend(folder / "cluster"), store, *store.take_over())


def plan(counter: int, freeze_point: int, used: bool, why: str) -> Plan:
    placement = Layout(2, 1).placement(freeze_point).model_copy(update={"use_cache": used})
    return Plan(
        generation=GenerationId(incarnation=1, counter=counter), lineage=0, start="fresh", start_step=10 * counter,
        freeze_point=freeze_point, placement=placement, reason=f"K 4 -> 2; {why}",
    )  # fmt: skip


def announced(run: Run) -> Announced:
    return [(one["step"], one["use_cache"], one["reason"]) for one in run.store.events.all() if one["kind"] == "cache"]


async def follow(run: Run, news: CacheNews, *plans: Plan) -> None:
    for one in plans:
        await run.store.commit(current=one)
        for _ in range(2):  # a round that finds nothing new logs nothing
            await news.advance()


PLANS = (
    plan(1, 0, False, "no cache: nothing is frozen"),
    plan(2, 2, False, "no cache: fetch 2 s against recompute 1 s a sample"),
    plan(3, 3, False, "no cache: fetch 2 s against recompute 1.5 s a sample"),
    plan(4, 4, True, "cache: fetch 2 s against recompute 9 s a sample"),
    plan(5, 4, True, "cache: fetch 2 s against recompute 9 s a sample; its build is paid for"),
)


def test_each_change_is_told_once_also_by_a_successor(tmp_path: Path) -> None:
    expected = [
        (20, False, "off: fetch 2 s against recompute 1 s a sample"),
        (40, True, "on: fetch 2 s against recompute 9 s a sample"),
    ]

    async def body() -> None:
        run = new_run(tmp_path, elastic={"cache": True})
        await follow(run, CacheNews(run.facts, run.store, run.outbox), *PLANS)
        assert announced(run) == expected
        await follow(run, CacheNews(run.facts, run.store, run.outbox), PLANS[-1])  # a successor's events
        assert announced(run) == expected
        run.store.amendments.cache_off = "the cache is off, a cached value was wrong: boundary 2"
        await follow(run, CacheNews(run.facts, run.store, run.outbox), plan(6, 4, False, "no cache: no server is reachable"))
        assert announced(run)[2:] == [(60, False, "off: the cache is off, a cached value was wrong: boundary 2")]
        run.close()

    asyncio.run(body())


@pytest.mark.parametrize("sections", [{"elastic": {"cache": False}}, {"elastic": {"cache": True}, "cache": {"use": "never"}}])
def test_who_wants_no_cache_is_told_nothing(sections: dict[str, Any], tmp_path: Path) -> None:
    async def body() -> None:
        run = new_run(tmp_path, **sections)
        await follow(run, CacheNews(run.facts, run.store, run.outbox), *PLANS[:3])
        assert announced(run) == []
        run.close()

    asyncio.run(body())


def test_the_verdict_is_the_end_of_a_plans_reason() -> None:
    assert (
        verdict_in("least step time of 3 shapes; no cache: the augmentation is random; set x")
        == "the augmentation is random; set x"
    )
    assert verdict_in("asked for by hand") == "asked for by hand"
