"""Members of a plan as threads of one process: pipelines and gradients go over simulated NCCL, votes over gloo as ever."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from frostline_contract.plan import NCCL, Plan
from frostline_trainer.generations import moves
from frostline_trainer.step import vote
from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import Group
from tests import engine_member
from tests.engine_member import Run
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, Segment, make_plan
from tests.simulated_nccl import Network

SECONDS = 120.0
"""Only a hang lasts this long."""
_building = threading.Lock()


def run_simulated(case: Case, series: Layout | Sequence[Segment], network: Network) -> list[Run]:
    """Train a case on a layout, or through segments. Returns each worker's report. Raises what the first member raised."""
    segments = [Segment(series, case.steps)] if isinstance(series, Layout) else list(series)
    count = 1 + max(number for segment in segments for number in segment.layout.numbers)
    ports = [engine_member.store_port()] * count
    plans: list[Plan] = []
    for segment in segments:
        plans.append(make_plan(segment, plans[-1] if plans else None, ports, backend=NCCL))
    told = [(plan.model_dump(mode="json"), segment.last) for plan, segment in zip(plans, segments, strict=True)]
    network.expect(count)

    def run(index: int) -> Run:
        with network.member(index):
            return engine_member.run_member(case, f"w{index}", told)

    with over(network):
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
def over(network: Network) -> Iterator[None]:
    """Members of `tests.engine_member` form NCCL groups over the network, and their steps run on its devices."""
    with pytest.MonkeyPatch.context() as changes:
        for owner, name, other in list(_changes(network)):
            changes.setattr(owner, name, other)
        yield


def _changes(network: Network) -> Iterator[tuple[Any, str, Any]]:
    """What is another thing over the network: (owner, name, the other thing).

    Members build their models one at a time: torch's generator belongs to the process. A device that is behind has marks; what a
    GPU's host computes in its own memory, votes and moving states, is computed at once; what the host reads it waits for.
    """
    yield nccl, "make_communicator", network.make
    yield nccl, "OWN_DEVICE", torch.device("cpu")

    def build(case: Case) -> Any:
        with _building, network.on_host():
            context = build_case(case)
        context.device_clock = network.clock()
        return context

    yield engine_member, "build_case", build

    def hold_vote(*arguments: Any) -> Any:
        with network.on_host():
            return vote.hold_vote(*arguments)

    def move_pieces(*arguments: Any) -> Any:
        network.drain()
        with network.on_host():
            return moves.move_pieces(*arguments)

    yield engine_member, "hold_vote", hold_vote
    yield engine_member, "move_pieces", move_pieces
    for owner, name in ((torch.Tensor, "tolist"), (torch.Tensor, "numpy"), (Group, "_outgoing"), (Group, "_landing")):
        yield owner, name, _reading(network, getattr(owner, name))


def _reading(network: Network, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that reads a tensor's memory, or hands it to somebody who does, behind the dispatcher's back."""

    def read(self: Any, *arguments: Any, **named: Any) -> Any:
        if getattr(self, "backend", "gloo") == "gloo":
            network.drain()
        return method(self, *arguments, **named)

    return read
