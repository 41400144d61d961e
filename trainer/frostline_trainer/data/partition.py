"""Distributes samples over the splits train, guard and test, by seed; each sample is in exactly one split."""

from dataclasses import dataclass

import numpy as np

from frostline_contract.job import Job
from frostline_contract.seeds import seed_of
from frostline_trainer.data.order import permutation


@dataclass(frozen=True)
class Partition:
    """Record numbers of each split, ascending. test is empty if the test data is a separate file."""

    train: np.ndarray
    guard: np.ndarray
    test: np.ndarray


def partition(job: Job, num_records: int, own_test: bool) -> Partition:
    """Distribute records by seed: first the test split (unless the job names test data), then data.max_samples, then the guard.

    So neither max_samples nor guard_fraction changes the test split. Raises ValueError if a split would be empty.
    """
    data = job.data
    if num_records < 1:
        raise ValueError(f"data.path {data.path}: no samples; give a file or folder that holds some")
    order = permutation(seed_of("split", job.seed), num_records)
    num_test = 0 if own_test else round(data.test_fraction * num_records)
    if not own_test and num_test < 1:
        raise ValueError(
            f"the test split is empty: {num_records} samples x data.test_fraction {data.test_fraction}; "
            "give data.test_path, more data or a larger test_fraction"
        )
    rest = order[num_test:][: data.max_samples]
    num_guard = min(round(data.guard_fraction * len(rest)), data.guard_samples_max)
    if num_guard < 1:
        raise ValueError(
            f"the guard split is empty: {len(rest)} training samples x data.guard_fraction {data.guard_fraction}; "
            "give more data or a larger guard_fraction"
        )
    if num_guard >= len(rest):
        raise ValueError(
            f"the train split is empty: {num_records} samples, {num_test} for test, {num_guard} for guard; give more data"
        )
    return Partition(np.sort(rest[num_guard:]), np.sort(rest[:num_guard]), np.sort(order[:num_test]))
