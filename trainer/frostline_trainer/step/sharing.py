"""A member's part in sharing the state of its stages out over its replicas (docs/adr/0017-state-sharding.md).

Its own pieces it sums, updates and tells of; the other replicas' weights it gets before the next step. Those are a copy: they are
no state, nobody may ask for them here, and what this member owns or keeps for others is never written by them. So a commit needs
no group, and a step that is committed late is the same update.
"""

from collections.abc import Collection, Iterable

import torch
from torch import nn

from frostline_contract.plan import Plan
from frostline_trainer.step.alignment import ALIGNMENT_BYTES
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.exchange import scatter_gradients
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.optimizer import PartGradients
from frostline_trainer.step.parts import parts_of, weights_of
from frostline_trainer.step.share import Shares, pieces_of_replica
from frostline_trainer.transport.collectives import Group


class Sharing:
    """One member's, in one generation.

    Args:
        context: the run's.
        plan: of the generation; its placement is sharded.
        dp_rank: this member's replica.
        replicas: the line along dp, by replica.

    Attributes:
        stale: weights of other replicas' pieces are those of a step before.
    """

    def __init__(self, context: RunContext, plan: Plan, dp_rank: int, replicas: Group) -> None:
        self._context, self._plan, self._dp_rank, self._replicas = context, plan, dp_rank, replicas
        self._shape = plan.placement.shape
        self._shares: dict[int, Shares] = {}
        self.stale = True

    # ---- gradients

    def share_out(self, stage: int, buffers: GradientBuffers, freeze_point: int) -> None:
        """Say who sums what of a stage's gradients; before its first step at this freeze point."""
        shares = self._shares[stage] = Shares(self._context, buffers, freeze_point, self._shape)
        buffers.reserve(len(shares.all) * max(share.length for share in shares.all))

    def reduce(self, stage: int, buffers: GradientBuffers, num_leaves: int) -> torch.Tensor:
        """This member's share of the step's gradient: a buffer of the stage that begins with it."""
        bounds = self._plan.placement.leaf_bounds
        return scatter_gradients(buffers, self._replicas, bounds, num_leaves, self._shares[stage].all)

    def packed(self, stage: int, total: torch.Tensor) -> torch.Tensor:
        """The share that `reduce` has left in a buffer."""
        return total[: self._shares[stage].all[self._dp_rank].length]

    def payload(self, stage: int, total: torch.Tensor, units: tuple[int, ...]) -> torch.Tensor:
        """Of the share that `reduce` has left in a buffer, what consecutive units have."""
        return total[self._shares[stage].all[self._dp_rank].span(units)]

    def gradients(self, stage: int, pieces: Iterable[int], total: torch.Tensor) -> PartGradients:
        """What these pieces have of the share in a buffer."""
        shares = self._shares[stage]
        own = shares.all[self._dp_rank]
        return {key: own.view(total, *run) for key, run in shares.parts(pieces).items()}

    def tied(self, stage: int, unit: int, total: torch.Tensor) -> list[torch.Tensor]:
        """What this replica sums of the tied matrix whose copy in `unit` this stage has: of both of its owners, so that the peer
        that has the other use sums the same elements.
        """
        shares = self._shares[stage]
        own = shares.all[self._dp_rank]
        return [own.view(total, *run) for run in shares.tied_runs(self._dp_rank, unit)]

    # ---- weights

    @torch.no_grad()
    def gather(self, unit: int, module: nn.Module, kept: Collection[int], only: Collection[str] | None = None) -> int:
        """Collective: get what other replicas own of a unit's weights. Returns the bytes received.

        kept: pieces whose state is held here; what they have is not written. only: the weights' names; None: all of them.
        """
        table, weights = self._context.pieces, weights_of(module)
        ends, places = list[int](), list[list[tuple[int, torch.Tensor, int]]]()
        for dp_rank in range(self._shape.dp_degree):
            end, placed = 0, list[tuple[int, torch.Tensor, int]]()
            for piece in pieces_of_replica(table, unit, dp_rank, self._shape):
                for part in parts_of(table, piece, module):
                    if only is None or part.name in only:
                        tensor = weights[part.name].view(-1)[part.low : part.high].view(torch.uint8)
                        placed.append((piece, tensor, end))
                        end += tensor.numel() + -tensor.numel() % ALIGNMENT_BYTES
            ends.append(end)
            places.append(placed)
        room = max(ends)
        if not room:
            return 0
        device = next(iter(weights.values())).device
        mine = torch.empty(room, dtype=torch.uint8, device=device)
        for _, tensor, place in places[self._dp_rank]:
            mine[place : place + tensor.numel()].copy_(tensor)
        gathered = torch.empty(len(ends) * room, dtype=torch.uint8, device=device)
        self._replicas.all_gather(gathered, mine)
        for dp_rank, placed in enumerate(places):
            for piece, tensor, place in placed if dp_rank != self._dp_rank else ():
                if piece not in kept:
                    start = dp_rank * room + place
                    tensor.copy_(gathered[start : start + tensor.numel()])
        return (len(ends) - 1) * room
