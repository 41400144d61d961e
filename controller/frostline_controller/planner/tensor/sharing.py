"""How tensors and state are shared out beside pipeline and replicas, and which of it runs: the one home of that switch."""

from dataclasses import dataclass
from typing import Literal

from frostline_contract.sharding import NONE, STEP
from frostline_controller.planner.tensor.traffic import Axes

USE = "use"
ShardWay = Literal["none", "step", "use"]
SHARD_WAYS: tuple[ShardWay, ...] = (NONE, STEP, USE)
"""Of the state of a stage over its replicas, leanest last: `frostline_contract.sharding`, and weights gathered at each use
(ZeRO-3)."""


@dataclass(frozen=True)
class Sharing:
    """What one shape shares out.

    Attributes:
        columns: workers over which the inner widths of a block are cut (Megatron-LM's tensor parallelism).
        depth: workers over which its hidden width is cut as well; then rows are split too.
        rows_split: between products each column has its part of a micro-batch's samples (sequence parallelism has it of the
        tokens). shard: of the replicas' state, of SHARD_WAYS.
    """

    columns: int = 1
    depth: int = 1
    shard: ShardWay = NONE
    rows_split: bool = False

    @property
    def group_size(self) -> int:
        """Workers that share one stage of one replica."""
        return self.axes.size

    @property
    def axes(self) -> Axes:
        """The axes of one replica."""
        return Axes(self.columns, self.depth)

    @property
    def has_whole_rows(self) -> bool:
        """Whether what lies between products is whole on each member of a group."""
        return self.depth == 1 and not self.rows_split

    @property
    def words(self) -> str:
        """For people: "tp 4, shard use"; "tp 4 x 2" with a depth, "tp 4 of split rows"; empty for what shares out nothing."""
        tensors = f"tp {self.columns}" + (f" x {self.depth}" if self.depth > 1 else " of split rows" * self.rows_split)
        return ", ".join([tensors] * (self.group_size > 1) + [f"shard {self.shard}"] * (self.shard != NONE))

    def not_built(self) -> str:
        """Why no run can be given it; empty where a run can. What is refused here is advice and is in no plan that workers
        get.
        """
        if self.depth > 1:
            return "no engine cuts the hidden width"
        if self.rows_split:
            return "rows are whole on each member of a group"
        if self.columns > 1:
            return "no plan cuts state by tile: members of a group hold their stage whole"
        if self.shard == USE:
            return "weights are gathered once a step, not at each use"
        return ""
