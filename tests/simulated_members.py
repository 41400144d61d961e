"""Members of a plan as threads of one process: pipelines and gradients go over simulated NCCL, votes over gloo as ever."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from frostline_trainer.comm import nccl
from frostline_trainer.engine.groups import form_groups
from tests import engine_member
from tests.engine_member import Run
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, Segment, make_plan
from tests.simulated_nccl import Network

SECONDS = 120.0
"""Only a hang lasts this long."""
_building = threading.Lock()


def run_simulated(case: Case, layout: Layout, network: Network) -> list[Run]:
    """Train a case on a layout. Returns each worker's report. Raises what the first member raised."""
    count = layout.pp_degree * layout.dp_degree
    port = engine_member.store_port()
    plan = make_plan(Segment(layout, case.steps), None, [port] * count).model_dump(mode="json")
    network.expect(count)

    def run(index: int) -> Run:
        with network.member(index):
            return engine_member.run_member(case, f"w{index}", [(plan, case.steps)])

    with _over(network):
        return in_threads(run, count)


def in_threads(run: Callable[[int], Any], count: int, seconds: float = SECONDS) -> list[Any]:
    """run(index) in a thread each. Returns what they return; raises the first exception, or AssertionError where one hangs."""
    results: dict[int, Any] = {}
    raised: list[BaseException] = []

    def carry_out(index: int) -> None:
        try:
            results[index] = run(index)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=carry_out, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        if raised:
            raise raised[0]
        assert not thread.is_alive(), f"a member has not ended within {seconds:g} s"
    return [results[index] for index in range(count)]


@contextmanager
def _over(network: Network) -> Iterator[None]:
    """Members of `tests.engine_member` form NCCL groups over the network, and build their models one at a time: torch's generator
    belongs to the process."""
    before = nccl.make_communicator, nccl.OWN_DEVICE, engine_member.form_groups, engine_member.build_case

    def build(case: Case) -> Any:
        with _building:
            return build_case(case)

    nccl.make_communicator, nccl.OWN_DEVICE = network.make, torch.device("cpu")
    engine_member.form_groups = lambda plan, worker_id, backend, seconds: form_groups(plan, worker_id, "nccl", seconds)
    engine_member.build_case = build
    try:
        yield
    finally:
        nccl.make_communicator, nccl.OWN_DEVICE, engine_member.form_groups, engine_member.build_case = before
