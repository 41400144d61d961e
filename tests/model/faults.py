"""Moves of the environment: a process ends, the network parts and heals."""

from collections.abc import Iterator

from tests.model.universe import Move, Universe
from tests.model.world import ENDED, Worker, World, worker_name


def fault_moves(universe: Universe, world: World) -> Iterator[Move]:
    left = world.left
    if left.crashes:
        fewer = world._replace(left=left._replace(crashes=left.crashes - 1))
        for index, worker in universe.all_workers(world):
            if worker.mode != ENDED:
                gone = Worker(ENDED, pieces=(-1,) * universe.configuration.num_pieces)
                yield f"{worker_name(index)} ends", universe.put(fewer, index, gone), True
    if left.cuts and not any(world.side):
        fewer = world._replace(left=left._replace(cuts=left.cuts - 1))
        count = universe.configuration.num_workers
        for mask in range(1, 2**count):
            side = tuple(mask >> index & 1 for index in range(count))
            apart = ", ".join(worker_name(index) for index in range(count) if side[index])
            yield f"{apart} cut off from the controller and the others", fewer._replace(side=side), True
    if left.heals and any(world.side):
        healed = world._replace(side=(0,) * len(world.side), left=left._replace(heals=left.heals - 1))
        yield "the partition heals", healed, True
