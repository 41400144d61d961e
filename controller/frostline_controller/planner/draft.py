"""The draft of a plan: the data from which every kind of plan is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frostline_contract.pieces import Pieces
from frostline_contract.plan import GenerationId, Placement
from frostline_controller.members.membership import Worker


@dataclass(frozen=True, kw_only=True)
class PlanDraft:
    """A chosen placement, and the numerics in force where it starts.

    Attributes:
        generation: the plan's own, never used before.
        lineage: of the first step.
        placement: who computes what.
        first_worker: the worker of global rank 0; process groups are formed over its store.
        freeze_point: in force at the first step.
        decision_number: of the decision that set the freeze point; 0: none was taken.
        domains: failure domain by worker id, also of workers outside the placement; empty: no buddies.
        reason: for people.
        state_ranges: ranges of each unit's state, as the run's job says.
        state_tiles: tiles of each unit that have pieces of their own.
        hidden_tiles: of them at each inner tile.
    """

    generation: GenerationId
    lineage: int
    placement: Placement
    first_worker: Worker
    freeze_point: int = 0
    decision_number: int = 0
    domains: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    state_ranges: int = 1
    state_tiles: int = 1
    hidden_tiles: int = 1

    @property
    def pieces(self) -> Pieces:
        """The table of the run's pieces."""
        return Pieces.cut(self.placement.stage_bounds[-1], self.state_ranges, self.state_tiles, self.hidden_tiles)

    def fields(self) -> dict[str, Any]:
        """Return the fields of `Plan` that the draft determines."""
        return {
            "generation": self.generation,
            "lineage": self.lineage,
            "placement": self.placement,
            "freeze_point": self.freeze_point,
            "decision_number": self.decision_number,
            "store_host": self.first_worker.store_host,
            "store_port": self.first_worker.store_port,
            "reason": self.reason,
            "state_ranges": self.state_ranges,
            "state_tiles": self.state_tiles,
            "hidden_tiles": self.hidden_tiles,
        }
