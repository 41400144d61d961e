"""Steps and samples of passes whose last step is short: as if each step had been taken alone."""

from hypothesis import given
from hypothesis import strategies as st

from frostline_controller.simulation.passes import samples_after, steps_to

SIZES = st.tuples(st.integers(1, 12), st.integers(0, 40))


def one_step(samples: int, size: int, train: int) -> int:
    return samples + min(size, train - samples % train) if train else samples + size


@given(sizes=SIZES, steps=st.integers(0, 30), samples=st.integers(0, 60))
def test_many_steps_are_single_steps_one_after_the_other(sizes: tuple[int, int], steps: int, samples: int) -> None:
    size, train = sizes
    reached = samples
    for _ in range(steps):
        reached = one_step(reached, size, train)
    assert samples_after(samples, steps, size, train) == reached


@given(sizes=SIZES, samples=st.integers(0, 60), wanted=st.integers(0, 200))
def test_the_steps_to_some_samples_are_the_least_that_reach_them(sizes: tuple[int, int], samples: int, wanted: int) -> None:
    size, train = sizes
    steps = steps_to(wanted, samples, size, train)
    assert (steps <= 0) == (wanted <= samples)
    if steps > 0:
        assert samples_after(samples, steps - 1, size, train) < wanted <= samples_after(samples, steps, size, train)


def test_an_epoch_begins_with_the_step_that_the_trainer_begins_it_with() -> None:
    """100 samples in steps of 32 are four steps, so that the third epoch begins with step 9."""
    assert [steps_to(epoch * 100, 0, 32, 100) for epoch in (1, 2, 0.1 * 3)] == [4, 8, 1]
