"""How many NCCL communicators a member has, and the most memory that they are planned to take of its device.

NCCL gives each of a communicator's thread blocks buffers of its own, outside torch's allocator; so a bound on thread blocks
bounds the memory. Others saw 544 MB for a group of two and 688 MB for a larger one on A100 (NVIDIA/nccl issue 964).
"""

PAIR_CTAS = 4
"""Thread blocks of a channel's kernels at most: they wait beside computations."""
GROUP_CTAS = 16
"""Of a collective's."""
LEVELS = 2
"""Groups over which replicas sum where several share each machine: four of them at least."""
CTA_BYTES = 24 << 20
"""What is planned for one thread block: above what was seen, and not yet measured by this project."""
GENERATIONS = 2
"""At a switch the next generation's communicators are connected before those of the one before are closed."""


def channels_of(pp_degree: int) -> int:
    """Communicators of a member along the pipeline: one for each direction of each neighbour on the ring."""
    return 2 * min(pp_degree - 1, 2)


def most_communicator_bytes(workers: int, tp_degree: int = 1) -> int:
    """The most that a member's communicators are planned to take in any shape of so many workers, those of two generations.

    tp_degree: of the shape that is asked for; above 1 its workers have a group more, in which they sum over tiles.
    """
    groups = (0 if workers < 2 else LEVELS if workers >= 4 else 1) + (tp_degree > 1)
    blocks = channels_of(workers) * PAIR_CTAS + groups * GROUP_CTAS
    return GENERATIONS * blocks * CTA_BYTES
