"""A worker that has just begun: its first step reads what others have filled; a cache server that is not there costs little."""

import time
from pathlib import Path

import pytest
import torch
from cache_stack import PATIENT_SECONDS, CacheStack, identity

from frostline_contract.job.cluster import CacheSection
from frostline_trainer.cache import control
from frostline_trainer.cache.boundary_cache import BoundaryCache


def test_who_waits_for_the_shards_reads_what_others_have_filled_at_once(
    stack: CacheStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CALL_SECONDS", PATIENT_SECONDS)  # the shards are asked for once
    writer, reader = stack.connect(), stack.connect()
    name = identity("from the first step on")
    stack.ready(writer, name)
    writer.fill([1, 2], [0, 0], torch.randn(2, 8, 16))
    assert writer.flush(PATIENT_SECONDS)
    reader.set_boundary(name, None, 100)
    reader.await_shards(60.0)
    assert reader.read([1, 2], [0, 0], torch.empty(2, 8, 16)) == [True, True]


def test_nobody_waits_long_for_a_cache_server_that_is_not_there(tmp_path: Path) -> None:
    lost = BoundaryCache("127.0.0.1:1", "token", "worker", CacheSection(), (8, 16), torch.float32, tmp_path)
    try:
        started = time.monotonic()
        lost.await_shards(60.0)
        assert time.monotonic() - started < 30.0, "one refused call, not the whole time"
        assert not lost.usable
    finally:
        lost.close()
