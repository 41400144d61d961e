"""Test nodes: machines whose agents run pods as local processes, and that can be cut off, frozen, switched off and on again."""

import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import processes
from tests.cluster.api import Json, Rest
from tests.cluster.container_life import BackOff
from tests.cluster.control_plane import NODES, ControlPlane
from tests.cluster.network import Network, Target
from tests.cluster.node_agent import NodeAgent
from tests.cluster.node_logs import NodeLogs
from tests.cluster.pod_life import Place
from tests.cluster.services import NodeServices, ServiceBook

PASSED_ON = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "LANG")
"""Variables of the test run that its pods receive too."""
CALL_SECONDS = 4.0
ROOT = Path(__file__).parents[2]


@dataclass
class NodeOptions:
    """Settings of a node. labels, taints, capacity: of the Node object. variables: for all its pods. path: folders of programs,
    before others.

    companions: process ids that serve only this node's pods (a preload process): frozen, continued and killed with the node.
    """

    labels: dict[str, str] = field(default_factory=dict)
    taints: list[Json] = field(default_factory=list)
    capacity: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    companions: list[int] = field(default_factory=list)
    back_off: BackOff = field(default_factory=BackOff)


class Node:
    """One test node. index: its number in the cluster. folder: its own; pods' logs stay in it.

    `cut` separates it from the API server and from pods of other nodes behind Services; pods that know each other's addresses
    still reach each other, since all are on one loopback.
    """

    def __init__(self, name: str, index: int, plane: ControlPlane, network: Network, book: ServiceBook, folder: Path,
                 options: NodeOptions) -> None:  # fmt: skip
        self.name, self.options, self.folder = name, options, folder
        self._index, self._plane, self._network = index, plane, network
        self._mark = f"{plane.mark}/{name}"
        self._services = NodeServices(name, index, plane.addresses, network, book)
        self._running = threading.Event()
        self._agent: NodeAgent | None = None
        self._logs: NodeLogs | None = None
        self._api: tuple[str, int] = ("", 0)

    def start(self) -> None:
        """Start the node for the first time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        host = self._plane.addresses.api(self._index)
        behind = Target("127.0.0.1", self._plane.port)
        self._api = (host, self._network.listen(self.name, host, 0, lambda: behind))
        certificate, key = self.folder / "node.crt", self.folder / "node.key"
        self._plane.authority.sign_server(certificate, key, [self.name], [self._address])
        self._logs = NodeLogs(self._address, certificate, key, self._log_of)
        self._logs.start()
        self.boot()

    def boot(self) -> None:
        """Start the agent: at first, and after `kill`."""
        assert self._agent is None, f"node {self.name} runs already"
        self._network.cut(self.name, False)
        self._running.set()
        rest = Rest("https://{}:{}".format(*self._api), self._plane.tokens[NODES], str(self._plane.ca_file), CALL_SECONDS)
        seen_at = [self._plane.addresses.pod(self._index, count) for count in range(250)]
        place = Place(
            rest=rest, folder=self.folder, mark=self._mark, address=self._address, back_off=self.options.back_off,
            running=self._running, variables=lambda pod: self._variables(rest, pod), changed=lambda life: agent.changed(life),
        )  # fmt: skip
        agent = NodeAgent(rest, self._registration(), seen_at, place)
        self._agent = agent
        agent.start()

    def cut(self) -> None:
        """Block all traffic between the node and the rest; its pods run on."""
        self._network.cut(self.name, True)

    def freeze(self) -> None:
        """Stop (SIGSTOP) all its pods and the agent itself; connections stay open."""
        self._running.clear()
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Switch the machine off: all processes end, and the API server is not informed."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        self._network.cut(self.name, True)
        self._network.reset(self.name)
        self._signal(signal.SIGKILL)
        self._running.set()
        agent.crash()
        processes.signal_marked(self._mark, signal.SIGKILL)

    def heal(self) -> None:
        """Undo `cut`, `freeze` or `kill`."""
        self._signal(signal.SIGCONT)
        if self._agent is None:
            self.boot()
        else:
            self._network.cut(self.name, False)
            self._running.set()

    def stop(self) -> None:
        """Stop the node for good."""
        self.kill()
        if self._logs is not None:
            self._logs.stop()

    @property
    def _address(self) -> str:
        return self._plane.addresses.node(self._index)

    def _signal(self, number: int) -> None:
        processes.signal_marked(self._mark, number)
        for companion in self.options.companions:
            for process_id in processes.descendants(companion):
                processes.send(process_id, number)

    def _log_of(self, namespace: str, pod: str, container: str, previous: bool) -> tuple[Path, bool] | None:
        return self._agent.log_of(namespace, pod, container, previous) if self._agent is not None else None

    def _variables(self, rest: Rest, pod: Json) -> dict[str, str]:
        """Return the variables that precede a pod's own: programs, packages, the API server, Services."""
        path = [*self.options.path, os.path.dirname(sys.executable), os.environ.get("PATH", "")]
        packages = [str(ROOT), *(os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one)]
        host, port = self._api
        variables = {"PATH": os.pathsep.join(path), "HOSTNAME": pod["metadata"]["name"]}
        variables |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
        variables |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        variables["PYTHONPATH"] = os.pathsep.join(packages)
        if pod["spec"].get("enableServiceLinks", True):
            variables |= self._services.variables(rest, pod["metadata"]["namespace"])
        return variables | self.options.variables

    def _registration(self) -> Json:
        assert self._logs is not None
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        room = {"cpu": "64", "memory": "256Gi", "pods": "200", "ephemeral-storage": "1Ti"} | self.options.capacity
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels | self.options.labels},
            "spec": {"taints": self.options.taints},
            "status": {
                "capacity": room,
                "allocatable": room,
                "addresses": [{"type": "InternalIP", "address": self._address}, {"type": "Hostname", "address": self.name}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.port}},
                "nodeInfo": {
                    "kubeletVersion": "v1.36.3-test", "containerRuntimeVersion": "process://1", "osImage": "this machine",
                    "operatingSystem": "linux", "architecture": "amd64", "kernelVersion": os.uname().release,
                    "machineID": self.name, "systemUUID": self.name, "bootID": self.name, "kubeProxyVersion": "",
                },
            },
        }  # fmt: skip
