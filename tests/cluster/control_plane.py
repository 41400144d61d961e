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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import requests
import yaml

from tests.cluster import processes
from tests.cluster.addresses import NODES_MAX, Addresses
from tests.cluster.api import TROUBLE, Json, Rest
from tests.cluster.certificates import Authority, write_signing_pair
from tests.cluster.egress import Egress, egress_selection

START_SECONDS = 90.0
ADMIN, NODES, GUEST = "admin", "nodes", "guest"
"""Users of the token file: cluster administrator, the node agents, and a user without any rights."""
ISSUER = "https://kubernetes.default.svc"
API, MANAGER, SCHEDULER, ETCD = "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass
class ControlPlane:
    """The programs of the control plane.

    binaries: folder of the programs. folder: its own, in memory if there is space; removed by its owner. mark: of its processes
    (`processes`). node_lost_seconds: silence after which a node is NotReady. Requests are audited, one JSON line each, in
    `audit_log`.
    """

    binaries: Path
    folder: Path
    addresses: Addresses
    mark: str
    node_lost_seconds: int = 5
    authority: Authority = field(default_factory=Authority.new)
    tokens: dict[str, str] = field(default_factory=lambda: {user: secrets.token_hex(16) for user in (ADMIN, NODES, GUEST)})
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._egress = Egress(self.folder / "egress.sock")

    def start(self) -> None:
        """Start all programs. Raises RuntimeError with the end of a program's log where it does not come up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._egress.start()
        self._ports = free_ports("etcd", "peer", "api", "manager", "scheduler")
        self._write_files()
        self._start_etcd()
        self.start_api_server()
        self.start_controllers()
        self._start(SCHEDULER, *self._of_a_controller("scheduler"))
        self._wait(MANAGER, self._default_account_exists)

    def start_controllers(self) -> None:
        self._start(
            MANAGER, *self._of_a_controller("manager"),
            "--service-account-private-key-file", str(self.folder / "sa.key"), "--root-ca-file", str(self.ca_file),
            "--use-service-account-credentials", "--controllers=*,-node-ipam-controller",
            f"--node-monitor-grace-period={self.node_lost_seconds}s", "--node-monitor-period=1s",
            # A zone of three nodes with one lost is half broken to the node controller, which would slow down or stop evictions.
            "--node-eviction-rate=100", "--secondary-node-eviction-rate=100", "--large-cluster-size-threshold=0",
        )  # fmt: skip

    def start_api_server(self) -> None:
        """Start the API server, also after `stop_api_server`: on the same port, over the same data."""
        self._start(
            API, f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            "--tls-cert-file", str(self.folder / "api.crt"), "--tls-private-key-file", str(self.folder / "api.key"),
            f"--service-cluster-ip-range={self.addresses.services}", "--authorization-mode=RBAC", "--allow-privileged=false",
            "--token-auth-file", str(self.folder / "tokens.csv"), f"--service-account-issuer={ISSUER}",
            "--service-account-key-file", str(self.folder / "sa.pub"), "--service-account-signing-key-file",
            str(self.folder / "sa.key"), "--shutdown-delay-duration=0s", "--kubelet-preferred-address-types=InternalIP",
            "--audit-policy-file", str(self.folder / "audit.yaml"), "--audit-log-path", str(self.audit_log),
            "--audit-log-mode=batch", "--audit-log-batch-max-wait=1s",
            "--egress-selector-config-file", str(self.folder / "egress.yaml"),
        )  # fmt: skip
        self._wait(API, lambda: self.get("/readyz").status_code == 200)

    def stop_api_server(self, with_signal: int = signal.SIGKILL) -> None:
        process = self._processes.pop(API)
        process.send_signal(with_signal)
        process.wait()

    def heal(self) -> None:
        """Let the API server run and answer again."""
        if API in self._processes:
            self.freeze_api_server(False)
        else:
            self.start_api_server()

    def freeze_api_server(self, frozen: bool) -> None:
        """Stop (SIGSTOP) or continue the API server; connections stay open."""
        self._processes[API].send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def compact(self) -> None:
        """Forget all but the newest version of every object through etcd's gateway, so that older watches cannot go on."""
        status = self._etcd("/v3/maintenance/status", {})
        self._etcd("/v3/kv/compaction", {"revision": status["header"]["revision"], "physical": True})

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)  # also ends one that is stopped
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        self._egress.stop()

    @property
    def port(self) -> int:
        return self._ports["api"]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.jsonl"

    def audited(self) -> list[Json]:
        """Return the requests in the audit log, oldest first. The server adds them once a second; a half line is left out."""
        lines = self.audit_log.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rest(self, user: str = ADMIN) -> Rest:
        """Return a client with the rights of a user of the token file."""
        return Rest(self.url, self.tokens[user], str(self.ca_file))

    def kubeconfig(self, user: str, token: str = "", server: str = "", namespace: str = "default") -> Path:
        """Write a kubeconfig file for a user of the token file, or for a token. server: instead of the API server's own
        address."""
        path = self.folder / f"{user}.{namespace}.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": server or self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": user, "user": {"token": token or self.tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": namespace}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def get(self, path: str) -> requests.Response:
        """Send a GET request as the administrator, over a separate connection."""
        headers = {"Authorization": f"Bearer {self.tokens[ADMIN]}"}
        return requests.get(self.url + path, headers=headers, verify=str(self.ca_file), timeout=5)

    def log_end(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _write_files(self) -> None:
        self.authority.write(self.ca_file)
        reached = ["127.0.0.1", *(self.addresses.api(node) for node in range(NODES_MAX))]
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self.authority.sign_server(self.folder / "api.crt", self.folder / "api.key", names, reached)
        write_signing_pair(self.folder / "sa.key", self.folder / "sa.pub")
        groups = {ADMIN: "system:masters", NODES: "system:masters", GUEST: "guests"}
        lines = [f'{token},{user},{user},"{groups[user]}"' for user, token in self.tokens.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        (self.folder / "audit.yaml").write_text(json.dumps(AUDIT_POLICY))
        (self.folder / "egress.yaml").write_text(json.dumps(egress_selection(self._egress.socket)))

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._start(
            ETCD, "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            "--unsafe-no-fsync", "--log-level=warn", "--heartbeat-interval=500", "--election-timeout=5000",
        )  # fmt: skip
        self._wait(ETCD, lambda: requests.get(f"{client}/health", timeout=1).status_code == 200)

    def _etcd(self, path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        answer = requests.post(f"http://127.0.0.1:{self._ports['etcd']}{path}", json=body, timeout=10)
        answer.raise_for_status()
        return answer.json()

    def _of_a_controller(self, name: str) -> list[str]:
        return [
            "--kubeconfig", str(self.kubeconfig(ADMIN)), "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[name]}", f"--cert-dir={self.folder / name}",
        ]  # fmt: skip

    def _start(self, name: str, *words: str) -> None:
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), processes.VARIABLE: f"{self.mark}/{name}"}
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self.binaries / name), *words],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=env,
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        end, last = time.monotonic() + START_SECONDS, "no answer"
        while time.monotonic() < end:
            if self._processes[name].poll() is not None:
                raise RuntimeError(f"{name} ended with {self._processes[name].returncode}: {self.log_end(name)}")
            try:
                if ready():
                    return
            except TROUBLE as error:
                last = str(error)
            time.sleep(0.05)
        raise RuntimeError(f"{name} was not ready within {START_SECONDS:.0f} s ({last}): {self.log_end(name)}")

    def _default_account_exists(self) -> bool:
        return self.get("/api/v1/namespaces/default/serviceaccounts/default").status_code == 200


def free_ports(*names: str) -> dict[str, int]:
    """Return a free port for each name; all are held until all are chosen."""
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
    ports = {name: one.getsockname()[1] for name, one in sockets.items()}
    for one in sockets.values():
        one.close()
    return ports
