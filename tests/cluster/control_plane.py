"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, as child processes.

Nothing is faked: the StatefulSet controller, the garbage collector, RBAC and service account tokens are the cluster's own. Only
times are shortened (a node counts as lost after seconds), so that tests can wait for what takes minutes in the field.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

START_SECONDS = 60.0
SERVICE_CIDR = "10.96.0.0/16"
ADMIN, NODES, GUEST = "admin", "nodes", "guest"
"""Users of the token file: cluster administrator, the node agents, and one that no rule knows."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass
class ControlPlane:
    """binaries: where the programs are. folder: its own, in memory where there is room; removed by its owner.

    node_lost_seconds: silence after which a node is NotReady. audit: write `audit.jsonl`, one line a request.
    """

    binaries: Path
    folder: Path
    node_lost_seconds: int = 4
    audit: bool = True
    tokens: dict[str, str] = field(default_factory=lambda: {user: secrets.token_hex(16) for user in (ADMIN, NODES, GUEST)})
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Raises RuntimeError with the end of a program's log where it does not come up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = free_ports("etcd", "peer", "api", "manager", "scheduler")
        self._write_files()
        self._start_etcd()
        self.start_api_server()
        common = ["--kubeconfig", str(self.kubeconfig(ADMIN)), "--leader-elect=false", "--bind-address=127.0.0.1"]
        seconds = self.node_lost_seconds
        self._start(
            "kube-controller-manager", *common, f"--secure-port={self._ports['manager']}", f"--cert-dir={self.folder / 'manager'}",
            "--service-account-private-key-file", str(self.folder / "sa.key"), "--root-ca-file", str(self.ca_file),
            "--use-service-account-credentials", f"--node-monitor-grace-period={seconds}s", "--node-monitor-period=1s",
            "--controllers=*,-nodeipam,-service-lb-controller,-node-route-controller",
        )  # fmt: skip
        self._start(
            "kube-scheduler", *common, f"--secure-port={self._ports['scheduler']}", f"--cert-dir={self.folder / 'scheduler'}"
        )
        self._wait("kube-controller-manager", self._default_account_exists)

    def start_api_server(self) -> None:
        """Also after `stop_api_server`: on the same port, over the same data."""
        audit = (
            ["--audit-policy-file", str(self.folder / "audit.yaml"), "--audit-log-path", str(self.audit_log)]
            if self.audit
            else []
        )
        self._start(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}", "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['api']}", f"--cert-dir={self.folder / 'certs'}", "--advertise-address=127.0.0.1",
            f"--service-cluster-ip-range={SERVICE_CIDR}", "--authorization-mode=RBAC", "--allow-privileged=false",
            "--token-auth-file", str(self.folder / "tokens.csv"), "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file", str(self.folder / "sa.pub"), "--service-account-signing-key-file",
            str(self.folder / "sa.key"), "--endpoint-reconciler-type=none", "--shutdown-delay-duration=0s", *audit,
        )  # fmt: skip
        self._wait("kube-apiserver", lambda: self.get("/readyz").status_code == 200)

    def stop_api_server(self, with_signal: int = signal.SIGKILL) -> None:
        process = self._processes.pop("kube-apiserver")
        process.send_signal(with_signal)
        process.wait()

    def freeze_api_server(self, frozen: bool) -> None:
        """It answers nobody until it is thawed; connections stay open."""
        self._processes["kube-apiserver"].send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self._processes[name].send_signal(signal.SIGCONT)
            self._processes[name].kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    @property
    def ca_file(self) -> Path:
        """The server's own certificate signs itself."""
        return self.folder / "certs" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.jsonl"

    def kubeconfig(self, user: str, token: str = "", server: str = "") -> Path:
        """A kubeconfig file for a user of the token file, or for a token. server: instead of the API server's own address."""
        path = self.folder / f"{user}.kubeconfig"
        cluster: dict[str, Any] = {"server": server or self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self.tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def get(self, path: str) -> requests.Response:
        """As the administrator."""
        headers = {"Authorization": f"Bearer {self.tokens[ADMIN]}"}
        return requests.get(self.url + path, headers=headers, verify=str(self.ca_file), timeout=5)

    def _write_files(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        private = key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, plain)
        (self.folder / "sa.key").write_bytes(private)
        public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
        (self.folder / "sa.pub").write_bytes(public)
        groups = {ADMIN: "system:masters", NODES: "system:masters", GUEST: "guests"}
        lines = [f'{token},{user},{user},"{groups[user]}"' for user, token in self.tokens.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        (self.folder / "audit.yaml").write_text(json.dumps(AUDIT_POLICY))

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._start(
            "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            "--unsafe-no-fsync", "--log-level=warn",
        )  # fmt: skip
        self._wait("etcd", lambda: requests.get(f"{client}/health", timeout=1).status_code == 200)

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self.binaries / name), *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)},
            )  # fmt: skip

    def _wait(self, name: str, ready: Any) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._processes[name].poll() is not None:
                raise RuntimeError(f"{name} ended with {self._processes[name].returncode}: {self.log_end(name)}")
            try:
                if ready():
                    return
            except (requests.RequestException, OSError):
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{name} was not ready within {START_SECONDS:.0f} s: {self.log_end(name)}")

    def log_end(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _default_account_exists(self) -> bool:
        return self.get("/api/v1/namespaces/default/serviceaccounts/default").status_code == 200


def free_ports(*names: str) -> dict[str, int]:
    """A free port a name; all are held until all are chosen."""
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
    ports = {name: one.getsockname()[1] for name, one in sockets.items()}
    for one in sockets.values():
        one.close()
    return ports
