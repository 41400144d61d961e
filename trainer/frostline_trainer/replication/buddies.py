"""A buddy keeps pieces of others, whole units, so that they can be brought back where all their owners are lost
(docs/protocols.md 2.2 and 4.6).

A ward's weights lie in the buddy's own copy of the model, its moments among the buddy's moments: an owner's state, at the same
tag. In every step the owner in replica 0 sends the ward's reduced gradient, which the buddy has before it enters the vote; what
the vote decides both do, by one function. So the bits are the owner's and nothing is replayed: a log of one step.

Memory, in the buddy's host memory: a ward's state (weights, which a worker holds anyway, and moments) and one reduced gradient
of its wards; with AdamW 4 times the size of the weights. A ward is updated on the buddy's device, since a CPU's update has other
bits than a GPU's. Where the device has room for all wards beside what the planner predicts they stay there (`resident`): then a
step carries a ward's gradient into the device and nothing else. Where it has not they lie in host memory, and in each step every
ward goes to the device with its moments, one unit at a time, and comes back: 7 times the weights' bytes with AdamW, not 1. The
owner holds a host copy of the gradient that it sends.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from frostline_contract.plan import Plan
from frostline_trainer.families.base import learnable
from frostline_trainer.model import set_frozen
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.tied import learning, stop_frozen_tie
from frostline_trainer.step.transfer import host_memory_for, page_locked_empty
from frostline_trainer.transport.collectives import Group, Message, wait_all

ROOM_SHARE = 0.9
"""Of a device's memory that may be planned to be used when wards stay there: the rest is the allocator's and the libraries'."""
KEEP_TAG = 1 << 24
"""First tag of gradients for buddies, one a unit: above those of state moves, which travel in the same group."""


@dataclass(frozen=True)
class Parcel:
    """Consecutive units of one stage that learn and have one buddy: their reduced gradients are one message.

    owner, buddy: global ranks; the owner is the stage's in replica 0.
    """

    stage: int
    units: tuple[int, ...]
    owner: int
    buddy: int

    @property
    def tag(self) -> int:
        """The message's tag in the world's group; no two of a step have one."""
        return KEEP_TAG + self.units[0]


def parcels_of(plan: Plan, freeze_point: int) -> list[Parcel]:
    """Every message of a step's gradients to buddies, in unit order. A frozen unit has no gradient to send."""
    placement, buddies, parcels = plan.placement, unit_buddies(plan), list[Parcel]()
    for stage in range(placement.shape.num_stages) if buddies else ():
        owner = placement.shape.global_rank(0, placement.shape.pp_rank_of_stage(stage))
        run: list[int] = []
        for unit in placement.units_of_stage(stage):
            if run and buddies[unit] != buddies[run[0]]:
                parcels += _parcel(plan, buddies, stage, owner, run)
                run = []
            if unit >= freeze_point:
                run.append(unit)
        parcels += _parcel(plan, buddies, stage, owner, run)
    return parcels


def _parcel(plan: Plan, buddies: Sequence[str], stage: int, owner: int, run: list[int]) -> list[Parcel]:
    if not run or not buddies[run[0]]:
        return []
    return [Parcel(stage, tuple(run), owner, plan.placement.global_ranks[buddies[run[0]]])]


def unit_buddies(plan: Plan) -> tuple[str, ...]:
    """For each unit the buddy that all its pieces have, as `Plan.buddies` says it: a buddy applies updates of whole units.

    Raises ValueError where a unit's pieces have several.
    """
    found = []
    for unit in range(plan.pieces.num_units if plan.buddies else 0):
        named = {plan.buddies[piece] for piece in plan.pieces.of_unit(unit)}
        if len(named) > 1:
            raise ValueError(f"the pieces of unit {unit} have buddies {sorted(named)}; a unit's pieces have one buddy")
        found.append(named.pop())
    return tuple(found)


class Keeper:
    """One member's part in keeping: sends what others keep for it, keeps its wards.

    index: own global rank. world: the members; over gloo, in host memory. freeze_point: what learns; it is fixed, a freeze makes
    a new keeper. wards: units, since an update is of a whole unit, all of whose pieces have one buddy. In a step: `expect`,
    `send` each stage's gradient, `collect` before the vote, then `commit` or `drop`.
    """

    def __init__(self, context: RunContext, plan: Plan, index: int, world: Group, freeze_point: int) -> None:
        self._context, self._world = context, world
        self.wards = plan.pieces.units_of(plan.wards_of(plan.placement.workers[index]))
        for ward in self.wards:
            set_frozen(context.cut.units[ward], ward < freeze_point)
        stop_frozen_tie(context, freeze_point, self.wards)
        parcels = [parcel for parcel in parcels_of(plan, freeze_point) if _learns(context, freeze_point, parcel)]
        self._outgoing = [parcel for parcel in parcels if parcel.owner == index]
        self.resident = wards_stay_on_device(context, plan, self.wards)
        self.incoming = [_Incoming(context, parcel, freeze_point, self.resident) for parcel in parcels if parcel.buddy == index]
        self._staging: dict[Parcel, torch.Tensor] = {}
        self._staged: list[tuple[Parcel, torch.Tensor]] = []
        self._sent: list[Message] = []
        self._expected: list[Message] = []
        self._optimizers = self._ward_optimizers([ward for ward in self.wards if ward >= freeze_point])

    def _ward_optimizers(self, wards: list[int]) -> list[tuple[list[int], UnitOptimizer]]:
        """One for all wards that lie where they are updated; else one each, since they go to the device one by one."""
        context = self._context
        apart = context.device.type != "cpu" and not self.resident
        groups = [[ward] for ward in wards] if apart else [wards] if wards else []
        section = context.job.training.optimizer
        return [
            (group, UnitOptimizer(section, [(ward, context.cut.units[ward]) for ward in group], context.moments))
            for group in groups
        ]

    def expect(self) -> None:
        """A step begins: its gradients may arrive from now on, while this member computes."""
        self._expected = [self._world.expect(item.landing, item.parcel.owner, item.parcel.tag) for item in self.incoming]

    def send(self, stage: int, buffers: GradientBuffers, total: torch.Tensor) -> None:
        """Start sending what buddies keep of a stage whose reduced gradient is `total`; it must not change until `commit`.

        From a device it is on its way to host memory now, and is sent by `post`.
        """
        for parcel in self._outgoing:
            if parcel.stage == stage:
                payload = total[buffers.span(parcel.units)]
                if payload.device.type != "cpu":
                    self._staged.append((parcel, self._stage(parcel, payload)))
                else:
                    self._send(parcel, payload)

    def post(self) -> None:
        """Send what has come from the device: after the fence (step/fence.py), before `collect`."""
        for parcel, staging in self._staged:
            self._send(parcel, staging)
        self._staged = []

    def _send(self, parcel: Parcel, payload: torch.Tensor) -> None:
        self._sent.append(self._world.send(payload, parcel.buddy, parcel.tag))

    def _stage(self, parcel: Parcel, payload: torch.Tensor) -> torch.Tensor:
        """From the device into page-locked host memory, which is kept from step to step; whole when the device has come here."""
        staging = self._staging.get(parcel)
        if staging is None:
            staging = self._staging[parcel] = page_locked_empty(payload.shape, payload.dtype)
        return staging.copy_(payload, non_blocking=True)

    def collect(self) -> None:
        """Wait until the wards' gradients of this step are here: a vote that passes proves it of every buddy."""
        wait_all(self._expected)
        self._expected = []
        for item in self.incoming:
            item.buffers.adopt(item.arrive())

    def finish_sending(self) -> None:
        """After the vote, when every buddy has what was sent: the gradients may change again."""
        wait_all(self._sent)
        self._sent = []

    def commit(self, learning_rate: float, factor: float) -> None:
        """What the owners do to their units, to the wards: scale by `factor` where it is below 1, and update."""
        if factor < 1.0:
            for item in self.incoming:
                item.gradient.mul_(factor)
        for wards, optimizer in self._optimizers:
            with on_device(self._context, wards):
                optimizer.step(learning_rate)

    def drop(self) -> None:
        """The step is over."""
        for item in self.incoming:
            item.buffers.unbind()

    def abandon(self, keep_prepared: bool) -> None:
        """Forget messages under way, so that the group's sockets can close; collected gradients stay where `keep_prepared`."""
        self._sent, self._expected, self._staged = [], [], []
        if not keep_prepared:
            self.drop()


def _learns(context: RunContext, freeze_point: int, parcel: Parcel) -> bool:
    """Whether any parameter of a parcel's units learns: blocks between adapters have none."""
    return any(learning(context, freeze_point, unit) for unit in parcel.units)


class _Incoming:
    """A parcel as its buddy takes it. landing: memory for one step's gradients, laid out as in the owner's buffer. gradient: what
    wards are updated from: the same memory, or the device's where they stay there.
    """

    def __init__(self, context: RunContext, parcel: Parcel, freeze_point: int, resident: bool) -> None:
        self.parcel = parcel
        groups = [(unit, [p for _, p in learning(context, freeze_point, unit)]) for unit in parcel.units]
        self.buffers = GradientBuffers(groups, num_microbatches=1, num_leaves=1)
        like = self.buffers.parameters[0]
        self.landing = host_memory_for(context.device, (self.buffers.length,), like.dtype)
        self.gradient = torch.empty_like(self.landing, device=context.device) if resident else self.landing

    def arrive(self) -> torch.Tensor:
        """The gradients that have landed, on their way to where they are updated from."""
        return self.gradient if self.gradient is self.landing else self.gradient.copy_(self.landing, non_blocking=True)


def wards_stay_on_device(context: RunContext, plan: Plan, wards: Sequence[int]) -> bool:
    """Whether the device has room for all wards beside the fullest member's predicted peak. A CPU has one memory: no.

    A plan whose peak was not predicted says nothing about room.
    """
    peak, limit = plan.placement.predicted_peak_bytes, device_memory(context)
    if context.device.type == "cpu" or not wards or not peak or not limit:
        return False
    copies = 3 if context.job.training.optimizer.name == "adamw" else 2
    units = [context.cut.units[ward] for ward in wards]
    weights = sum(p.numel() * p.element_size() for unit in units for p in unit.parameters())
    gradients = sum(p.numel() * p.element_size() for unit in units for p in learnable(unit).values())
    return peak + weights + copies * gradients <= ROOM_SHARE * limit


def device_memory(context: RunContext) -> int:
    """Bytes that the worker may use on its device; 0: it is not known."""
    if context.job.placement.worker_memory_bytes:
        return context.job.placement.worker_memory_bytes
    return torch.cuda.get_device_properties(context.device).total_memory if context.device.type == "cuda" else 0


@contextmanager
def on_device(context: RunContext, units: list[int]) -> Iterator[None]:
    """Units that lie in host memory are on the run's device inside: weights, gradients and moments."""
    away = [unit for unit in units if next(context.cut.units[unit].parameters()).device != context.device]
    homes = [Home(unit, context.cut.units[unit], context.moments, context.device) for unit in away]
    try:
        yield
    finally:
        for home in homes:
            home.bring_back()


class Home:
    """Where a unit's tensors lie in host memory while it is on the device."""

    def __init__(self, unit: int, module: nn.Module, moments: Moments, device: torch.device) -> None:
        self._unit, self._module, self._moments = unit, module, moments
        self._weights: dict[str, torch.Tensor] = {}
        self._values: dict[tuple[str, str], torch.Tensor] = {}
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        module.zero_grad(set_to_none=True)
        for name, parameter in module.named_parameters():
            self._weights[name] = parameter.data
            parameter.data = parameter.data.to(device, copy=True, non_blocking=True)
            state = moments.get((unit, name), {})
            for moment, tensor in state.items():
                if moment != "step" and isinstance(tensor, torch.Tensor):
                    self._values[name, moment] = tensor
                    state[moment] = tensor.to(device, copy=True, non_blocking=True)
        for name, gradient in _moved(gradients, device).items():
            module.get_parameter(name).grad = gradient

    def bring_back(self) -> None:
        """Into the very memory that it came from; moments that the first update has made get some."""
        for name, parameter in self._module.named_parameters():
            parameter.grad = None
            self._weights[name].copy_(parameter.data)
            parameter.data = self._weights[name]
            state = self._moments.get((self._unit, name), {})
            for moment, tensor in state.items():
                if moment != "step" and isinstance(tensor, torch.Tensor):
                    home = self._values.get((name, moment))
                    state[moment] = tensor.to("cpu", copy=True) if home is None else home.copy_(tensor)


def _moved(gradients: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """A unit's gradients on `device`: views of one piece of memory, as the owner's are, so that kernels see one alignment."""
    if not gradients:
        return {}
    views = list(gradients.values())
    first, last = views[0].storage_offset(), views[-1]
    whole = last.new_empty(0).set_(last.untyped_storage(), first, (last.storage_offset() + last.numel() - first,))
    there = whole.to(device, copy=True, non_blocking=True)
    starts = {name: view.storage_offset() - first for name, view in gradients.items()}
    return {name: there[start : start + gradients[name].numel()].view_as(gradients[name]) for name, start in starts.items()}
