"""Images decoded by processes: the order and the bits of one process, whichever process dies."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from frostline_trainer.data import decoding
from frostline_trainer.data.decoder import Wanted, as_pixels, decode
from frostline_trainer.data.decoding import Decoders, decoders_of
from frostline_trainer.data.load import load_data
from tests.unit.trainer.data_cases import job_of


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two classes of ten noisy images in two formats and several sizes."""
    draw, made = np.random.default_rng(7), []
    for number in range(20):
        folder = tmp_path / ("ant" if number % 2 else "bee")
        folder.mkdir(exist_ok=True)
        made.append(folder / f"{number}.{'jpg' if number % 3 else 'png'}")
        Image.fromarray(draw.integers(0, 256, (20 + number, 31, 3), dtype=np.uint8)).save(made[-1])
    return made


@pytest.fixture
def pool() -> Iterator[Decoders]:
    made = Decoders(2)
    yield made
    made.close()


def processes(pool: Decoders) -> list[subprocess.Popen[bytes]]:
    """Return the decoding processes that run now; nothing is decoded meanwhile."""
    decoders = [pool._idle.get() for _ in range(pool.count)]
    for decoder in decoders:
        pool._idle.put(decoder)
    return [decoder.process for decoder in decoders if decoder.process is not None]


@pytest.mark.parametrize("channels", [1, 3])
def test_several_processes_give_the_bits_and_the_order_of_one(channels: int, files: list[Path], pool: Decoders) -> None:
    wanted = [Wanted(str(file), 16, channels) for file in files]
    assert processes(pool) == [], "none is started before it has anything to do"
    for own, theirs in zip([as_pixels(decode(one)) for one in wanted], pool.pixels(wanted), strict=True):
        assert theirs.shape == (channels, 16, 16) and np.array_equal(own, theirs)
    assert len(processes(pool)) == 2


def test_a_split_is_the_same_with_processes(files: list[Path]) -> None:
    job = job_of("image_classification", "image-folder", path=str(files[0].parents[1]), image_size=16)
    alone, beside = load_data(job), load_data(job, decoders=2)
    pool = beside.train._records.decoders
    assert alone.digest == beside.digest and pool is beside.test._records.decoders
    try:
        indices = [3, -1, 0, 5, 1]
        for split in ("train", "test"):
            chosen = indices if split == "train" else [1, -1, 0]
            ours, theirs = (getattr(data, split).collate(chosen, [0] * len(chosen)) for data in (alone, beside))
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert len(processes(pool)) == 2
    finally:
        pool.close()


def test_a_killed_process_is_replaced_and_its_image_decoded(files: list[Path], pool: Decoders) -> None:
    wanted = [Wanted(str(file), 16, 3) for file in files]
    pool.pixels(wanted)
    before = processes(pool)
    for process in before:
        process.kill()
    assert all(np.array_equal(as_pixels(decode(one)), found) for one, found in zip(wanted, pool.pixels(wanted), strict=True))
    after = processes(pool)
    assert {process.pid for process in before}.isdisjoint(process.pid for process in after)
    assert all(process.returncode is not None for process in before), "nobody is left to be reaped"


def test_an_image_over_which_every_process_dies_is_told_by_name(
    files: list[Path], pool: Decoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding.sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match=f"{files[0]}: no readable image .3 decoders died over it"):
        pool.pixels([Wanted(str(files[0]), 16, 3)])
    monkeypatch.undo()
    assert len(pool.pixels([Wanted(str(file), 16, 3) for file in files])) == len(files), "others are decoded as before"


def test_a_broken_image_is_told_as_ever_and_its_process_goes_on(files: list[Path], pool: Decoders) -> None:
    files[1].write_bytes(b"no image")
    reported = []
    for read in (lambda: decode(Wanted(str(files[1]), 16, 3)), lambda: pool.pixels([Wanted(str(files[1]), 16, 3)])):
        with pytest.raises(ValueError, match="no readable image") as mistake:
            read()
        reported.append(str(mistake.value))
    assert reported[0] == reported[1]
    first = processes(pool)
    pool.pixels([Wanted(str(files[0]), 16, 3)])
    assert set(first) <= set(processes(pool))


def test_a_process_ends_with_its_worker_and_never_imports_torch() -> None:
    reported = "import sys, frostline_trainer.data.decoder; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", reported], capture_output=True, text=True, check=True).stdout == "False\n"
    orphan = subprocess.Popen([sys.executable, "-m", "frostline_trainer.data.decoder"], stdin=subprocess.PIPE)
    assert orphan.stdin is not None
    orphan.stdin.close()
    assert orphan.wait(30) == 0


def test_processes_are_for_devices_and_for_what_needs_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = job_of("image_classification", "digits", max_samples=40)
    assert load_data(digits, decoders=4).train._records.decoders is None
    monkeypatch.setattr(decoding.os, "sched_getaffinity", lambda process: set(range(64)))
    shared = digits.model_copy(update={"placement": digits.placement.model_copy(update={"workers_per_pod": 16})})
    assert [decoders_of(digits, on_cpu=True), decoders_of(digits, on_cpu=False), decoders_of(shared, on_cpu=False)] == [0, 8, 3]
    wished = job_of("image_classification", "digits", decoding_processes=2)
    assert decoders_of(wished, on_cpu=True) == 2
