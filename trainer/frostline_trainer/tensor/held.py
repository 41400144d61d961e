"""Equal parts of a run, of which one process computes some: the row tiles of samples, the hidden tiles of a width."""

from dataclasses import dataclass
from typing import Generic, Self, TypeVar

Exchange = TypeVar("Exchange")
"""The exchanges with the processes that compute the other parts."""


@dataclass(frozen=True)
class HeldParts(Generic[Exchange]):
    """The parts that one process computes.

    Args:
        total: parts of the run, a power of two.
        first: the first one that this process computes.
        held: how many it computes, consecutively; a power of two.
        exchange: with the members of a group that compute the others; None if this process computes all.
    """

    total: int = 1
    first: int = 0
    held: int = 0
    exchange: Exchange | None = None

    def __post_init__(self) -> None:
        if not self.held:
            object.__setattr__(self, "held", self.total)
        assert self.exchange is not None or self.held == self.total, "some parts are held, and nobody has the others"

    @property
    def numbers(self) -> range:
        """The held parts by their numbers in the run."""
        return range(self.first, self.first + self.held)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self  # a copied unit stays in the same group
