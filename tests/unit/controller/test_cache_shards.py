"""A Redis shard that has died is started again, though the disk refuses something meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from frostline_contract.job.cluster import CacheSection
from frostline_controller.cluster.local import cache_shards
from frostline_controller.cluster.local.cache_shards import CacheShards


class Shard:
    """A shard that is killed by setting `alive`; `refused` times its files cannot be removed."""

    port, password, address = 7000, "secret", "127.0.0.1:7000"

    def __init__(self) -> None:
        self.alive, self.refused, self.stopped = True, 0, 0

    def is_alive(self) -> bool:
        return self.alive

    def stop(self) -> None:
        self.stopped += 1
        if self.refused:
            self.refused -= 1
            raise OSError(30, "Read-only file system")


def test_a_dead_shard_whose_files_cannot_be_removed_ends_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, ...]] = []

    def start(folder: Path, memory_bytes: int, port: int, password: str | None) -> Shard:
        started.append((folder.name, port, password))
        return Shard()

    monkeypatch.setattr(cache_shards, "start_redis", start)
    shards = CacheShards(tmp_path, CacheSection(shards=1))
    shards.start()
    (dying,) = shards._shards
    dying.alive, dying.refused = False, 1
    shards.advance()
    assert len(started) == 1, "it could not be stopped"
    shards.advance()
    assert started == [("shard-0", 0, None), ("shard-0", 7000, "secret")]
    assert shards._shards != [dying]


def test_at_the_end_every_shard_is_stopped_though_the_files_of_one_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Shard] = []

    def start(*how: Any) -> Shard:
        made.append(Shard())
        return made[-1]

    monkeypatch.setattr(cache_shards, "start_redis", start)
    shards = CacheShards(tmp_path, CacheSection(shards=2))
    shards.start()
    made[0].refused = 1
    shards.stop()
    assert [one.stopped for one in made] == [1, 1]
