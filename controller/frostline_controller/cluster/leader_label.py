"""Which pod the controller's Service leads to: the one that carries the leader's label. The leader gives it to itself."""

import logging

from frostline_controller.cluster.kubernetes_api import Api, NotFound

log = logging.getLogger(__name__)

ROLE, LEADER = "frostline.io/role", "leader"


class LeaderLabel:
    """pod_name: our own. Blocking; raises ApiError."""

    def __init__(self, api: Api, namespace: str, release: str, pod_name: str) -> None:
        self._api, self._path, self._pod_name = api, f"/api/v1/namespaces/{namespace}/pods", pod_name
        self._selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=controller,{ROLE}={LEADER}"

    def take(self) -> None:
        """From others first: two bearers would share the calls."""
        for pod in self._api.get(self._path, labelSelector=self._selector)["items"]:
            if pod["metadata"]["name"] != self._pod_name:
                try:
                    self._write(pod["metadata"]["name"], None)
                except NotFound as error:
                    log.info("the old leader's pod is gone reason=%s", error)
        self._write(self._pod_name, LEADER)

    def _write(self, pod_name: str, value: str | None) -> None:
        self._api.patch(f"{self._path}/{pod_name}", {"metadata": {"labels": {ROLE: value}}})
