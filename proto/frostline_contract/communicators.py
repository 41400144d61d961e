"""The number of NCCL communicators of a member, and the device memory that is planned for them.

NCCL gives each thread block of a communicator its own buffers, outside torch's allocator; so a bound on thread blocks bounds the
memory. Others saw 544 MB for a group of two and 688 MB for a larger one on A100 (NVIDIA/nccl issue 964).
"""

PAIR_CTAS = 4
"""The most thread blocks of a pipeline channel's kernels. Few, since these kernels occupy them while computations run."""
GROUP_CTAS = 16
"""The most thread blocks of a collective's kernels."""
LEVELS = 2
"""Groups over which replicas sum gradients where several of them share each machine; that takes at least four workers."""
CTA_BYTES = 24 << 20
"""Bytes that are planned for one thread block: more than the figures above, and not yet measured by this project."""
GENERATIONS = 2
"""Generations whose communicators exist at once: at a switch the next one's are connected before the old ones are closed."""


def channels_of(pp_degree: int) -> int:
    """Communicators of a member along the pipeline: one for each direction of each neighbour on the ring."""
    return 2 * min(pp_degree - 1, 2)


def most_communicator_bytes(workers: int, tp_degree: int = 1, tp_depth: int = 1) -> int:
    """The most bytes planned for a member's communicators in any shape of `workers` workers, for two generations at once.

    Args:
        workers: number of workers.
        tp_degree: workers that share a stage in the wanted shape. Above 1 its workers have one more group, in which they sum over
            tiles.
        tp_depth: levels of these. With columns as well a worker has a group along each, and the whole.
    """
    tensor = 3 if tp_degree > tp_depth > 1 else int(tp_degree > 1)
    groups = (0 if workers < 2 else LEVELS if workers >= 4 else 1) + tensor
    blocks = channels_of(workers) * PAIR_CTAS + groups * GROUP_CTAS
    return GENERATIONS * blocks * CTA_BYTES
