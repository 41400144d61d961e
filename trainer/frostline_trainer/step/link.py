"""Measures latency and bandwidth of a generation's links, between machines and within one, for the planner.

Pipeline neighbours measure messages and the replicas of a stage measure all-reduces, over the transport and the groups that steps
use, in the device's own time. A plan without pipeline or without replicas measures the missing kind in gloo's world group; if
steps use NCCL, that kind is not measured.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from frostline_contract.mesh import Mesh
from frostline_contract.statistics import LinkProfile
from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.device_clock import DeviceClock
from frostline_trainer.step.exchange import Levels
from frostline_trainer.step.fence import POLL_SECONDS
from frostline_trainer.transport.collectives import Group, machines_of

SMALL, LARGE = 16, 1_048_576
"""float32 elements of a latency probe and of a bandwidth probe."""
TURNS = 8
"""How often a probe is run."""
UNMEASURED = LinkProfile(
    latency_seconds=0.0, bandwidth_bytes_per_second=0.0, reduce_latency_seconds=0.0, reduce_bandwidth_bytes_per_second=0.0
)


@dataclass(frozen=True)
class Links:
    """A member's measured links to its peers, one of each kind.

    far: between machines. near: within one machine. None: this member has no such link. A figure of 0 was not measured.
    """

    far: LinkProfile | None = None
    near: LinkProfile | None = None


@dataclass(frozen=True)
class Endpoint:
    """The measuring member.

    Attributes:
        machine: its kernel's boot id.
        device: of the tensors that steps send.
        clock: of that device; of a CPU worker with a quota its own, which counts the work of sending and receiving.
    """

    machine: str
    device: torch.device
    clock: DeviceClock


def measure_links(groups: Groups, mesh: Mesh, here: Endpoint) -> Links:
    """Measure this member's links. Collective; a lone worker has none."""
    world = groups.world
    if world is None or world.size == 1:
        return Links()
    machines = machines_of(world, here.machine)
    figures: dict[bool, dict[str, float]] = {True: {}, False: {}}
    meter = _Meter(groups, here)
    for other, probe in meter.neighbours(mesh.line(world.index, "pp")):
        near = machines[other] == machines[world.index]
        figures[near] |= _figures("", probe(SMALL), probe(LARGE))
    for group, near in meter.sums(mesh.line(world.index, "dp"), machines):
        figures[near] |= _of_a_pair(group.size, meter.sum_over(group, SMALL), meter.sum_over(group, LARGE))
    far, near_by = (UNMEASURED.model_copy(update=found) if found else None for found in (figures[False], figures[True]))
    return Links(far, near_by)


def _figures(prefix: str, latency: float, slow: float) -> dict[str, float]:
    return {f"{prefix}latency_seconds": latency, f"{prefix}bandwidth_bytes_per_second": 4 * LARGE / max(slow - latency, 1e-6)}


def _of_a_pair(members: int, latency: float, slow: float) -> dict[str, float]:
    """Convert the cost of an all-reduce over n members to that over two, which the planner expects.

    More members need more rounds, and each sends its buffer 2 (n - 1) / n times; of two members each sends it once.
    """
    rounds, sent = (members - 1).bit_length(), 2 * (members - 1) / members
    found = _figures("reduce_", latency, slow)
    return {
        "reduce_latency_seconds": found["reduce_latency_seconds"] / rounds,
        "reduce_bandwidth_bytes_per_second": found["reduce_bandwidth_bytes_per_second"] * sent,
    }


Probe = Callable[[int], float]
"""Number of float32 elements -> seconds."""


class _Meter:
    """The probes of one member's links."""

    def __init__(self, groups: Groups, here: Endpoint) -> None:
        assert groups.world is not None and groups.transport is not None
        self._groups, self._world, self._transport, self._here = groups, groups.world, groups.transport, here

    def neighbours(self, pipeline: Sequence[int]) -> list[tuple[int, Probe]]:
        """(global rank, its probe) of this member's pipeline neighbours: pairs 0-1, 2-3 first, then 1-2, 3-4.

        pipeline: the global ranks of this member's replica, by pipeline rank.
        """
        if len(pipeline) > 1:
            own = self._transport.index
            others = [other for other in (own ^ 1, ((own + 1) ^ 1) - 1) if 0 <= other < len(pipeline)]
            return [(pipeline[other], partial(self._over_transport, other)) for other in others]
        other = self._world.index ^ 1
        return [(other, partial(self._over_world, other))] if self._world_stands_for_links and other < self._world.size else []

    def sums(self, replicas: Sequence[int], machines: Sequence[int]) -> list[tuple[Group, bool]]:
        """The groups whose all-reduces are measured, and whether each lies within a machine.

        Args:
            replicas: the global ranks that share this member's stages.
            machines: by global rank.
        """
        found = self._groups.replicas if len(replicas) > 1 else None
        if isinstance(found, Levels):
            return [(found.near, True), (found.far, False)]
        if found is not None:
            return [(found, len({machines[member] for member in replicas}) == 1)]
        return [(self._world, len(set(machines)) == 1)] if self._world_stands_for_links else []

    def sum_over(self, group: Group, elements: int) -> float:
        """Seconds of an all-reduce over a group."""
        payload = torch.zeros(elements, device="cpu" if group is self._world else self._here.device)
        return self._measured(lambda: group.all_reduce_sum(payload))

    @property
    def _world_stands_for_links(self) -> bool:
        """Whether steps send over gloo, like the world group, so that measuring in the world stands for the steps' links."""
        return not self._groups.wait_on_device

    def _over_transport(self, other: int, elements: int) -> float:
        payload, landing = (torch.zeros(elements, device=self._here.device) for _ in range(2))

        def exchange() -> None:
            arriving = self._transport.receive(landing, other)
            self._transport.send(payload, other).wait()
            arriving.wait()

        return self._measured(exchange)

    def _over_world(self, other: int, elements: int) -> float:
        payload, landing = torch.zeros(elements), torch.zeros(elements)

        def exchange() -> None:
            sent = self._world.send(payload, other, elements)
            self._world.receive(landing, other, elements)
            sent.wait()

        return self._measured(exchange)

    def _measured(self, exchange: Callable[[], object]) -> float:
        """Seconds of an exchange, from several turns, of which the first may include set-up."""
        clock, turns = self._here.clock, list[float]()
        for _ in range(TURNS):
            start = clock.mark()
            exchange()
            end = clock.mark()
            while not end.query():
                self._groups.check()
                time.sleep(POLL_SECONDS)
            turns.append(clock.seconds(start, end))
        return clock.of_turns(turns)
