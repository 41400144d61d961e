"""The whole test cluster: control plane, nodes, storage, and the queries that most tests need."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from frostline_controller.cluster.local.redis_process import RedisUnavailable, find_redis_server
from tests.cluster.addresses import Addresses
from tests.cluster.api import Json
from tests.cluster.binaries import folder, need
from tests.cluster.claims import Provisioner
from tests.cluster.control_plane import NODES, ControlPlane
from tests.cluster.namespaces import WithNamespaces
from tests.cluster.network import Network
from tests.cluster.nodes import ROOT, Node, NodeOptions
from tests.cluster.services import ServiceBook
from tests.cluster.waiting import wait_for

LOST = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
MEMORY_FOLDER, MEMORY_BYTES = Path("/dev/shm"), 1 << 30


class Cluster(WithNamespaces):
    """The cluster. rest: as the administrator. nodes: three, if none is given. All ends with `stop`, or with this process."""

    def __init__(self, nodes: Sequence[NodeOptions] = ()) -> None:
        """Make a cluster. Raises NoTools where the programs of the control plane are missing."""
        need("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        self.mark = f"frostline-{secrets.token_hex(4)}"
        self.folder = Path(tempfile.mkdtemp(prefix="fl-"))
        in_memory = _folder_in_memory(self.folder)
        self._guard = start_guard(self.mark, self.folder, in_memory)
        self.addresses = Addresses.claim()
        self.network = Network()
        self.plane = ControlPlane(folder(), in_memory, self.addresses, self.mark)
        self._options = nodes or [NodeOptions(path=programs()) for _ in range(3)]
        self.nodes: dict[str, Node] = {}

    def start(self) -> None:
        """Start the cluster. Raises RuntimeError where a program does not come up, TimeoutError where a node does not."""
        self.plane.start()
        self.rest = self.plane.rest()
        as_nodes = self.plane.rest(NODES)
        self._book = ServiceBook(as_nodes)
        self._book.start()
        self._provisioner = Provisioner(as_nodes, self.folder / "claims")
        self._provisioner.start()
        for index, options in enumerate(self._options):
            self._add(f"node-{index}", index, options)
        for name in self.nodes:
            self.wait_for_node(name, "True")

    def stop(self) -> None:
        """End all processes and remove all files."""
        for node in self.nodes.values():
            node.stop()
        if hasattr(self, "_provisioner"):
            self._provisioner.stop()
            self._book.stop()
        self.plane.stop()
        self.network.stop()
        self.addresses.release()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    def heal(self) -> None:
        """Restore the API server and every node: running, not frozen, ready."""
        self.plane.heal()
        for node in self.nodes.values():
            node.heal()
        for name in self.nodes:
            self.wait_for_node(name, "True")

    def wait_for_node(self, name: str, ready: str, seconds: float = 60.0) -> None:
        """Wait until the node's Ready condition is `ready` ("True", "False" or "Unknown"), and the scheduler follows it."""

        def is_so() -> bool:
            node = self.rest.get(f"/api/v1/nodes/{name}")
            conditions, taints = node.get("status", {}).get("conditions") or (), node["spec"].get("taints") or ()
            is_tainted = any(one["effect"] == "NoSchedule" and one["key"] in LOST for one in taints)
            said = any(one["type"] == "Ready" and one["status"] == ready for one in conditions)
            return said and is_tainted == (ready != "True")

        wait_for(is_so, f"node {name} to be Ready={ready}", seconds)

    def kubectl(self, *words: str, namespace: str = "default", check: bool = True, seconds: float = 60.0) -> str:
        """Run kubectl as the administrator. Returns its output; raises RuntimeError with its error messages."""
        return self.run("kubectl", *words, namespace=namespace, check=check, seconds=seconds)

    def run(self, program: str, *words: str, namespace: str = "default", check: bool = True, seconds: float = 300.0) -> str:
        """Run one of the programs (kubectl, helm3, helm4) as the administrator, in `namespace`. Raises NoTools."""
        need(program)
        env = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig("admin", namespace=namespace))}
        ours = (str(folder()), str(Path(sys.executable).parent))  # kubectl finds its plugin in the second
        env |= {"HELM_CACHE_HOME": str(self.folder / "helm"), "PATH": os.pathsep.join((*ours, os.environ.get("PATH", "")))}
        for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            env.pop(proxy, None)
        command = [str(folder() / program), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{program} {' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + ("" if check else done.stderr)

    def pods(self, namespace: str, selector: str = "") -> list[Json]:
        """Return the pods of a namespace, sorted by name."""
        found = self.rest.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def described(self, namespace: str) -> str:
        """Return the namespace's pods, their states, and the ends of their logs: for messages."""
        lines = []
        for pod in self.pods(namespace):
            name, status = pod["metadata"]["name"], pod.get("status", {})
            said = [f"{one['type']}={one['status']} {one.get('message', '')}" for one in status.get("conditions") or ()]
            lines.append(f"{name} on {pod['spec'].get('nodeName', 'no node')}: {status.get('phase')}, {'; '.join(said)}")
            for log in sorted(self.folder.glob(f"node-*/{name}.{pod['metadata']['uid'][:8]}/*.log")):
                lines.append(f"  {log.name}: {log.read_text(errors='replace')[-1000:].strip()}")
        return "\n".join(lines)

    def pod_log(self, namespace: str, pod: str, container: str = "", **query: str) -> str:
        """Return a pod's log, as `kubectl logs` does."""
        return self.rest.text(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", container=container, **query)

    def _add(self, name: str, index: int, options: NodeOptions) -> None:
        node = Node(name, index, self.plane, self.network, self._book, self.folder / name, options)
        self.nodes[name] = node
        node.start()


def programs() -> list[str]:
    """Return folders of programs that containers run and that need not be on PATH here."""
    try:
        return [str(find_redis_server().parent)]
    except RedisUnavailable:
        return []


def is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def start_guard(mark: str, *folders: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends everything when this process ends, however it does (`processes`)."""
    command = [sys.executable, "-m", "tests.cluster.processes", mark, *map(str, folders)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True)


def _folder_in_memory(other: Path) -> Path:
    """Return a folder for etcd's files, which are written all the time: in memory if there is space."""
    try:
        room = shutil.disk_usage(MEMORY_FOLDER).free
    except OSError:
        room = 0
    if room < MEMORY_BYTES:
        return other / "control-plane"
    return Path(tempfile.mkdtemp(prefix="fl-", dir=MEMORY_FOLDER))
