"""An excluded worker stays excluded, and its pod is removed, whichever controller leads by then."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.members.membership import GONE
from frostline_controller.members.silent_pods import READY_TIMES
from tests.unit.controller.test_service_sizing import Stage

HUNG, WHY = "uid-1/1", "it hangs in commit"


def with_pods(folder: Path) -> None:
    """A cluster that runs two pods."""

    def run_them(found: dict[str, Any]) -> None:
        found["status"]["pods"] = [
            {
                "name": f"trainer-{one}",
                "uid": f"uid-{one}",
                "node": f"node-{one}",
                "phase": "Running",
                "started_at": 1.0,
                "ready": True,
            }
            for one in (0, 1)
        ]

    LocalBackend(folder / "cluster").change(run_them)


def deletions(stage: Stage) -> list[str]:
    """Return the uids of the pods that the cluster was asked to delete."""
    found: list[str] = []
    stage.backend.change(lambda state: found.extend(one["uid"] for one in state["spec"]["deletions"]))
    return found


def test_a_controller_that_dies_behind_its_plan_has_a_successor_that_takes_nobody_in_again(tmp_path: Path) -> None:
    async def story() -> None:
        with_pods(tmp_path)
        stage = Stage(tmp_path, placement={"workers": 2})
        with stage.controller.removals.added_with_plan({HUNG: WHY}):
            await stage.store.commit(counter=7)  # the plan's; then its controller is killed
        stage.run.close()
        after = Stage(tmp_path, placement={"workers": 2})
        assert after.facts.members.why_excluded(HUNG) == WHY
        assert deletions(after) == []
        await after.controller.removals.advance()
        assert deletions(after) == ["uid-1"]
        await after.store.commit()
        assert after.facts.state.removals == {}
        after.run.close()

    asyncio.run(story())


def test_nobody_is_removed_for_a_plan_that_could_not_be_made(tmp_path: Path) -> None:
    async def story() -> None:
        with_pods(tmp_path)
        stage = Stage(tmp_path, placement={"workers": 2})
        with pytest.raises(ValueError, match="no placement"), stage.controller.removals.added_with_plan({HUNG: WHY}):
            raise ValueError("no placement")
        await stage.controller.removals.advance()
        assert (deletions(stage), stage.facts.members.why_excluded(HUNG)) == ([], "")
        stage.run.close()

    asyncio.run(story())


@pytest.mark.parametrize(("ended", "gone"), [(False, ["uid-1"]), (True, [])], ids=["stands still", "ended"])
def test_the_pod_of_a_worker_that_stays_silent_is_replaced(tmp_path: Path, ended: bool, gone: list[str]) -> None:
    """The cluster sees a running pod and would not replace it. If the process has ended, its agent starts another."""

    async def story() -> None:
        with_pods(tmp_path)
        stage = Stage(
            tmp_path,
            placement={"workers": 1, "spare_workers": 1},
            controller={"dead_after_seconds": 3.0, "start_timeout_seconds": 15.0},
        )
        await stage.controller.start()
        await stage.join(0, 1)
        await stage.reconciler.round()
        healthy, silent = stage.facts.members.get("uid-0/1"), stage.facts.members.get(HUNG)
        assert healthy is not None and silent is not None
        silent.last_received -= 9.0  # more than its lease, even where a machine that stood still is excused
        await stage.reconciler.round()
        assert (silent.presence, deletions(stage)) == (GONE, []), "it may come back"
        if ended:
            stage.facts.members.end(HUNG, "")
        silent.last_received -= 15.0
        healthy.last_received = stage.facts.clock()
        await stage.reconciler.round()
        assert deletions(stage) == gone
        stage.run.close()

    asyncio.run(story())


def test_a_leader_that_hears_nobody_deletes_no_pod_that_is_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its own network may be broken while they train on; a pod that is not ready is dead, and in the end all silent ones go."""

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if "no worker is heard" in one.getMessage()]

    async def story() -> None:
        with_pods(tmp_path)
        times = {"dead_after_seconds": 3.0, "start_timeout_seconds": 15.0}
        stage = Stage(tmp_path, placement={"workers": 2}, controller=times)
        await stage.controller.start()
        await stage.join(0, 1)
        await stage.reconciler.round()
        facts, silent_pods = stage.facts, stage.controller.silent_pods
        now = facts.clock()
        for worker in facts.members:
            facts.members.remove(worker.worker_id, "silent")
        for seconds in (20.0, 30.0):
            await silent_pods.advance(now + seconds)
        assert deletions(stage) == [] and len(warnings()) == 1 and "trainer-0,trainer-1" in warnings()[0]
        stage.backend.change(lambda found: found["status"]["pods"][1].update(ready=False))
        await stage.run.pods.reread()
        await silent_pods.advance(now + 40.0)
        assert deletions(stage) == ["uid-1"]
        await silent_pods.advance(now + READY_TIMES * 15.0 + 10.0)
        assert deletions(stage) == ["uid-1", "uid-0"]
        stage.run.close()

    asyncio.run(story())
