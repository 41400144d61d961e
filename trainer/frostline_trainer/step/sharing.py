"""Sharding of a stage's state over its replicas: one member's part in it (docs/adr/0017-state-sharding.md).

A member reduces, updates and reports its own pieces; before the next step it gets the other replicas' weights by an all-gather.
These weights are a copy and not state: they are never sent on from here, and the all-gather never overwrites pieces that this
member owns or keeps for others. So a commit needs no process group, and a late commit is the same update. With
`placement.shard: use` the state is in local shards (`step.local_shards`), and a unit is gathered at each use (`step.gathering`).

In a tensor-parallel group a member owns its replica's pieces of the tiles that it computes, and of what no tile cuts. It
exchanges them with the members of the other replicas that compute the same tiles, its line; a group shares nothing here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from frostline_contract.plan import Plan
from frostline_contract.usage import Way
from frostline_trainer.step.alignment import ALIGNMENT_BYTES
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.exchange import scatter_gradients
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.local_shards import fill_module, part_of
from frostline_trainer.step.optimizer import PartGradients
from frostline_trainer.step.parts import Part, flat, parts_of, weights_of, write
from frostline_trainer.step.share import Runs, Shares, pieces_of_member
from frostline_trainer.transport.collectives import Group


@dataclass(frozen=True)
class Placed:
    """A part of a weight, and its bytes [start, end) in the message that its owner sends to all."""

    piece: int
    part: Part
    start: int
    end: int

    def read(self, row: torch.Tensor, unit: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy the part from its owner's message into the module. weights: the module's own, by name."""
        views = self.part.of(unit, weights[self.part.name])
        write([view.view(torch.uint8) for view in views], row[self.start : self.end])


class Sharing:
    """One member's sharding of state, in one generation.

    Args:
        context: the run's.
        plan: of the generation; its placement is sharded.
        index: own global rank.
        replicas: the line along dp, by replica.

    Attributes:
        stale: whether the weights of other replicas' pieces are those of an earlier step.
    """

    def __init__(self, context: RunContext, plan: Plan, index: int, replicas: Group) -> None:
        self._context, self._replicas, self._shape = context, replicas, plan.placement.shape
        self._bounds, self._own = plan.placement.leaf_bounds, plan.pieces_of(plan.placement.workers[index])
        self._dp_rank, self._tp_rank = self._shape.dp_rank(index), self._shape.tp_rank(index)
        self._shares: dict[int, Shares] = {}
        self._runs: dict[int, dict[tuple[int, str], Runs]] = {}
        self._known_places: dict[tuple[int, bool], list[list[Placed]]] = {}
        self.stale = True

    # ---- gradients

    def share_out(self, stage: int, buffers: GradientBuffers, freeze_point: int) -> None:
        """Compute the replicas' shares of a stage's gradients; called before the first step at this freeze point."""
        shares = self._shares[stage] = Shares(self._context, buffers, freeze_point, self._shape, self._tp_rank)
        self._runs[stage] = shares.parts(self._own)
        buffers.reserve(len(shares.all) * max(share.length for share in shares.all))

    def reduce(self, stage: int, buffers: GradientBuffers, num_leaves: int) -> torch.Tensor:
        """Reduce-scatter a stage's gradient. Returns a buffer of the stage that begins with this member's share."""
        return scatter_gradients(buffers, self._replicas, self._bounds, num_leaves, self._shares[stage].all)

    def packed(self, stage: int, total: torch.Tensor) -> torch.Tensor:
        """The share at the beginning of a buffer that `reduce` has returned."""
        return total[: self._shares[stage].all[self._dp_rank].length]

    def payload(self, stage: int, total: torch.Tensor, units: tuple[int, ...]) -> torch.Tensor:
        """The part of consecutive units in the share that `reduce` has returned."""
        return total[self._shares[stage].all[self._dp_rank].span(units)]

    def gradients(self, stage: int, total: torch.Tensor) -> PartGradients:
        """The gradients of this member's pieces, as views of the share that `reduce` has returned."""
        own = self._shares[stage].all[self._dp_rank]
        return {key: own.view(total, runs) for key, runs in self._runs[stage].items()}

    def tied(self, stage: int, unit: int, total: torch.Tensor) -> list[torch.Tensor]:
        """Views of the tied matrix's gradient in `unit` that this replica reduces: what it owns of either copy, so that the peer
        with the other copy reduces the same elements.
        """
        shares = self._shares[stage]
        own = shares.all[self._dp_rank]
        return [own.view(total, (run,)) for run in shares.tied[self._dp_rank].get(unit, ())]

    # ---- weights

    @torch.no_grad()
    def gather(self, unit: int, module: nn.Module, kept: Collection[int], only: Collection[str] | None = None) -> int:
        """All-gather a unit's weights over the replicas. Collective. Returns the bytes received.

        kept: pieces whose state this member holds; their weights are not overwritten. only: names of weights; None: all.
        """
        places = self._places(unit, module, only)
        rows = self._gathered(module, places)
        _copy_rows(rows, places, module, weights_of(module), {*kept, *(own.piece for own in places[self._dp_rank])})
        return rows[1:].numel()

    @torch.no_grad()
    def unshard(self, unit: int, module: nn.Module) -> int:
        """All-gather a unit's weights from local shards into its module. Collective. Returns the bytes of the weights."""
        places = self._places(unit, module, None)
        rows = self._gathered(module, places)
        weights = fill_module(module)
        _copy_rows(rows, places, module, weights, but=())
        return sum(tensor.nbytes for tensor in weights.values())

    def _gathered(self, module: nn.Module, places: list[list[Placed]]) -> torch.Tensor:
        """The replicas' messages with the parts of a unit that each owns, one row a replica."""
        weights = weights_of(module)
        room = max((placed[-1].end for placed in places if placed), default=0)
        device = next(module.parameters()).device  # also of a unit whose weights never learn
        rows = torch.empty(len(places), room, dtype=torch.uint8, device=device)
        if not room:
            return rows
        mine = torch.empty(room, dtype=torch.uint8, device=device)
        for one in places[self._dp_rank]:
            part = flat(part_of(module, one.piece, one.part, weights[one.part.name]))
            mine[one.start : one.end].copy_(part.view(torch.uint8))
        with self._replicas.tally.carrying(Way.DP_WEIGHTS):
            self._replicas.all_gather(rows.view(-1), mine)
        return rows

    def _places(self, unit: int, module: nn.Module, only: Collection[str] | None) -> list[list[Placed]]:
        """For each replica, the places in its message of the parts that it owns, each at a 64-byte boundary."""
        if (unit, only is None) not in self._known_places:
            self._known_places[unit, only is None] = self._lay_out(unit, module, only)
        return self._known_places[unit, only is None]

    def _lay_out(self, unit: int, module: nn.Module, only: Collection[str] | None) -> list[list[Placed]]:
        table, weights, found = self._context.pieces, weights_of(module), list[list[Placed]]()
        for dp_rank in range(self._shape.dp_degree):
            end, placed = 0, list[Placed]()
            for piece in pieces_of_member(table, unit, self._shape, dp_rank, self._tp_rank):
                for part in parts_of(table, piece, module):
                    if only is None or part.name in only:
                        start = end + -end % ALIGNMENT_BYTES
                        end = start + (part.high - part.low) * weights[part.name].element_size()
                        placed.append(Placed(piece, part, start, end))
            found.append(placed)
        return found


def _copy_rows(
    rows: torch.Tensor, places: list[list[Placed]], module: nn.Module, weights: Mapping[str, torch.Tensor], but: Collection[int]
) -> None:
    """Copy the replicas' messages, one row each, into a unit's weights. but: pieces that are not copied."""
    for row, placed in zip(rows, places, strict=True):
        for one in placed:
            if one.piece not in but:
                one.read(row, module, weights)
