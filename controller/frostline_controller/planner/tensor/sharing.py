"""Ways of sharing out tensors and state beside pipeline and replicas."""

from dataclasses import dataclass
from typing import Literal

from frostline_contract.sharding import NONE, STEP, USE
from frostline_controller.planner.tensor.traffic import Axes

ShardWay = Literal["none", "step", "use"]
SHARD_WAYS: tuple[ShardWay, ...] = (NONE, STEP, USE)
"""Ways of sharing out a stage's state over its replicas (`frostline_contract.sharding`), leanest last."""


@dataclass(frozen=True)
class Sharing:
    """One way of sharing.

    Attributes:
        columns: workers over which the inner widths of a block are cut (Megatron-LM's tensor parallelism).
        depth: workers over which the hidden width of a block's matrices is cut as well.
        shard: the way of sharing out the replicas' state, one of SHARD_WAYS.
        rows_split: between products each column has a part of a micro-batch's samples (sequence parallelism: of the tokens).
    """

    columns: int = 1
    depth: int = 1
    shard: ShardWay = NONE
    rows_split: bool = False

    @property
    def group_size(self) -> int:
        """Number of workers that share one stage of one replica."""
        return self.axes.size

    @property
    def axes(self) -> Axes:
        """The axes of one replica."""
        return Axes(self.columns, self.depth)

    @property
    def words(self) -> str:
        """The way in words: "tp 4, shard use"; "tp 4 x 2" with a depth; "tp 4 of split rows"; empty without any sharing."""
        tensors = f"tp {self.axes.words}" + " of split rows" * self.rows_split
        return ", ".join([tensors] * (self.group_size > 1) + [f"shard {self.shard}"] * (self.shard != NONE))
