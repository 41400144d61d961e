"""Identifiers of a generation, of a passed vote and of a piece's state, the same on all workers."""

from frostline_contract.lineage import Place
from frostline_contract.record import Frozen


class GenerationId(Frozen):
    """Monotonic id of a generation (one agreed membership, shape and freeze point), ordered by incarnation, then counter."""

    incarnation: int
    counter: int

    def __eq__(self, other: object) -> bool:
        # The controller compares ids for each worker in every round, and pydantic's own comparison takes ten times as long.
        if self is other:
            return True
        if not isinstance(other, GenerationId):
            return NotImplemented
        return self.incarnation == other.incarnation and self.counter == other.counter

    def __hash__(self) -> int:
        return hash((self.incarnation, self.counter))

    def __lt__(self, other: "GenerationId") -> bool:
        return (self.incarnation, self.counter) < (other.incarnation, other.counter)

    def __le__(self, other: "GenerationId") -> bool:
        return (self.incarnation, self.counter) <= (other.incarnation, other.counter)

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.counter}"


class SeenVote(Frozen):
    """The all-reduced slots of the vote of `step` in `generation`, from which a member that commits late computes the same
    update."""

    lineage: int
    step: int
    generation: GenerationId
    slots: tuple[float, ...]


class StateTag(Frozen):
    """The name of one state of a piece: lineage, last committed step, and generation of the vote (docs/protocols.md 4.4).

    A state that no vote has committed, since a plan restored or initialised it, has the generation of that plan.
    """

    lineage: int
    step: int
    generation: GenerationId

    @property
    def place(self) -> Place:
        """The last committed step in its lineage, by which states are ordered."""
        return Place(self.lineage, self.step)
