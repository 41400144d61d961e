"""Sharding of a stage's state over its replicas: one member's part in it (docs/adr/0017-state-sharding.md).

A member reduces, updates and reports its own pieces; before the next step it gets the other replicas' weights by an all-gather.
These weights are a copy and not state: they are never sent on from here, and the all-gather never overwrites pieces that this
member owns or keeps for others. So a commit needs no process group, and a late commit is the same update. With
`placement.shard: use` the state is in local shards (`step.local_shards`), and a unit is gathered at each use (`step.gathering`).

In a tensor-parallel group all members own the pieces of their replica. Each reduces its share along its own line; then the group
puts its tiles' gradients in that share together.
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
from frostline_trainer.step.parts import Part, parts_of, weights_of
from frostline_trainer.step.share import Run, Shares, pieces_of_replica, tied_name
from frostline_trainer.tensor.group import complete_runs
from frostline_trainer.tensor.state import CutRun, run_of
from frostline_trainer.transport.collectives import Group


@dataclass(frozen=True)
class Placed:
    """A part of a weight, and its bytes [start, end) in the message that its owner sends to all."""

    piece: int
    part: Part
    start: int
    end: int

    def of(self, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The part's bytes, in place. weights: the unit's, by name."""
        return weights[self.part.name].view(-1)[self.part.low : self.part.high].view(torch.uint8)


class Sharing:
    """One member's sharding of state, in one generation.

    Args:
        context: the run's.
        plan: of the generation; its placement is sharded.
        dp_rank, pp_rank: this member's place.
        replicas: the line along dp, by replica.
        group: the tensor-parallel group; None: this member computes its stages alone.

    Attributes:
        stale: whether the weights of other replicas' pieces are those of an earlier step.
    """

    def __init__(self, context: RunContext, plan: Plan, dp_rank: int, pp_rank: int, replicas: Group, group: Group | None) -> None:
        self._context, self._plan, self._dp_rank, self._replicas, self._group = context, plan, dp_rank, replicas, group
        self._shape = plan.placement.shape
        self._own = plan.pieces_of(plan.placement.workers[self._shape.first_at(dp_rank, pp_rank)])
        self._shares: dict[int, Shares] = {}
        self._runs: dict[int, dict[tuple[int, str], Run]] = {}
        self._cut: dict[int, dict[int, list[tuple[CutRun, Run]]]] = {}
        self._known_places: dict[tuple[int, bool], list[list[Placed]]] = {}
        self.stale = True

    # ---- gradients

    def share_out(self, stage: int, buffers: GradientBuffers, freeze_point: int) -> None:
        """Compute the replicas' shares of a stage's gradients; called before the first step at this freeze point."""
        shares = self._shares[stage] = Shares(self._context, buffers, freeze_point, self._shape)
        self._runs[stage] = shares.parts(self._own)
        self._cut[stage] = self._cut_runs(stage) if self._group is not None else {}
        buffers.reserve(len(shares.all) * max(share.length for share in shares.all))

    def _cut_runs(self, stage: int) -> dict[int, list[tuple[CutRun, Run]]]:
        """By unit the runs of parameters that tiles cut, each with its place in the flat gradient.

        Of a tied matrix these are the elements that this replica owns of either copy.
        """
        table, units, runs = self._context.pieces, self._context.cut.units, self._runs[stage]
        tied = self._shares[stage].tied[self._dp_rank]
        names = {(unit, tied_name(self._context, unit)) for unit in tied}
        placed = [(unit, name, low, run) for (unit, name) in sorted(names) for low, run in tied[unit]]
        for piece in self._own:
            unit = table.unit_of(piece)
            for part in parts_of(table, piece, units[unit]):
                if (piece, part.name) in runs and (unit, part.name) not in names:
                    placed.append((unit, part.name, part.low, runs[piece, part.name]))
        found = dict[int, list[tuple[CutRun, Run]]]()
        for unit, name, low, run in placed:
            if (cut := run_of(units[unit], name, low)) is not None:
                found.setdefault(unit, []).append((cut, run))
        return found

    def reduce(self, stage: int, buffers: GradientBuffers, num_leaves: int) -> torch.Tensor:
        """Reduce-scatter a stage's gradient. Returns a buffer of the stage that begins with this member's share, complete in all
        tiles.
        """
        bounds, shares = self._plan.placement.leaf_bounds, self._shares[stage].all
        total = scatter_gradients(buffers, self._replicas, bounds, num_leaves, shares)
        for runs in self._cut[stage].values():
            assert self._group is not None
            complete_runs(self._group, [(cut, shares[self._dp_rank].view(total, *run)) for cut, run in runs])
        return total

    def packed(self, stage: int, total: torch.Tensor) -> torch.Tensor:
        """The share at the beginning of a buffer that `reduce` has returned."""
        return total[: self._shares[stage].all[self._dp_rank].length]

    def payload(self, stage: int, total: torch.Tensor, units: tuple[int, ...]) -> torch.Tensor:
        """The part of consecutive units in the share that `reduce` has returned."""
        return total[self._shares[stage].all[self._dp_rank].span(units)]

    def gradients(self, stage: int, total: torch.Tensor) -> PartGradients:
        """The gradients of this member's pieces, as views of the share that `reduce` has returned."""
        own = self._shares[stage].all[self._dp_rank]
        return {key: own.view(total, *run) for key, run in self._runs[stage].items()}

    def tied(self, stage: int, unit: int, total: torch.Tensor) -> list[torch.Tensor]:
        """Views of the tied matrix's gradient in `unit` that this replica reduces: what it owns of either copy, so that the peer
        with the other copy reduces the same elements.
        """
        shares = self._shares[stage]
        own = shares.all[self._dp_rank]
        return [own.view(total, *run) for _, run in shares.tied[self._dp_rank].get(unit, ())]

    # ---- weights

    @torch.no_grad()
    def gather(self, unit: int, module: nn.Module, kept: Collection[int], only: Collection[str] | None = None) -> int:
        """All-gather a unit's weights over the replicas. Collective. Returns the bytes received.

        kept: pieces whose state this member holds; their weights are not overwritten. only: names of weights; None: all.
        """
        places = self._places(unit, module, only)
        rows = self._gathered(module, places)
        _copy_rows(rows, places, weights_of(module), {*kept, *(own.piece for own in places[self._dp_rank])})
        return rows[1:].numel()

    @torch.no_grad()
    def unshard(self, unit: int, module: nn.Module) -> int:
        """All-gather a unit's weights from local shards into its module. Collective. Returns the bytes of the weights."""
        places = self._places(unit, module, None)
        rows = self._gathered(module, places)
        weights = fill_module(module)
        _copy_rows(rows, places, weights, but=())
        return sum(tensor.nbytes for tensor in weights.values())

    def _gathered(self, module: nn.Module, places: list[list[Placed]]) -> torch.Tensor:
        """The replicas' messages with the parts of a unit that each owns, one row a replica."""
        weights = weights_of(module)
        room = max((placed[-1].end for placed in places if placed), default=0)
        device = next(iter(weights.values())).device
        rows = torch.empty(len(places), room, dtype=torch.uint8, device=device)
        if not room:
            return rows
        mine = torch.empty(room, dtype=torch.uint8, device=device)
        for one in places[self._dp_rank]:
            part = part_of(module, one.piece, one.part, weights[one.part.name])
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
            for piece in pieces_of_replica(table, unit, dp_rank, self._shape):
                for part in parts_of(table, piece, module):
                    if only is None or part.name in only:
                        start = end + -end % ALIGNMENT_BYTES
                        end = start + (part.high - part.low) * weights[part.name].element_size()
                        placed.append(Placed(piece, part, start, end))
            found.append(placed)
        return found


def _copy_rows(rows: torch.Tensor, places: list[list[Placed]], weights: Mapping[str, torch.Tensor], but: Collection[int]) -> None:
    """Copy the replicas' messages, one row each, into a unit's weights. but: pieces that are not copied."""
    for row, placed in zip(rows, places, strict=True):
        for one in placed:
            if one.piece not in but:
                one.of(weights).copy_(row[one.start : one.end])
