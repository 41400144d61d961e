"""The small worlds of the search: their workers, their first shape, and the faults that may happen."""

from dataclasses import dataclass

from tests.model.world import Left


@dataclass(frozen=True)
class Shape:
    """pp_degree stages and dp_degree replicas of the named workers, in global rank order; units cut evenly over the stages.

    shard: whether replicas share the state of their stages out, also in the shapes that follow a failure.
    """

    workers: tuple[int, ...]
    pp_degree: int = 1
    shard: str = "none"

    @property
    def dp_degree(self) -> int:
        return len(self.workers) // self.pp_degree


@dataclass(frozen=True)
class Configuration:
    """One small world: num_workers processes, each in a failure domain of its own.

    Attributes:
        first: the shape at the start; the other workers are spares.
        switch: the shape of the planned reshape, where there is one.
        window: steps whose votes may switch.
        prefers: "stages" or "replicas", for shapes after a failure.
        steps: the number of steps after which the run ends.
        left: the faults that may happen. After a cut the controller is on side 0; every split is tried.
        state_ranges: pieces of each unit, each held and reported. Where there are several, they arrive one by one, so that a
            worker may have a part of a unit.
    """

    name: str
    text: str
    num_workers: int
    num_units: int
    first: Shape
    steps: int
    left: Left
    switch: Shape | None = None
    window: tuple[int, int] = (1, 1)
    prefers: str = "stages"
    quick: bool = False
    state_ranges: int = 1

    @property
    def num_pieces(self) -> int:
        return self.num_units * self.state_ranges


PAIR = Shape((0, 1), pp_degree=2)
REPLICAS = Shape((0, 1))
SHARES = Shape((0, 1), shard="step")

CONFIGURATIONS = {
    one.name: one
    for one in (
        Configuration(
            "pair", "two stages, each the other's buddy, and a spare; two crashes, a hang that is not one",
            3, 2, PAIR, 2, Left(crashes=2, hangs=1),
        ),
        Configuration(
            "tear", "two stages and a spare; a crash and an update that fails half way",
            3, 2, PAIR, 2, Left(crashes=1, tears=1, hangs=1),
        ),
        Configuration(
            "partition", "two replicas and a spare; a crash, and a partition that heals",
            3, 1, REPLICAS, 2, Left(crashes=1, cuts=1, heals=1), prefers="replicas",
        ),
        Configuration(
            "partition-stages", "two stages and a spare; a crash, and a partition that heals",
            3, 2, PAIR, 2, Left(crashes=1, cuts=1, heals=1),
        ),
        Configuration(
            "interrupted", "three stages, buddies in a ring; two crashes, so that a recovery is itself interrupted",
            3, 3, Shape((0, 1, 2), pp_degree=3), 2, Left(crashes=2),
        ),
        Configuration(
            "reshape", "a planned switch: one joins, one leaves; a crash and a hang that is not one",
            3, 2, PAIR, 2, Left(crashes=1, hangs=1, switches=1), switch=Shape((0, 2), pp_degree=2), window=(1, 1),
        ),
        Configuration(
            "reshape-replicas", "a planned switch of replicas: one joins, one leaves; a crash and a hang that is not one",
            3, 1, REPLICAS, 2, Left(crashes=1, hangs=1, switches=1), switch=Shape((0, 2)), window=(1, 1), prefers="replicas",
        ),
        Configuration(
            "reshape-wide", "four workers: two join, two leave; two crashes",
            4, 2, PAIR, 2, Left(crashes=2, switches=1), switch=Shape((2, 3), pp_degree=2), window=(1, 1),
        ),
        Configuration(
            "withdrawn", "a planned switch that the controller takes back while members vote; a crash",
            3, 2, PAIR, 3, Left(crashes=1, switches=1, withdrawals=1), switch=Shape((0, 2), pp_degree=2), window=(1, 2),
        ),
        Configuration(
            "takeover", "two stages and a spare; a crash, and another controller takes over, at any point",
            3, 2, PAIR, 2, Left(crashes=1, takeovers=1, hangs=1),
        ),
        Configuration(
            "takeover-reshape", "a planned switch; a crash, and another controller takes over, at any point",
            3, 2, PAIR, 2, Left(crashes=1, takeovers=1, switches=1), switch=Shape((0, 2), pp_degree=2), window=(1, 1),
        ),
        Configuration(
            "quick", "two stages, each the other's buddy, and a spare; a crash",
            3, 2, PAIR, 2, Left(crashes=1), quick=True,
        ),
        Configuration(
            "pieces", "two stages of two pieces each, and a spare; two crashes and an update that fails half way",
            3, 2, PAIR, 2, Left(crashes=2, tears=1), state_ranges=2,
        ),
        Configuration(
            "pieces-reshape", "a planned switch of replicas, two pieces of one unit: one joins, one leaves; a crash",
            3, 1, REPLICAS, 2, Left(crashes=1, switches=1), switch=Shape((0, 2)), window=(1, 1), prefers="replicas",
            state_ranges=2,
        ),
        Configuration(
            "shares", "two replicas, each the owner of one of two pieces and the other's buddy, and a spare; two crashes and an "
            "update that fails half way",
            3, 1, SHARES, 2, Left(crashes=2, tears=1), prefers="replicas", state_ranges=2,
        ),
        Configuration(
            "shares-reshape", "a planned switch from whole replicas to owners of a piece each, one of whom joins; a crash",
            3, 1, REPLICAS, 2, Left(crashes=1, switches=1), switch=Shape((0, 2), shard="step"), window=(1, 1), prefers="replicas",
            state_ranges=2,
        ),
        Configuration(
            "quick-shares", "two owners of a piece each, and a spare; a crash before or after the vote, an update half done",
            3, 1, SHARES, 2, Left(crashes=1, tears=1), prefers="replicas", quick=True, state_ranges=2,
        ),
        Configuration(
            "quick-pieces", "two stages of two pieces each, and a spare; a crash, and an update that fails half way",
            3, 2, PAIR, 2, Left(crashes=1, tears=1), quick=True, state_ranges=2,
        ),
        Configuration(
            "quick-reshape", "a planned switch: one joins, one leaves; a crash",
            3, 2, PAIR, 2, Left(crashes=1, switches=1), switch=Shape((0, 2), pp_degree=2), window=(1, 1), quick=True,
        ),
    )
}  # fmt: skip
