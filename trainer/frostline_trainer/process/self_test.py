"""What a GPU must pass before its worker joins: the probe gives the same bits twice, and memory keeps what is written into it.

A second or less, against a run that fails later with somebody else's name on it. A GPU that does not pass has failed, as one
that fails in a step: the process ends with that code, and the second time the GPU is in quarantine.
"""

import logging
from collections.abc import Callable, Iterable, Iterator

import torch

log = logging.getLogger(__name__)

PATTERNS = (0x5555555555555555, -0x5555555555555556)
"""Every bit once 0 and once 1, its neighbours the other."""
PIECE_BYTES = 256 << 20
MEMORY_SHARE, MEMORY_BYTES_MAX = 0.5, 16 << 30
"""Of the memory that is free at start, so much is written and read, at a bandwidth of hundreds of GB/s."""


class SickDevice(RuntimeError):
    """The device does not do what it is asked."""


def examine_gpu(device: torch.device, probe: Callable[[], str], digest: str) -> None:
    """Raise SickDevice where the GPU fails. digest: what a first call of `probe` gave."""
    compare_probes(digest, probe())
    free, _ = torch.cuda.mem_get_info(device)
    try:
        check_memory(device, int(min(free * MEMORY_SHARE, MEMORY_BYTES_MAX)))
    except torch.OutOfMemoryError as taken:
        log.info("the GPU's memory is not tested, others use it: %s", taken)
    finally:
        torch.cuda.empty_cache()


def compare_probes(first: str, second: str) -> None:
    """Raise SickDevice where one computation gave two results."""
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
    """All pieces before any is read: an address that leads to another one's memory shows."""
    for piece, value in _values(pieces, pattern):
        piece.fill_(value)


def count_wrong(pieces: Iterable[torch.Tensor], pattern: int) -> int:
    """Words that are not what `write_pattern` wrote."""
    return sum(int((piece != value).sum()) for piece, value in _values(pieces, pattern))


def _values(pieces: Iterable[torch.Tensor], pattern: int) -> Iterator[tuple[torch.Tensor, int]]:
    return ((piece, pattern ^ number) for number, piece in enumerate(pieces))
