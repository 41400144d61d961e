"""The label that the controller's Service follows, among pods that others write to as well (tests/cluster has the rest)."""

import asyncio
from collections.abc import Callable
from typing import Any

from frostline_controller.cluster.kubernetes.api import ApiError
from frostline_controller.cluster.kubernetes.leader_label import LEADER, ROLE, LeaderLabel


class Pods:
    """The part of an API that the label needs: controllers' pods by name. writes: the number of writes."""

    def __init__(self, *names: str) -> None:
        self.labels: dict[str, dict[str, str]] = {name: {} for name in names}
        self.writes, self.fails = 0, 0

    def get(self, path: str, labelSelector: str) -> dict[str, Any]:
        assert labelSelector.endswith(f",{ROLE}={LEADER}")
        if self.fails:
            self.fails -= 1
            raise ApiError(503, "the API server restarts")
        return {"items": [{"metadata": {"name": name}} for name in self.bearers()]}

    def patch(self, path: str, content: dict[str, Any]) -> None:
        self.writes += 1
        value, labels = content["metadata"]["labels"][ROLE], self.labels[path.rsplit("/", 1)[-1]]
        labels.pop(ROLE, None)
        if value is not None:
            labels[ROLE] = value

    def bearers(self) -> list[str]:
        return [name for name, labels in self.labels.items() if labels.get(ROLE) == LEADER]


def label_of(pods: Pods, name: str) -> LeaderLabel:
    return LeaderLabel(pods, "default", "run", name)  # type: ignore[arg-type]


def test_one_pod_bears_it_and_it_is_written_only_where_it_changes() -> None:
    pods = Pods("a", "b")
    label_of(pods, "a").take()
    label_of(pods, "b").take()
    assert pods.bearers() == ["b"]
    written = pods.writes
    label_of(pods, "b").take()
    assert pods.writes == written


def test_who_leads_takes_it_back_and_who_does_not_lets_it_be() -> None:
    async def body() -> None:
        pods = Pods("a", "b")
        leads = True
        mine = label_of(pods, "a")
        mine.take()
        keeping = asyncio.create_task(mine.keep(lambda: leads, look_seconds=0.01))
        label_of(pods, "b").take()  # a former leader's write that came late
        await until(lambda: pods.bearers() == ["a"])
        pods.fails = 1
        pods.labels["a"].clear()  # somebody removed the label while the API server was away for a moment
        await until(lambda: pods.bearers() == ["a"] and not pods.fails)
        leads = False
        label_of(pods, "b").take()
        await asyncio.sleep(0.1)
        assert pods.bearers() == ["b"]
        keeping.cancel()

    asyncio.run(body())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.01)
