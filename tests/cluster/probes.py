"""Startup, readiness and liveness probes of one start of a container, as a kubelet carries them out."""

import logging
import socket
import subprocess
import threading
from collections.abc import Callable

import grpc
import requests

from tests.cluster.api import Json
from tests.cluster.containers import Process

log = logging.getLogger(__name__)

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
"""HealthCheckResponse with status SERVING, field 1 of value 1."""
POLL_SECONDS = 0.1


class Probes:
    """The probes of a container. started, ready: as in its status. failed: why it must be restarted; empty where it need not.

    host: the pod's real address. running: set while the node runs; while it is cleared, no probe is carried out.
    """

    def __init__(self, spec: Json, process: Process, host: str, running: threading.Event) -> None:
        self.started = "startupProbe" not in spec
        self.ready = False
        self.failed = ""
        self._spec, self._process, self._host, self._running = spec, process, host, running
        self._has_readiness = "readinessProbe" in spec
        self._ended = threading.Event()
        for kind, name in (("startup", "startupProbe"), ("liveness", "livenessProbe"), ("readiness", "readinessProbe")):
            if name in spec:
                arguments = (kind, spec[name])
                threading.Thread(target=self._follow, args=arguments, name=f"{kind} {spec['name']}", daemon=True).start()

    def end(self) -> None:
        """Carry out no more probes."""
        self._ended.set()

    @property
    def is_ready(self) -> bool:
        return self.started and (self.ready or not self._has_readiness)

    def _follow(self, kind: str, probe: Json) -> None:
        if kind != "startup":
            while not self.started:
                if self._ended.wait(POLL_SECONDS):
                    return
        self._ended.wait(probe.get("initialDelaySeconds", 0))
        good = bad = 0
        while not self._ended.is_set():
            self._running.wait()
            said = ask(probe, self._spec, self._process, self._host)
            good, bad = (0, bad + 1) if said else (good + 1, 0)
            if good >= probe.get("successThreshold", 1):
                self._note_success(kind)
                if kind == "startup":
                    return
            elif bad >= probe.get("failureThreshold", 3):
                self._note_failure(kind, said)
                if kind != "readiness":
                    return
            self._ended.wait(probe.get("periodSeconds", 10))

    def _note_success(self, kind: str) -> None:
        if kind == "startup":
            self.started = True
        elif kind == "readiness":
            self.ready = True

    def _note_failure(self, kind: str, said: str) -> None:
        log.info("probe failed kind=%s container=%s said=%s", kind, self._spec["name"], said)
        if kind == "readiness":
            self.ready = False
        elif not self._ended.is_set():
            self.failed = f"{kind} probe failed: {said}"


def ask(probe: Json, spec: Json, process: Process, host: str) -> str:
    """Carry out a probe once. Returns its fault; empty where there is none."""
    seconds = float(probe.get("timeoutSeconds", 1))
    asks: dict[str, Callable[[Json], str]] = {
        "exec": lambda action: _run(tuple(action["command"]), process, seconds),
        "httpGet": lambda action: _get(action, action.get("host") or host, _port(action["port"], spec), seconds),
        "tcpSocket": lambda action: _connect(action.get("host") or host, _port(action["port"], spec), seconds),
        "grpc": lambda action: _check(host, action["port"], action.get("service") or "", seconds),
    }
    kind = next(name for name in asks if name in probe)
    return asks[kind](probe[kind])


def _port(port: int | str, spec: Json) -> int:
    if isinstance(port, int):
        return port
    return next(one["containerPort"] for one in spec.get("ports", ()) if one.get("name") == port)


def _run(command: tuple[str, ...], process: Process, seconds: float) -> str:
    try:
        done = subprocess.run(
            process.words(command), env=process.variables, cwd=process.folder, timeout=seconds, capture_output=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-200:]!r}"


def _get(action: Json, host: str, port: int, seconds: float) -> str:
    url = f"{action.get('scheme', 'HTTP').lower()}://{host}:{port}{action.get('path', '/')}"
    headers = {one["name"]: one["value"] for one in action.get("httpHeaders", ())}
    try:
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(url, headers=headers, timeout=seconds, verify=False, allow_redirects=False)
    except requests.RequestException as error:
        return str(error)
    return "" if 200 <= answer.status_code < 400 else f"{url} answered {answer.status_code}"


def _connect(host: str, port: int, seconds: float) -> str:
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError as error:
        return f"{host}:{port}: {error}"
    return ""


def _check(host: str, port: int, service: str, seconds: float) -> str:
    request = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"{host}:{port}", options=options) as channel:
        call = channel.unary_unary(HEALTH_CHECK, request_serializer=bytes, response_deserializer=bytes)
        try:
            answer = call(request, timeout=seconds, wait_for_ready=False)
        except grpc.RpcError as error:
            return f"{host}:{port}: {error.code()}"
    return "" if answer == SERVING else f"{host}:{port} does not serve {service!r}"
