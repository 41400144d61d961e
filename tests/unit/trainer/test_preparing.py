"""A worker forms a plan's groups with the plan's backend, whatever it would choose by itself."""

from pathlib import Path

import pytest
import torch

from frostline_proto.v1 import control_pb2
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.forming import NotFormed, Preparation
from frostline_trainer.process.identity import Identity
from frostline_trainer.transport.collectives import Group, open_store
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, Segment, make_plan


@pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(), reason="NCCL would be formed here, or is not built in"
)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_plans_backend_is_formed(backend: str, tmp_path: Path) -> None:
    store, port = open_store()
    plan = make_plan(Segment(Layout(1, 2), 1), None, [port, port]).model_copy(update={"backend": backend})
    preparations, outcomes = [], []
    for name in plan.placement.workers:
        box = Mailbox(name)
        identity = Identity(tmp_path, str(tmp_path / "nobody"), "any", "trainer-0", name, "node", "127.0.0.1")
        client = ControlClient(identity.controller, "any", control_pb2.RegisterRequest(worker_id=name), box,
                               control_pb2.HeartbeatRequest, lambda lineage, step, interval: None)  # fmt: skip
        preparation = Preparation(build_case(Case("vit")), identity, box, client, lambda: 0)
        preparation.start()
        box.put_plan(plan)
        preparations.append((preparation, client))
    try:
        for preparation, _ in preparations:
            try:
                preparation.next_plan()
                outcomes.append([group.backend for group in preparation.groups_of(plan).all() if isinstance(group, Group)])
            except NotFormed as error:
                outcomes.append(str(error))
    finally:
        for preparation, client in preparations:
            client.stop()
            preparation.stop()
    del store
    if backend == "gloo":
        assert all(set(backends) == {"gloo"} for backends in outcomes), outcomes
    else:
        # Without a GPU NCCL itself raises the error: it was requested.
        assert all("ProcessGroupNCCL is only supported with GPUs" in outcome for outcome in outcomes), outcomes
