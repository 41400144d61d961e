"""The self test of a GPU before its worker joins: the probe must give the same bits twice, and memory must keep its contents.

It takes a second or less, and spares the run a later failure that is hard to attribute. A GPU that does not pass counts like one
that fails in a step: the process ends with the same exit code, and the second time the GPU is quarantined.
"""

import logging
from collections.abc import Callable, Iterable, Iterator

import torch

log = logging.getLogger(__name__)

PATTERNS = (0x5555555555555555, -0x5555555555555556)
"""Patterns in which every bit is once 0 and once 1, with neighbours of the other value."""
PIECE_BYTES = 256 << 20
MEMORY_SHARE, MEMORY_BYTES_MAX = 0.5, 16 << 30
"""Share and limit of the free memory that is written and read, at hundreds of GB/s."""


class SickDevice(RuntimeError):
    """The device gives wrong results."""


def examine_gpu(device: torch.device, probe: Callable[[], str], digest: str) -> None:
    """Raise SickDevice if the GPU fails the test.

    Args:
        device: the GPU.
        probe: computes the probe's digest.
        digest: the result of a first call of `probe`.
    """
    compare_probes(digest, probe())
    free, _ = torch.cuda.mem_get_info(device)
    try:
        check_memory(device, int(min(free * MEMORY_SHARE, MEMORY_BYTES_MAX)))
    except torch.OutOfMemoryError as taken:
        log.info("the GPU's memory is not tested, others use it: %s", taken)
    finally:
        torch.cuda.empty_cache()


def compare_probes(first: str, second: str) -> None:
    """Raise SickDevice if two runs of one computation gave different digests."""
    if first != second:
        raise SickDevice(f"the start-up probe gave {first[:12]}, and then {second[:12]}: the device computes wrong")


def check_memory(device: torch.device, size: int) -> None:
    """Write and read `size` bytes of a device's memory. Raises SickDevice with the number of wrong words."""
    pieces = [torch.empty(min(PIECE_BYTES, size - start) // 8, dtype=torch.int64, device=device)
              for start in range(0, size, PIECE_BYTES)]  # fmt: skip
    for pattern in PATTERNS:
        write_pattern(pieces, pattern)
        if wrong := count_wrong(pieces, pattern):
            raise SickDevice(f"{wrong} of {size // 8} words of the device's memory do not keep what is written")


def write_pattern(pieces: Iterable[torch.Tensor], pattern: int) -> None:
    """Write the pattern to all pieces, before any is read, so that two addresses of the same memory are detected."""
    for piece, value in _values(pieces, pattern):
        piece.fill_(value)


def count_wrong(pieces: Iterable[torch.Tensor], pattern: int) -> int:
    """Number of words that differ from the written pattern."""
    return sum(int((piece != value).sum()) for piece, value in _values(pieces, pattern))


def _values(pieces: Iterable[torch.Tensor], pattern: int) -> Iterator[tuple[torch.Tensor, int]]:
    return ((piece, pattern ^ number) for number, piece in enumerate(pieces))
