"""The run's own Redis: bounded, private, and clear about why it does not start."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from frostline_controller.cluster.local.redis_process import RedisProcess, RedisUnavailable, find_redis_server, start_redis


def test_it_is_bounded_evicts_nothing_and_keeps_nothing_on_disk(redis_server: RedisProcess) -> None:
    client = redis.Redis(port=redis_server.port, password=redis_server.password, decode_responses=True)
    settings = client.config_get("*")
    assert settings["maxmemory"] == str(64 << 20)
    assert settings["maxmemory-policy"] == "noeviction"
    assert (settings["save"], settings["appendonly"], settings["bind"]) == ("", "no", "127.0.0.1")
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis(port=redis_server.port, retry=Retry(NoBackoff(), 0)).ping()


def test_the_password_is_neither_on_the_command_line_nor_readable_by_others(redis_server: RedisProcess) -> None:
    command = Path(f"/proc/{redis_server.process.pid}/cmdline").read_bytes()
    assert redis_server.password.encode() not in command
    assert redis_server.config.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["a 'b' \"c\" d", "line\nmaxmemory 1\n", "back\\slash \\x41", "tab\tand \x7f", "schön"])
def test_a_folder_of_any_name_is_a_value_and_no_directive(name: str, tmp_path: Path) -> None:
    shard = start_redis(tmp_path / name, 16 << 20)
    try:
        settings = redis.Redis(port=shard.port, password=shard.password).config_get("*")
        assert settings["dir"] == str(tmp_path / name)
        assert settings["maxmemory"] == str(16 << 20)
    finally:
        shard.stop()


def test_it_stops_and_leaves_no_password_behind(start_shard: Callable[..., RedisProcess]) -> None:
    shard = start_shard()
    assert shard.is_alive()
    shard.stop()
    shard.stop()
    assert not shard.is_alive()
    assert not shard.config.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills a child with its parent")
def test_it_does_not_outlive_a_killed_owner(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from frostline_controller.cluster.local.redis_process import start_redis\n"
        "shard = start_redis(Path(sys.argv[1]), 16 << 20)\nprint(shard.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    server = psutil.Process(int(owner.stdout.readline()))
    assert "redis-server" in server.name()
    owner.kill()
    owner.communicate()
    gone, _ = psutil.wait_procs([server], timeout=60)
    assert gone == [server]


def test_an_occupied_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RedisUnavailable, match=rf"did not start on 127\.0\.0\.1:{port}.*in use"):
            start_redis(tmp_path, 16 << 20, port)


def test_no_redis_server_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_redis_server().exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisUnavailable, match="no redis-server on PATH"):
        start_redis(tmp_path, 16 << 20)


def test_too_little_memory_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"memory_bytes is 100; a Redis needs at least 1048576"):
        start_redis(tmp_path, 100)
