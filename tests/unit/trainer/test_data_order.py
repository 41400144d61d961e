"""Which samples a step takes, and which variant of them."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.seeds import seed_of
from frostline_trainer.data.order import PADDING, BatchOrder

SIZES = st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 200), st.integers(1, 64))


@given(SIZES, st.integers(0, 5))
def test_an_epoch_visits_every_sample_once_and_pads_only_its_end(sizes: tuple[int, int, int], epoch: int) -> None:
    seed, num_samples, batch_size = sizes
    order = BatchOrder(seed, num_samples, batch_size)
    first = epoch * order.steps_per_epoch + 1
    batches = [order.indices(step) for step in range(first, first + order.steps_per_epoch)]
    flat = [index for batch in batches for index in batch]
    assert all(len(batch) == batch_size for batch in batches)
    assert sorted(flat[:num_samples]) == list(range(num_samples))
    assert flat[num_samples:] == [PADDING] * (order.steps_per_epoch * batch_size - num_samples)
    assert {order.place_of(step)[0] for step in range(first, first + order.steps_per_epoch)} == {epoch}


@given(SIZES, st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_a_batch_depends_on_seed_and_step_alone(sizes: tuple[int, int, int], steps: list[int]) -> None:
    asked_before = BatchOrder(*sizes)
    answers = [asked_before.indices(step) for step in steps]
    assert answers == [BatchOrder(*sizes).indices(step) for step in steps]


def test_epochs_and_seeds_differ() -> None:
    order = BatchOrder(1, 100, 100)
    assert order.indices(1) != order.indices(2)
    assert order.indices(1) != BatchOrder(2, 100, 100).indices(1)


def test_another_process_sees_the_same_batches() -> None:
    code = "from frostline_trainer.data.order import BatchOrder; print(BatchOrder(7, 50, 8).indices(9))"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == str(BatchOrder(7, 50, 8).indices(9))
    assert printed.strip() == "[44, 7, 24, 4, 3, 11, 49, 47]"


@pytest.mark.parametrize(("num_samples", "batch_size", "name"), [(0, 4, "num_samples is 0"), (4, 0, "batch_size is 0")])
def test_sizes_below_one_are_refused(num_samples: int, batch_size: int, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        BatchOrder(0, num_samples, batch_size)


@pytest.mark.parametrize("mode", ["off", "deterministic", "pointwise-feature"])
def test_modes_without_choice_have_one_variant(mode: str) -> None:
    assert BatchOrder(0, 10, 4).variants(3, [1, 2, -1], mode, 4) == [0, 0, 0]


def test_k_variants_are_chosen_anew_each_step_by_sample() -> None:
    order = BatchOrder(5, 1000, 10)
    chosen = {step: order.variants(step, [3, 4, -1], "k-variants", 4) for step in range(1, 201)}
    assert chosen[9] == [seed_of("variant", 5, 9, 3) % 4, seed_of("variant", 5, 9, 4) % 4, 0]
    spread = Counter(variants[0] for variants in chosen.values())
    assert set(spread) == {0, 1, 2, 3}
    assert min(spread.values()) > 25


def test_recompute_varies_with_every_step() -> None:
    assert BatchOrder(0, 10, 4).variants(17, [1, -1], "recompute", 4) == [17, 0]
