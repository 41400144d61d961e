"""What a member does as one of a group that shares its stages tile by tile (docs/protocols.md 1.25); alone, next to nothing."""

from collections.abc import Iterable

from torch import nn

from frostline_contract.shape import ParallelShape, tiles_problem
from frostline_trainer.generations.groups import Groups
from frostline_trainer.prefix.dealing import DealtPrefix, all_have
from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.sharded.group import tiles_in
from frostline_trainer.sharded.install import share_tiles
from frostline_trainer.sharded.tiles import Tiles
from frostline_trainer.step.context import RunContext

Prefix = PrefixReader | DealtPrefix


class InGroup:
    """One member's, in one generation.

    Args:
        context: the run's.
        shape: of the plan.
        index: own global rank.
        groups: of the generation.

    Attributes:
        speaks: whether this member tells what all of its group know alike: losses, scores, counts.
    """

    def __init__(self, context: RunContext, shape: ParallelShape, index: int, groups: Groups) -> None:
        inner = context.job.training.tensor_tiles.inner
        assert not (problem := tiles_problem(shape, inner)), problem
        self._context, self._group, self.speaks = context, groups.tensor, shape.tp_rank(index) == 0
        self._whole = Tiles(inner) if inner > 1 else None
        self._own = tiles_in(self._group, inner) if self._group is not None else self._whole
        self._is_dealt: bool | None = None

    def share_tiles(self, learning: Iterable[nn.Module]) -> None:
        """Let own units that learn compute this member's tiles from now on, and all others all tiles: some members of a group may
        read from the cache what others must compute. Where nothing is in tiles, nothing is done.
        """
        if self._own is None or self._whole is None:
            return
        shared = {id(unit) for unit in learning}
        for unit in self._context.cut.units:
            share_tiles(unit, self._own if id(unit) in shared else self._whole)

    def begin(self) -> None:
        """A freeze point begins: nothing is agreed of its prefix."""
        self._is_dealt = None

    def dealt(self, prefix: Prefix | None, micro_batches: int) -> Prefix | None:
        """What a step reads the frozen prefix by. Collective on the first call since `begin`, where anything is frozen.

        Args:
            prefix: this member's reader; None where it reads no cache.
            micro_batches: of the replica. A group whose members all have a reader deals them out, where each gets one at least.
        """
        if self._is_dealt is None:
            group = self._group
            self._is_dealt = group is not None and micro_batches >= group.size and all_have(group, prefix, self._context.device)
            if self._is_dealt:
                assert group is not None and isinstance(prefix, PrefixReader)
                return DealtPrefix(prefix, group, self._context.micro_batch_size)
        return prefix

    @property
    def counts_reads(self) -> bool:
        """Whether what this member has read from the cache counts: in a group that does not deal its reads out, one's do."""
        return self.speaks or bool(self._is_dealt)
