"""A worker forms a plan's groups with the plan's backend, whatever it would choose by itself."""

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from frostline_contract.plan import Plan
from frostline_proto.v1 import control_pb2
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.forming import NotFormed, Preparation
from frostline_trainer.generations.plan_states import PlanState
from frostline_trainer.process.identity import Identity
from frostline_trainer.transport.collectives import Group, open_store
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, Segment, make_plan
from tests.integration.scripted_worker import wait_for


@contextmanager
def prepared_by(names: tuple[str, ...], folder: Path) -> Iterator[list[Preparation]]:
    """The preparations of these workers, which no controller answers."""
    made = []
    for name in names:
        box = Mailbox(name)
        identity = Identity(folder, str(folder / "nobody"), "any", "trainer-0", name, "node", "127.0.0.1")
        client = ControlClient(identity.controller, "any", control_pb2.RegisterRequest(worker_id=name), box,
                               control_pb2.HeartbeatRequest, lambda lineage, step, interval: None)  # fmt: skip
        preparation = Preparation(build_case(Case("vit")), identity, box, client, lambda: 0)
        preparation.start()
        made.append((preparation, client))
    try:
        yield [preparation for preparation, _ in made]
    finally:
        for preparation, client in made:
            client.stop()
            preparation.stop()


def take(preparations: list[Preparation], plan: Plan) -> None:
    """Announce a plan to all."""
    for preparation in preparations:
        preparation._mailbox.put_plan(plan)


@pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(), reason="NCCL would be formed here, or is not built in"
)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_plans_backend_is_formed(backend: str, tmp_path: Path) -> None:
    store, port = open_store()
    plan = make_plan(Segment(Layout(1, 2), 1), None, [port, port]).model_copy(update={"backend": backend})
    outcomes = []
    with prepared_by(plan.placement.workers, tmp_path) as preparations:
        take(preparations, plan)
        for preparation in preparations:
            try:
                preparation.next_plan()
                outcomes.append([group.backend for group in preparation.groups_of(plan).all() if isinstance(group, Group)])
            except NotFormed as error:
                outcomes.append(str(error))
    del store
    if backend == "gloo":
        assert all(set(backends) == {"gloo"} for backends in outcomes), outcomes
    else:
        # Without a GPU NCCL itself raises the error: it was requested.
        assert all("ProcessGroupNCCL is only supported with GPUs" in outcome for outcome in outcomes), outcomes


def test_a_leaver_that_is_still_sending_its_state_learns_of_the_next_plans_switch(tmp_path: Path) -> None:
    """The plan that takes a leaver back may be prepared before the leaver has sent its state.

    The leaver has no vote meanwhile, so it reads the switch in the store, as joiners do; or all who switch wait for it for ever.
    """
    store, port = open_store()
    wide, narrow = (Segment(Layout(1, degree), 1) for degree in (2, 1))
    first = make_plan(wide, None, [port, port])
    without = make_plan(narrow, first, [port, port]).model_copy(update={"start": "survivors"})
    again = make_plan(wide, without, [port, port])
    assert without.leavers == ("w1",) and again.base == without.generation
    with prepared_by(first.placement.workers, tmp_path) as (staying, leaving), ThreadPoolExecutor(1) as pool:
        take([staying, leaving], without)
        for preparation in (staying, leaving):
            assert preparation.next_plan() == without
            preparation._plans.entering(without.generation)
        take([staying, leaving], again)
        for preparation in (staying, leaving):
            wait_for(lambda plans=preparation._plans: plans.state(again.generation) is PlanState.PREPARED, "groups are formed")
        staying._plans.entered(without.generation, as_member=True)
        leaving._plans.entered(without.generation, as_member=False)
        due = pool.submit(leaving.next_plan)
        staying.announce_switch(again, 1)
        try:
            wait_for(due.done, "the leaver reads the switch")
        finally:
            leaving._mailbox.put_notice(end="over")
        assert due.result() == again
    del store


def test_a_plan_whose_groups_find_no_more_files_is_answered_and_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Group] = []
    closed: list[Group] = []

    class Scarce(Group):
        def __init__(self, *arguments: Any) -> None:
            if len(opened) == 2:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            super().__init__(*arguments)
            opened.append(self)

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(Preparation, "start", lambda self: None)  # the test forms the groups itself
    monkeypatch.setattr("frostline_trainer.generations.formation.Group", Scarce)
    plan = make_plan(Segment(Layout(1, 1), 1), None, [0])
    with prepared_by(plan.placement.workers, tmp_path) as (preparation,):
        plans = preparation._plans
        take([preparation], plan)
        assert plans.start_forming() == [plan]
        preparation._prepare(plan)
        assert plans.state(plan.generation) is PlanState.FAILED
        with pytest.raises(NotFormed, match=os.strerror(errno.EMFILE)):
            preparation.next_plan()
    assert len(opened) == 2 and closed == opened
