"""Services as a node's pods see them: the variables that a kubelet sets, and addresses that forward to endpoints."""

import random
import threading

from tests.cluster.addresses import Addresses, real
from tests.cluster.api import Follower, Json, Rest
from tests.cluster.network import Network, Target


class ServiceBook:
    """The endpoints of each Service: the EndpointSlices of the whole cluster, kept up to date by a watch."""

    def __init__(self, rest: Rest) -> None:
        self._lock = threading.Lock()
        self._slices: dict[tuple[str, str], dict[str, Json]] = {}
        self._follower = Follower(rest, "/apis/discovery.k8s.io/v1/endpointslices", self._take)

    def start(self) -> None:
        self._follower.start()

    def stop(self) -> None:
        self._follower.stop()

    def choose(self, namespace: str, service: str, port_name: str) -> Target | None:
        """Return one of the ready endpoints; without any, one that still serves while it ends. None: there is no endpoint."""
        with self._lock:
            slices = list(self._slices.get((namespace, service), {}).values())
        ready, ending = [], []
        for one in slices:
            port = next((port["port"] for port in one.get("ports") or () if (port.get("name") or "") == port_name), None)
            for endpoint in (one.get("endpoints") or ()) if port else ():
                conditions = endpoint.get("conditions") or {}
                target = Target(real(endpoint["addresses"][0]), port, endpoint.get("nodeName", ""))
                if conditions.get("ready", True):
                    ready.append(target)
                elif conditions.get("serving") and conditions.get("terminating"):
                    ending.append(target)
        return random.choice(ready or ending) if ready or ending else None

    def _take(self, found: Json, gone: bool) -> None:
        metadata = found["metadata"]
        key = (metadata["namespace"], metadata.get("labels", {}).get("kubernetes.io/service-name", ""))
        with self._lock:
            slices = self._slices.setdefault(key, {})
            if gone:
                slices.pop(metadata["uid"], None)
            else:
                slices[metadata["uid"]] = found


class NodeServices:
    """The Services of one node. index: its number."""

    def __init__(self, node: str, index: int, addresses: Addresses, network: Network, book: ServiceBook) -> None:
        self._node, self._index, self._addresses, self._network, self._book = node, index, addresses, network, book
        self._lock = threading.Lock()
        self._behind: dict[tuple[str, int], tuple[str, str, str]] = {}

    def variables(self, rest: Rest, namespace: str) -> dict[str, str]:
        """Return NAME_SERVICE_HOST and NAME_SERVICE_PORT of every Service with an address; each accepts connections from now on.

        Raises one of api.TROUBLE; OSError where a port is not available (below 1024 it needs privileges).
        """
        variables: dict[str, str] = {}
        for service in rest.get(f"/api/v1/namespaces/{namespace}/services")["items"]:
            ip = service["spec"].get("clusterIP") or "None"
            if ip == "None" or service["metadata"]["name"] == "kubernetes":
                continue
            host, name = self._addresses.service(self._index, ip), service["metadata"]["name"]
            prefix = name.upper().replace("-", "_")
            variables[f"{prefix}_SERVICE_HOST"] = host
            variables[f"{prefix}_SERVICE_PORT"] = str(service["spec"]["ports"][0]["port"])
            for port in service["spec"]["ports"]:
                if port.get("name"):
                    variables[f"{prefix}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = str(port["port"])
                if port.get("protocol", "TCP") == "TCP":
                    self._open(host, port["port"], (namespace, name, port.get("name") or ""))
        return variables

    def _open(self, host: str, port: int, behind: tuple[str, str, str]) -> None:
        """Forward an address to a Service. Addresses of deleted Services are given to new ones: the newest counts."""
        with self._lock:
            is_new = (host, port) not in self._behind
            self._behind[host, port] = behind
            if is_new:
                try:
                    self._network.listen(self._node, host, port, lambda: self._book.choose(*self._behind[host, port]))
                except OSError:
                    del self._behind[host, port]
                    raise
