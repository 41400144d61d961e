"""Buddies: a buddy keeps replicas of other members' units, so that units survive the loss of all their owners
(docs/protocols.md 2.2 and 4.6).

A unit replica has its weights in the buddy's own copy of the model and its moments among the buddy's moments: the owner's state,
at the same tag. In every step the owner in replica 0 sends the unit's reduced gradient, which the buddy has received before it
enters the vote. After the vote both commit by the same function. So the replica has the owner's bits, and a recovery has no steps
to replay.

The buddy's host memory holds a unit replica's state (weights, which a worker holds anyway, and moments) and one reduced gradient;
with AdamW 4 times the size of the weights. A unit replica is updated on the buddy's device, since a CPU's update has other bits
than a GPU's. If the device has room for all of them beside the peak that the planner predicts, they stay there (`resident`), and
a step copies only gradients to the device. Otherwise they are in host memory, and each step copies every unit replica with its
moments to the device and back, one at a time: with AdamW 7 times the weights' bytes, not 1. The owner holds a host copy of the
gradient that it sends.

If the state is sharded over replicas (`placement.shard`), the owners of each piece are in one replica; the first of them sends
its part of the gradient. The buddy may be another replica of the stage: it has a copy of the weights of the piece anyway, which
counts as state then; with `placement.shard: use` it keeps them in local shards. In groups this holds of its own tiles; others lie
beside its module (`step/tile_state.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from frostline_contract.plan import Plan
from frostline_contract.shape import ParallelShape
from frostline_contract.usage import Way
from frostline_trainer.families.base import learnable
from frostline_trainer.model import set_frozen
from frostline_trainer.replication.packed_parts import PackedParts
from frostline_trainer.replication.replica_updates import ReplicaUpdate, replica_updates_of
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.local_shards import local_shards
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.reduction import Summed
from frostline_trainer.step.share import Shares
from frostline_trainer.step.tied import learning, stop_frozen_tie
from frostline_trainer.step.tile_state import tiles_beside
from frostline_trainer.step.transfer import host_memory_for, page_locked_empty
from frostline_trainer.tensor.state import has_memory
from frostline_trainer.transport.collectives import Group, Message, wait_all

ROOM_SHARE = 0.9
"""Share of a device's memory that may be planned for use if replicas stay there; the rest is for the allocator and libraries."""


class UnitReplication:
    """One member's replication of units: sends gradients to its buddies, and keeps the replicas of others.

    The calls of a step: `expect`, `send` each stage's gradient, `collect` before the vote, then `commit` or `drop`.

    Args:
        index: Own global rank.
        world: The members; over gloo, in host memory.
        freeze_point: The first unit that learns; a freeze makes a new replication.

    Attributes:
        kept_units: Numbers of the units of which pieces are kept; pieces of a unit with the same owners have one buddy.
    """

    def __init__(self, context: RunContext, plan: Plan, index: int, world: Group, freeze_point: int) -> None:
        self._context, self._world = context, world
        self._kept, self._by_part = plan.replicas_kept_by(plan.placement.workers[index]), plan.placement.divides
        self.kept_units = plan.pieces.units_of(self._kept)
        for unit in self.kept_units:
            set_frozen(context.cut.units[unit], unit < freeze_point)
        stop_frozen_tie(context, freeze_point, self.kept_units)
        updates = [update for update in replica_updates_of(plan, freeze_point) if _learns(context, freeze_point, update)]
        self._outgoing = [update for update in updates if update.owner == index]
        self.resident = replicas_stay_on_device(context, plan, self.kept_units)
        shape = plan.placement.shape if plan.placement.is_sharded else None
        mine = [update for update in updates if update.buddy == index]
        self.incoming = [_Incoming(context, update, freeze_point, self.resident, self._kept, shape) for update in mine]
        self._packed = {update: _Packed(context, update, freeze_point) for update in self._outgoing if update.pieces}
        self._staging: dict[ReplicaUpdate, torch.Tensor] = {}
        self._staged: list[tuple[ReplicaUpdate, torch.Tensor]] = []
        self._sent: list[Message] = []
        self._expected: list[Message] = []
        self._optimizers = self._replica_optimizers([unit for unit in self.kept_units if unit >= freeze_point])

    def _replica_optimizers(self, kept_units: list[int]) -> list[tuple[list[int], UnitOptimizer]]:
        """One optimizer for all replicas if they stay on the device; otherwise one for each, since they are copied one by one."""
        context = self._context
        apart = context.device.type != "cpu" and not self.resident
        groups = [[unit] for unit in kept_units] if apart else [kept_units] if kept_units else []
        section, units, rest = context.job.training.optimizer, context.cut.units, (context.moments, context.pieces, self._kept)
        return [(group, UnitOptimizer(section, [(unit, units[unit]) for unit in group], *rest)) for group in groups]

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers: for receiving gradients, for updating from them, and for sending by way of host memory."""
        landed = [tensor for item in self.incoming for tensor in {id(one): one for one in (item.landing, item.gradient)}.values()]
        packed = [one.message for one in self._packed.values()]
        return sum(tensor.nbytes for tensor in (*landed, *packed, *self._staging.values()))

    def expect(self) -> None:
        """Begin a step: post the receives of unit replicas' gradients, so that they arrive while this member computes."""
        incoming = [item for item in self.incoming if item.landing.numel()]
        with self._world.tally.carrying(Way.BUDDIES):
            self._expected = [self._world.expect(item.landing, item.update.owner, item.update.tag) for item in incoming]

    def send(self, stage: int, summed: Summed) -> None:
        """Start to send a stage's reduced gradients to its buddies; they must not change until `finish_sending`.

        On a GPU this starts the copy to host memory, and `post` sends.
        """
        for update in self._outgoing:
            if update.stage == stage:
                packed = self._packed.get(update)
                payload = summed.of_units(update.units) if packed is None else packed.layout.pack(packed.message, summed.of_part)
                if not payload.numel():
                    continue
                if payload.device.type != "cpu":
                    self._staged.append((update, self._stage(update, payload)))
                else:
                    self._send(update, payload)

    def post(self) -> None:
        """Send the gradients that were copied from the device: after the fence (step/fence.py), before `collect`."""
        for update, staging in self._staged:
            self._send(update, staging)
        self._staged = []

    def _send(self, update: ReplicaUpdate, payload: torch.Tensor) -> None:
        with self._world.tally.carrying(Way.BUDDIES):
            self._sent.append(self._world.send(payload, update.buddy, update.tag))

    def _stage(self, update: ReplicaUpdate, payload: torch.Tensor) -> torch.Tensor:
        """Start a copy into page-locked host memory, which is reused in every step; it is complete behind the next fence."""
        staging = self._staging.get(update)
        if staging is None:
            staging = self._staging[update] = page_locked_empty(payload.shape, payload.dtype)
        return staging.copy_(payload, non_blocking=True)

    def collect(self) -> None:
        """Wait for the unit replicas' gradients of this step. So a passed vote proves that every buddy has received them."""
        wait_all(self._expected)
        self._expected = []
        for item in self.incoming:
            item.arrive()

    def finish_sending(self) -> None:
        """Wait for the sends, after the vote, when every buddy has received; the gradients may change again."""
        wait_all(self._sent)
        self._sent = []

    def commit(self, learning_rate: float, factor: float) -> None:
        """Update the unit replicas as their owners do: scale gradients by `factor` if it is below 1, and update."""
        if factor < 1.0:
            for item in self.incoming:
                item.gradient.mul_(factor)
        table, device = self._context.pieces, self._context.device
        parts = {key: part for item in self.incoming for key, part in item.parts.items()}
        for units, optimizer in self._optimizers:
            with on_device(self._context, units):
                here = {key: part.to(device) for key, part in parts.items() if table.unit_of(key[0]) in units}
                optimizer.step(learning_rate, here if self._by_part else None)

    def drop(self) -> None:
        """Drop the step's gradients."""
        for item in self.incoming:
            item.drop()

    def abandon(self, keep_prepared: bool) -> None:
        """Drop messages under way, so that the group's sockets can close. keep_prepared: keep the collected gradients."""
        self._sent, self._expected, self._staged = [], [], []
        if not keep_prepared:
            self.drop()


def _learns(context: RunContext, freeze_point: int, update: ReplicaUpdate) -> bool:
    """Whether any parameter of a replica update's units learns; blocks without adapters between blocks with them have none."""
    return any(learning(context, freeze_point, unit) for unit in update.units)


class _Packed:
    """The owner's side of a replica update of pieces: the message, in memory that is used again in each step."""

    def __init__(self, context: RunContext, update: ReplicaUpdate, freeze_point: int) -> None:
        self.layout = PackedParts(context, update.pieces, freeze_point)
        self.message = torch.zeros(self.layout.length, dtype=self.layout.dtype, device=context.device)


class _Incoming:
    """The buddy's side of a replica update.

    landing: receive buffer of one step's gradients, with the layout of the owner's buffer, of the owner's share if the state is
    sharded over the replicas of `shape`, or of the pieces' parts where tiles have pieces. gradient: the tensor from which unit
    replicas are updated: `landing`, or a copy on the device if unit replicas stay there. kept: the buddy's pieces. parts: with
    divided state, views of `gradient` by piece.
    """

    def __init__(self, context: RunContext, update: ReplicaUpdate, freeze_point: int, resident: bool, kept: Sequence[int],
                 shape: ParallelShape | None) -> None:  # fmt: skip
        self.update, self.parts = update, dict[tuple[int, str], torch.Tensor]()
        groups = [(unit, [p for _, p in learning(context, freeze_point, unit)]) for unit in update.units]
        self.buffers = GradientBuffers(groups, num_microbatches=1, num_leaves=1)
        packed = PackedParts(context, update.pieces, freeze_point) if update.pieces else None
        shares = Shares(context, self.buffers, freeze_point, shape) if shape is not None and packed is None else None
        length = shares.all[update.replica].length if shares is not None else (packed or self.buffers).length
        self.landing = host_memory_for(context.device, (length,), self.buffers.parameters[0].dtype)
        self.gradient = torch.empty_like(self.landing, device=context.device) if resident else self.landing
        self._binds = shares is None and packed is None
        if packed is not None:
            self.parts = packed.parts(self.gradient)
        if shares is not None:
            runs = shares.parts(piece for piece in kept if shares.owns(update.replica, piece))
            self.parts = {key: shares.all[update.replica].view(self.gradient, one) for key, one in runs.items()}

    def arrive(self) -> None:
        """Make received gradients ready for the update, copied to the device if unit replicas stay there."""
        if self.gradient is not self.landing:
            self.gradient.copy_(self.landing, non_blocking=True)
        if self._binds:
            self.buffers.adopt(self.gradient)

    def drop(self) -> None:
        """Drop the gradients of the step."""
        if self._binds:
            self.buffers.unbind()


def replicas_stay_on_device(context: RunContext, plan: Plan, kept_units: Sequence[int]) -> bool:
    """Whether unit replicas stay on the device: there is room for all beside the fullest member's predicted peak. Never on a CPU.

    Without a predicted peak in the plan they do not stay.
    """
    peak, limit = plan.placement.predicted_peak_bytes, device_memory(context)
    if context.device.type == "cpu" or not kept_units or not peak or not limit:
        return False
    copies = 3 if context.job.training.optimizer.name == "adamw" else 2
    units = [context.cut.units[unit] for unit in kept_units]
    weights = sum(p.numel() * p.element_size() for unit in units for p in unit.parameters())
    gradients = sum(p.numel() * p.element_size() for unit in units for p in learnable(unit).values())
    return peak + weights + copies * gradients <= ROOM_SHARE * limit


def device_memory(context: RunContext) -> int:
    """Bytes that the worker may use on its device; 0: unknown."""
    if context.job.placement.worker_memory_bytes:
        return context.job.placement.worker_memory_bytes
    return torch.cuda.get_device_properties(context.device).total_memory if context.device.type == "cuda" else 0


@contextmanager
def on_device(context: RunContext, units: list[int]) -> Iterator[None]:
    """A context in which units from host memory are on the run's device, with gradients and moments."""
    away = [unit for unit in units if next(context.cut.units[unit].parameters()).device != context.device]
    homes = [Home(context.pieces.of_unit(unit), context.cut.units[unit], context.moments, context.device) for unit in away]
    try:
        yield
    finally:
        for home in homes:
            home.bring_back()


class Home:
    """The host tensors of a unit while it is on the device. pieces: the unit's."""

    def __init__(self, pieces: Iterable[int], module: nn.Module, moments: Moments, device: torch.device) -> None:
        self._pieces, self._module, self._moments = frozenset(pieces), module, moments
        self._weights: dict[str, torch.Tensor] = {}
        self._values: dict[tuple[int, str, str], torch.Tensor] = {}
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        module.zero_grad(set_to_none=True)
        shards = local_shards(module)
        is_whole, shards = shards is None, tiles_beside(module) if shards is None else shards
        self._shards = dict(shards)
        for name, parameter in module.named_parameters() if is_whole else ():
            if has_memory(parameter):
                self._weights[name] = parameter.data
                parameter.data = parameter.data.to(device, copy=True, non_blocking=True)
        for key, shard in self._shards.items():
            shards[key] = shard.to(device, copy=True, non_blocking=True)
        for piece, name, moment, state in self._states():
            tensor = self._values[piece, name, moment] = state[moment]
            state[moment] = tensor.to(device, copy=True, non_blocking=True)
        for name, gradient in _moved(gradients, device).items():
            module.get_parameter(name).grad = gradient

    def bring_back(self) -> None:
        """Copy the unit back into its host tensors; moments that the first update has created get new ones."""
        for name, parameter in self._module.named_parameters():
            parameter.grad = None
            if name in self._weights:
                self._weights[name].copy_(parameter.data)
                parameter.data = self._weights[name]
        shards = local_shards(self._module) or tiles_beside(self._module)
        for key, shard in self._shards.items():
            shards[key] = shard.copy_(shards[key])
        for piece, name, moment, state in self._states():
            home, tensor = self._values.get((piece, name, moment)), state[moment]
            state[moment] = tensor.to("cpu", copy=True) if home is None else home.copy_(tensor)

    def _states(self) -> list[tuple[int, str, str, dict[str, torch.Tensor]]]:
        """(piece, parameter name, moment, all moments of that part) of every moment but the step count."""
        return [
            (piece, name, moment, state)
            for (piece, name), state in self._moments.items()
            for moment, tensor in state.items()
            if piece in self._pieces and moment != "step" and isinstance(tensor, torch.Tensor)
        ]


def _moved(gradients: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """A unit's gradients on `device`: views of one flat tensor, as the owner's are, so that kernels see the same alignment."""
    if not gradients:
        return {}
    views = list(gradients.values())
    first, last = views[0].storage_offset(), views[-1]
    whole = last.new_empty(0).set_(last.untyped_storage(), first, (last.storage_offset() + last.numel() - first,))
    there = whole.to(device, copy=True, non_blocking=True)
    starts = {name: view.storage_offset() - first for name, view in gradients.items()}
    return {name: there[start : start + gradients[name].numel()].view_as(gradients[name]) for name, start in starts.items()}
