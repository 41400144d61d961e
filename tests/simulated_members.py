"""Members of a plan as threads of one process: pipelines and gradients go over simulated NCCL, votes over gloo as usual."""

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
    """Train a case on a layout, or through segments. Returns each worker's report. Raises the first member's exception."""
    segments = [Segment(series, case.steps)] if isinstance(series, Layout) else list(series)
    count = 1 + max(number for segment in segments for number in segment.layout.numbers)
    ports = [engine_member.store_port()] * count
    plans: list[Plan] = []
    for segment in segments:
        plans.append(make_plan(segment, plans[-1] if plans else None, ports, case=case, backend=NCCL))
    reported = [(plan.model_dump(mode="json"), segment.last) for plan, segment in zip(plans, segments, strict=True)]
    network.expect(count)

    def run(index: int) -> Run:
        with network.member(index):
            return engine_member.run_member(case, f"w{index}", reported)

    with over(network):
        return in_threads(run, count)


def in_threads(run: Callable[[int], Any], count: int, seconds: float = SECONDS) -> list[Any]:
    """Call run(index) in a thread for each index. Returns the results; raises the first exception, or AssertionError where one
    hangs."""
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
    """Let members of `tests.engine_member` form NCCL groups over the network, and run their steps on its devices."""
    with pytest.MonkeyPatch.context() as changes:
        for owner, name, other in list(_changes(network)):
            changes.setattr(owner, name, other)
        yield


def _changes(network: Network) -> Iterator[tuple[Any, str, Any]]:
    """Yield the replacements for the network: (owner, name, replacement).

    Members build their models one at a time, since torch's generator belongs to the process. A device that is behind has marks.
    Computations of a GPU's host in its own memory, votes and moves of state are done at once; host reads wait for the device.
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
    """Return a method that reads a tensor's memory, or passes it to a reader, outside the dispatcher; it waits for the device
    first."""

    def read(self: Any, *arguments: Any, **named: Any) -> Any:
        if getattr(self, "backend", "gloo") == "gloo":
            network.drain()
        return method(self, *arguments, **named)

    return read
