"""Which members of a world share a machine."""

import hashlib

import torch

from frostline_trainer.transport.collectives import Group


def machines_of(world: Group, own: str) -> list[int]:
    """A number for each member's machine, by global rank. Collective. own: what this member's machine calls itself."""
    numbers = torch.zeros(world.size, dtype=torch.float64)
    numbers[world.index] = int.from_bytes(hashlib.sha256(own.encode()).digest()[:6])
    world.all_reduce_sum(numbers)
    return [int(number) for number in numbers]
