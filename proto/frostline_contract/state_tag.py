"""What a generation, a vote that passed and a state of a piece are called, on every worker alike."""

from frostline_contract.record import Frozen


class GenerationId(Frozen):
    """Monotonic id of one agreed membership, shape and freeze point: compared by incarnation, then counter."""

    incarnation: int
    counter: int

    def __eq__(self, other: object) -> bool:
        # Compared for each worker in every round of the controller: pydantic's own comparison takes ten times as long.
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
    """The all-reduced slots of the vote of `step` in `generation`: from them whoever commits late computes the same update."""

    lineage: int
    step: int
    generation: GenerationId
    slots: tuple[float, ...]


class StateTag(Frozen):
    """Names one state of a piece: (lineage, last committed step, generation whose vote committed it; docs/protocols.md 4.4).

    For a state that was restored or drawn afresh, the generation of the plan that did so.
    """

    lineage: int
    step: int
    generation: GenerationId
