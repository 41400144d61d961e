"""The self-test finds a sick GPU's faults: another result of the same computation, a memory word that does not stay."""

import pytest
import torch

from frostline_trainer.process import self_test
from frostline_trainer.process.probe import run_probe
from frostline_trainer.process.self_test import PATTERNS, SickDevice, check_memory, compare_probes, count_wrong, write_pattern
from frostline_trainer.process.sick_device import is_device_error
from tests.exact_cases import Case, build_case

CPU = torch.device("cpu")


def test_a_sound_device_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "PIECE_BYTES", 1 << 16)
    check_memory(CPU, 5 << 15)
    context = build_case(Case("vit"))
    digests = [run_probe(context)[0] for _ in range(2)]
    compare_probes(*digests)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bit", [0, 1, 31, 62])
def test_a_bit_that_does_not_stay_is_found(pattern: int, bit: int) -> None:
    pieces = [torch.empty(1000, dtype=torch.int64) for _ in range(3)]
    write_pattern(pieces, pattern)
    assert count_wrong(pieces, pattern) == 0
    pieces[1][123] ^= 1 << bit
    assert count_wrong(pieces, pattern) == 1


def test_two_addresses_of_one_memory_are_found() -> None:
    piece = torch.empty(10, dtype=torch.int64)
    write_pattern([piece, piece], PATTERNS[0])
    assert count_wrong([piece, piece], PATTERNS[0]) == 10


def test_both_patterns_together_ask_every_bit_for_both_values() -> None:
    one, other = (pattern & (2**64 - 1) for pattern in PATTERNS)
    assert one ^ other == 2**64 - 1


def test_two_results_of_one_computation_are_a_failed_device() -> None:
    with pytest.raises(SickDevice, match="gave aaaa, and then bbbb: the device computes wrong") as found:
        compare_probes("aaaa", "bbbb")
    assert is_device_error(found.value)
