"""The label that routes the controller's Service to the leading pod. The leader puts the label on its own pod."""

import asyncio
import logging
from collections.abc import Callable

from frostline_controller.cluster.kubernetes.api import Api, ApiError, Json, NotFound

log = logging.getLogger(__name__)

ROLE, LEADER = "frostline.io/role", "leader"
LOOK_SECONDS = 15.0
"""The interval of checks, in seconds: the longest time for which a wrong label may misdirect calls.

The label may have been removed, or a former leader's late write may have put it on another pod too.
"""


class LeaderLabel:
    """The label by which the Service finds the controller pod that leads. Methods block and raise ApiError.

    Args:
        namespace: of the release.
        release: name of the release, whose controller pods may have the label.
        pod_name: the pod of this process.
    """

    def __init__(self, api: Api, namespace: str, release: str, pod_name: str) -> None:
        self._api, self._path, self._pod_name = api, f"/api/v1/namespaces/{namespace}/pods", pod_name
        self._selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=controller,{ROLE}={LEADER}"

    def take(self) -> None:
        """Remove the label from other pods, then put it on this pod; two labelled pods would share the calls. Writes changes
        only."""
        bearers = [pod["metadata"]["name"] for pod in self._bearers()]
        for name in bearers:
            if name != self._pod_name:
                try:
                    self._write(name, None)
                except NotFound as error:
                    log.info("the old leader's pod is gone reason=%s", error)
        if self._pod_name not in bearers:
            self._write(self._pod_name, LEADER)

    async def keep(self, leads: Callable[[], bool], look_seconds: float = LOOK_SECONDS) -> None:
        """Take the label again whenever this pod is not the only one that has it, until cancelled; never while another pod
        leads."""
        while True:
            await asyncio.sleep(look_seconds)
            if leads():
                try:
                    await asyncio.to_thread(self.take)
                except (ApiError, OSError) as error:
                    log.warning("the leader's label is not looked at error=%s", error)

    def _bearers(self) -> list[Json]:
        found: list[Json] = self._api.get(self._path, labelSelector=self._selector)["items"]
        return found

    def _write(self, pod_name: str, value: str | None) -> None:
        self._api.patch(f"{self._path}/{pod_name}", {"metadata": {"labels": {ROLE: value}}})
