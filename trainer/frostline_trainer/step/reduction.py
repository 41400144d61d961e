"""Reduces the gradients of all stages of one member over the replicas (docs/protocols.md 1.2, 2.2).

If replicas share no state out, each member gets the whole gradient of what it computes (all-reduce). If the state is sharded over
the replicas (`step.sharing`), each gets the gradient of its own pieces (reduce-scatter). The callers do not depend on which.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from frostline_contract.operations import Kind
from frostline_contract.plan import Plan
from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.exchange import reduce_gradients
from frostline_trainer.step.gathering import Gathering
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.optimizer import PartGradients
from frostline_trainer.step.parts import Part, flat, parts_of
from frostline_trainer.step.programs import Program
from frostline_trainer.step.sharing import Sharing
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.tied import learning, sum_uses, tie_learns
from frostline_trainer.step.tile_state import gather_tiles
from frostline_trainer.tensor.messages import own_line
from frostline_trainer.tensor.state import is_cut
from frostline_trainer.transport.collectives import Group
from frostline_trainer.transport.transport import Transport


@dataclass(frozen=True)
class Summed:
    """A stage's reduced gradient, as a buddy gets it.

    Args:
        of_units: consecutive units -> their part of the stage's flat gradient, a view.
        of_part: (piece, part) -> the part's gradient, flat.
    """

    of_units: Callable[[tuple[int, ...]], torch.Tensor]
    of_part: Callable[[int, Part], torch.Tensor]


class Reduction:
    """One member's reduction of gradients, at one freeze point.

    Args:
        context, plan, groups: of the generation.
        transport: the generation's, between stages; the uses of a tied matrix cross on it.
        index: own global rank.
        stages, buffers: own stages, and the gradient buffers of those that learn.
        program: the member's program, whose exchange part is carried out.
        freeze_point: the first unit that learns.
    """

    def __init__(self, context: RunContext, plan: Plan, groups: Groups, transport: Transport, index: int,
                 stages: Mapping[int, Stage], buffers: Mapping[int, GradientBuffers], program: Program,
                 freeze_point: int) -> None:  # fmt: skip
        self._context, self._plan, self._groups, self._transport = context, plan, groups, transport
        self._stages, self._buffers, self._program, self._freeze_point = stages, buffers, program, freeze_point
        self._shape, self._worker = plan.placement.shape, plan.placement.workers[index]
        self._pp_rank, self._num_leaves = self._shape.pp_rank(index), context.job.training.reduction_leaves
        self._spoken = [piece for piece in plan.speaks_for(self._worker) if context.pieces.unit_of(piece) >= freeze_point]
        self._cut: dict[int, list[tuple[Part, nn.Parameter]]] = {}
        self._learning: dict[int, list[tuple[str, nn.Parameter]]] = {}
        self._divides_tiles = plan.placement.divides_tiles
        self.sharing = self._make_sharing(index)

    def _make_sharing(self, index: int) -> Sharing | None:
        """The sharing of state over replicas; None if replicas do not share it out."""
        if not self._plan.placement.is_sharded:
            return None
        replicas = self._groups.replicas
        assert isinstance(replicas, Group), "shares are exchanged in one level"
        sharing = Sharing(self._context, self._plan, index, replicas)
        for number, buffers in self._buffers.items():
            sharing.share_out(number, buffers, self._freeze_point)
        return sharing

    # ---- the sums

    def exchange(self, complete: Callable[[int, Summed], None]) -> dict[int, torch.Tensor]:
        """Reduce the gradients of all stages; returns them by stage.

        complete: called with a stage and its gradient, as soon as the stage is reduced.
        """
        totals, tied = dict[int, torch.Tensor](), self._tied_stages
        for number in [one.stage for one in self._program.exchange if one.kind is Kind.REDUCE]:
            if not self._buffers[number].parameters:
                continue
            totals[number] = self._reduce(number)
            if number not in tied:
                complete(number, self._summed(number, totals[number]))
        self._exchange_tied(totals)
        for number in tied & totals.keys():
            complete(number, self._summed(number, totals[number]))
        return totals

    def _reduce(self, number: int) -> torch.Tensor:
        buffers = self._buffers[number]
        if self.sharing is not None:
            total = self.sharing.reduce(number, buffers, self._num_leaves)
            buffers.unbind()
            return total
        bounds = self._plan.placement.leaf_bounds
        total = reduce_gradients(buffers, self._groups.replicas, bounds, self._num_leaves, self._context.exact)
        buffers.adopt(total)
        return total

    def _summed(self, number: int, total: torch.Tensor) -> Summed:
        sharing = self.sharing
        if sharing is not None:
            given = sharing.gradients(number, total)
            return Summed(lambda units: sharing.payload(number, total, units), lambda piece, part: given[piece, part.name])
        return Summed(lambda units: total[self._buffers[number].span(units)], self._gradient_of)

    def _gradient_of(self, piece: int, part: Part) -> torch.Tensor:
        module = self._context.cut.units[self._context.pieces.unit_of(piece)]
        gradient = module.get_parameter(part.name).grad
        assert gradient is not None, f"{part.name} of piece {piece} has no gradient"
        return flat(part.of(module, gradient))

    # ---- tied embeddings

    @property
    def _tied_stages(self) -> set[int]:
        """The stages with a use of a tied matrix: their gradients are complete only after the two uses were summed."""
        return {0, self._shape.num_stages - 1} if tie_learns(self._context, self._freeze_point) else set()

    def _exchange_tied(self, totals: Mapping[int, torch.Tensor]) -> None:
        """Add the gradients of the two uses of a tied matrix, each reduced over its own tree; both copies get the sum."""
        tied = self._context.cut.tied
        uses = sorted(self._tied_stages & self._stages.keys())
        if tied is None or not uses:
            return
        last = self._shape.num_stages - 1
        found = [self._uses(0, 0, totals)] if 0 in uses else []
        found += [self._uses(last, self._context.num_units - 1, totals)] if last in uses else []
        mine = [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in found if parts]
        if not mine:
            return
        peer = next((one.peer for one in self._program.exchange if one.kind is Kind.SEND), self._pp_rank)
        sum_uses(mine, own_line(self._transport) if self._is_tie_divided else self._transport, peer)
        for parts, whole in zip(found, mine, strict=True):
            for part, summed in zip(parts, whole.split([part.numel() for part in parts]), strict=True) if len(parts) > 1 else ():
                part.copy_(summed)

    @property
    def _is_tie_divided(self) -> bool:
        """Whether the members of a group have other parts of a tied matrix each: its tiles, where tiles cut the vocabulary."""
        tied = self._context.cut.tied
        return self._divides_tiles and tied is not None and is_cut(self._context.cut.units[0], tied[0])

    def _uses(self, number: int, unit: int, totals: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """Views of the tied matrix's gradient in a unit that this member has reduced: all of it, or runs of its share."""
        tied = self._context.cut.tied
        assert tied is not None
        if self.sharing is not None:
            return self.sharing.tied(number, unit, totals[number])
        gradient = self._context.cut.units[unit].get_parameter(tied[0] if unit == 0 else tied[1]).grad
        return [gradient] if gradient is not None else []

    # ---- what the vote and the update need

    def named(self, totals: Mapping[int, torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
        """(piece, its gradient of one parameter) of the pieces whose norms this member reports; a tied matrix counts once, in
        unit 0."""
        table, tied = self._context.pieces, self._context.cut.tied if self._tied_stages else None
        given = self.gradients(totals)
        if given is None:
            found = [(piece, name, part) for piece in self._spoken for name, part in self._parts(piece)]
        else:
            spoken = frozenset(self._spoken)
            found = [(piece, name, part) for (piece, name), part in given.items() if piece in spoken]
        head = table.of_unit(self._context.num_units - 1)
        return [(piece, part) for piece, name, part in found if not (tied and piece in head and name == tied[1])]

    def _parts(self, piece: int) -> Iterable[tuple[str, torch.Tensor]]:
        """(parameter name, gradient of the piece's part of it), of parameters that learn."""
        table = self._context.pieces
        unit = table.unit_of(piece)
        if unit not in self._learning:  # walking a unit's modules takes longer than its gradient norms
            self._learning[unit] = learning(self._context, self._freeze_point, unit)
        if table.per_unit == 1:
            return [(name, parameter.grad) for name, parameter in self._learning[unit] if parameter.grad is not None]
        module = self._context.cut.units[unit]
        if piece not in self._cut:
            parameters = dict(self._learning[unit])
            parts = parts_of(table, piece, module)
            self._cut[piece] = [(part, parameters[part.name]) for part in parts if part.name in parameters]
        known = [(part, parameter.grad) for part, parameter in self._cut[piece] if parameter.grad is not None]
        return [(part.name, flat(part.of(module, gradient))) for part, gradient in known]

    def gradients(self, totals: Mapping[int, torch.Tensor]) -> PartGradients | None:
        """The gradients from which the optimizer updates this member's pieces; None: the parameters' `.grad`."""
        if self.sharing is None:
            return None
        found: dict[tuple[int, str], torch.Tensor] = {}
        for number, total in totals.items():
            found.update(self.sharing.gradients(number, total))
        return found

    def scale(self, totals: Mapping[int, torch.Tensor], factor: float) -> None:
        """Multiply all gradients by the clipping factor."""
        for number, total in totals.items():
            (total if self.sharing is None else self.sharing.packed(number, total)).mul_(factor)

    # ---- other replicas' weights

    def outdated(self) -> None:
        """Mark the weights that other replicas own as stale, after a commit."""
        if self.sharing is not None:
            self.sharing.stale = True

    def complete(self, units: Iterable[tuple[int, nn.Module]], everything: bool = False) -> None:
        """Collect the newest weights that others own and this member computes with. Collective.

        everything: collect all weights; otherwise only those that steps change, and only if they are stale. Units that are
        gathered at each use are left out.
        """
        self._complete_ranges(units, everything)
        if everything and self._divides_tiles:
            self._complete_frozen(units)

    def _complete_ranges(self, units: Iterable[tuple[int, nn.Module]], everything: bool) -> None:
        """Collect what other replicas own of the tiles that this member computes, and of what no tile cuts. Collective."""
        sharing, gathers = self.sharing, self._plan.placement.gathers_at_use
        if sharing is None or not (sharing.stale or everything):
            return
        kept = frozenset(self._plan.needs(self._worker))
        for unit, module in units:
            names = None if everything else {name for name, _ in learning(self._context, self._freeze_point, unit)}
            if (everything or unit >= self._freeze_point) and not (gathers and unit >= self._freeze_point):
                sharing.gather(unit, module, kept, names)
        sharing.stale = False

    def _complete_frozen(self, units: Iterable[tuple[int, nn.Module]]) -> None:
        """Collect the tiles that other members of the group own of frozen units, which each member computes whole. Collective."""
        group, kept = self._groups.tensor, frozenset(self._plan.needs(self._worker))
        assert group is not None
        for unit, module in units:
            if unit < self._freeze_point:
                gather_tiles(group, self._plan.placement.shape, module, self._context.pieces, unit, kept)

    def gathering(self, units: Iterable[tuple[int, nn.Module]]) -> Gathering | None:
        """The gathers of these units, those that learn; None if they are not gathered at each use."""
        if self.sharing is None or not self._plan.placement.gathers_at_use:
            return None
        return Gathering(self.sharing, dict(units))
