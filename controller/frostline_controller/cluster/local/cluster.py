"""The local cluster: the work of kubelet, StatefulSet controller and Deployment, for child processes.

The cluster makes the pods that `<run>/cluster/statefulset.json` requires, one agent process for each pod, replaces pods that are
deleted or die, and keeps the controller, the cache server and the preload process running. One thread does all of this; `stop`
ends everything.

`placement.pods_per_node` pods share a node, `node-<k>`. A node that was killed or cut off does not come back: its pods are
replaced on `node-<k>-<n>`. Processes of a node that was cut off go on running, as on a real cluster, but are managed no longer.
"""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from frostline_contract.annotations import STATE
from frostline_contract.exit_codes import USER_MISTAKE
from frostline_contract.job import Job
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import TRAINING, RunStatus
from frostline_contract.scratch_folder import ScratchFolder
from frostline_controller.cluster.backend import SUCCEEDED
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.cluster.local.child import child_environment, last_lines
from frostline_controller.cluster.local.cpu_shares import cpu_groups_of
from frostline_controller.cluster.local.pod import Pod
from frostline_controller.cluster.local.service_process import QUICK_ENDS_MAX, Service, ServiceProcess, preload_service
from frostline_rpc.auth import WORKER, Tokens

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
POD_PREFIX = "trainer"
PRELOAD_IN_PODS = "pods"
GRACE_SECONDS = 15.0
"""Grace period of a pod at a scale-down, in seconds (some clouds give no more)."""


@dataclass(frozen=True)
class ClusterFailure:
    """A service or pod that does not stay up. With `leaves_no_result` no process is left to write the run's result."""

    message: str
    code: int
    leaves_no_result: bool = False

    @property
    def user_mistake(self) -> bool:
        """Whether the user has to correct something before another try can help."""
        return self.code == USER_MISTAKE


class LocalCluster:
    """The pods and services of one run directory. `start` returns at once; `failure` names a process that does not stay up.

    All pods share one preload process: the existing one whose socket FROSTLINE_PRELOAD names, so that many short runs can share
    it, else one that is started here. With FROSTLINE_PRELOAD=pods each pod has its own, as on Kubernetes, so that a new pod
    starts cold.

    Args:
        services: kept running beside the pods.
        env: added to every child's environment (tests set FROSTLINE_WORKER_MODULE).
        breakable: further targets of planned faults, by kind; called in the cluster's thread.
    """

    def __init__(
        self,
        run_dir: Path,
        job: Job,
        services: Sequence[Service] = (),
        env: dict[str, str] | None = None,
        breakable: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self.run_dir = Path(run_dir).absolute()
        self._places = RunDirectory(self.run_dir)
        self._job = job
        self.backend = LocalBackend(self._places.cluster)
        self._logs = self._places.logs
        threads = str(job.training.threads)
        self._env = child_environment({
            **os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **(env or {}),
        })  # fmt: skip
        self._groups = cpu_groups_of(job)
        if self._groups is not None:
            self._env |= self._groups.environment(job.placement.worker_cpus or 0.0)
        self._sockets = ScratchFolder()
        shared = self._env.get("FROSTLINE_PRELOAD", "")
        if shared == PRELOAD_IN_PODS:
            self._preload = ""
        else:
            self._preload = os.path.abspath(shared) if shared else str(self._sockets.path / "preload.sock")
        preload = preload_service(self._preload, self.run_dir)
        wanted = (*services, *(() if shared else (preload,)))
        self._notes: SimpleQueue[str] = SimpleQueue()
        self._services = [ServiceProcess(one, self._env, self._logs, self.run_dir, self._notes.put) for one in wanted]
        self._breakable = {"kill_cache_server": self._kill_cache_server, **(breakable or {})}
        self._pods: dict[str, Pod] = {}
        self._orphans: list[Pod] = []
        self._lost_nodes: Counter[int] = Counter()
        self._written: list[dict[str, object]] | None = None
        self._has_trained = False
        self._stopping = threading.Event()
        self._grace_seconds = 5.0
        self._thread = threading.Thread(target=self._run, name="local-cluster")
        self.failure: ClusterFailure | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        """Run pods and services in a separate thread, until `stop`."""
        self._thread.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """End every process: workers first, then the services; processes left after the grace period are killed. Idempotent."""
        self._grace_seconds = grace_seconds
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._sockets.close()
        if self._groups is not None:
            self._groups.remove()

    def process_id(self, name: str) -> int | None:
        """Return the process id of a service or of a pod's agent; None while it is not running."""
        for service in self._services:
            if service.service.name == name:
                return service.process_id
        pod = self._pods.get(name)
        return pod.process_id if pod else None

    def notes(self) -> list[str]:
        """Return the messages for the user that no earlier call has returned."""
        return [self._notes.get_nowait() for _ in range(self._notes.qsize())]

    def pods_running(self) -> int:
        """Return the number of pods whose agent process runs now."""
        return sum(pod.process_id is not None for pod in list(self._pods.values()))

    def _run(self) -> None:
        try:
            trouble = ""
            while not self._stopping.is_set():
                try:
                    self._round()
                    trouble = ""
                except OSError as error:
                    # For example a full disk: the interrupted work is done in a later round. Without its directory the run cannot
                    # go on.
                    if not self.run_dir.exists():
                        raise
                    if trouble != str(error):
                        trouble = str(error)
                        log.warning("the local cluster tries again error=%s", error)
                        self._notes.put(f"trying again until this works: {error}")
                self._stopping.wait(POLL_SECONDS)
        except BaseException as error:
            self.error = error
            log.exception("the local cluster failed")
        finally:
            self._end_all()

    def _round(self) -> None:
        for service in self._services:
            service.advance()
            if service.service.needed and service.final_code not in (None, 0) and self.failure is None:
                often = f" {QUICK_ENDS_MAX} times in a row and is given up" if service.given_up else ""
                text = f"{service.service.name} ended with code {service.final_code}{often}:\n{last_lines(service.log)}"
                code = 1 if service.given_up else service.final_code or 0
                self.failure = ClusterFailure(text, code, leaves_no_result=True)
        found = self.backend.read_object()
        self._take_deletions(found["spec"]["deletions"])
        self._take_breakages(found["spec"].get("breakages", []))
        self._match(found["spec"]["replicas"])
        # A run that waits after it has trained is paused: its pods are tried again, as those of a run that trains.
        state = found["metadata"]["annotations"].get(STATE)
        self._has_trained |= state in TRAINING
        trains = state in TRAINING or (state == RunStatus.WAITING and self._has_trained)
        for pod in list(self._pods.values()):
            pod.advance(keep_trying=trains)
            if pod.gone:
                del self._pods[pod.name]
        self._judge_pods(trains)
        self._orphans = [pod for pod in self._orphans if pod.outlives()]
        self._write_status()

    def _judge_pods(self, trains: bool) -> None:
        """Set `failure` where pods keep the run from going on: before it trains, one failed pod does, as a mistake in the job
        would; afterwards failed pods are tried again, and the run fails where too few others are left."""
        lost = [pod for pod in self._pods.values() if (pod.crash_looping if trains else pod.failed)]
        placement = self._job.placement
        needed = -(-placement.min_workers // placement.workers_per_pod) if trains else len(self._pods)
        if lost and len(self._pods) - len(lost) < needed and self.failure is None:
            text = f"{lost[0].name} ended with code {lost[0].exit_code}:\n{last_lines(lost[0].log)}"
            self.failure = ClusterFailure(text, lost[0].exit_code or 1)

    def _take_deletions(self, deletions: list[dict[str, object]]) -> None:
        if not deletions:
            return
        for deletion in deletions:
            pod = self._pods.get(str(deletion["name"]))
            if pod is not None and deletion["uid"] in ("", pod.uid):
                log.info("pod deleted pod=%s uid=%s", pod.name, pod.uid)
                pod.delete(float(deletion["grace_seconds"]))  # type: ignore[arg-type]
        self.backend.change(lambda found: found["spec"].update(deletions=found["spec"]["deletions"][len(deletions) :]))

    def _take_breakages(self, breakages: list[dict[str, object]]) -> None:
        """Carry out planned faults of nodes and services."""
        if not breakages:
            return
        # Requests are removed before they are carried out: a fault happens once, also where this round fails half-way.
        self.backend.change(lambda found: found["spec"].update(breakages=found["spec"]["breakages"][len(breakages) :]))
        for breakage in breakages:
            kind, pod = str(breakage["kind"]), self._pods.get(str(breakage["pod"]))
            log.warning("breakage kind=%s pod=%s", kind, breakage["pod"])
            if kind in self._breakable:
                self._breakable[kind]()
            elif pod is not None:
                self._lose_node(pod.ordinal // self._job.placement.pods_per_node, kind, float(breakage["seconds"]))  # type: ignore[arg-type]

    def _lose_node(self, number: int, kind: str, seconds: float) -> None:
        """Kill all pods of a node at once; or, for cut_node, replace the pods while their processes live on, cut off for
        `seconds`."""
        self._lost_nodes[number] += 1
        lost = [pod for pod in self._pods.values() if pod.ordinal // self._job.placement.pods_per_node == number]
        if kind == "cut_node":
            for pod in lost:
                pod.cut_off(seconds)
                self._orphans.append(self._pods.pop(pod.name))
            return
        for pod in lost:
            pod.strike()
        for pod in lost:
            pod.delete(0.0)

    def _kill_cache_server(self) -> None:
        for service in self._services:
            if service.service.name == "cache-server":
                service.kill()

    def _node_of(self, ordinal: int) -> str:
        number = ordinal // self._job.placement.pods_per_node
        lost = self._lost_nodes[number]
        return f"node-{number}-{lost}" if lost else f"node-{number}"

    def _match(self, replicas: int) -> None:
        """Make all missing pods 0 .. replicas - 1 together; delete those above, highest ordinal first."""
        for pod in sorted(self._pods.values(), key=lambda pod: pod.ordinal, reverse=True):
            if pod.ordinal >= replicas:
                pod.delete(0.0 if pod.phase == SUCCEEDED else GRACE_SECONDS)
        cuts = self._places.cuts
        for ordinal in range(replicas):
            name = f"{POD_PREFIX}-{ordinal}"
            if name not in self._pods:
                self._pods[name] = Pod(name, self._node_of(ordinal), self._pod_env(), self._logs, cuts, self.run_dir)

    def _pod_env(self) -> dict[str, str]:
        return {
            **self._env,
            "FROSTLINE_RUN_DIR": str(self.run_dir),
            "FROSTLINE_CONTROLLER": str(self._places.controller_address),
            "FROSTLINE_TOKEN": Tokens.read(self._places.tokens).by_role[WORKER],
            "FROSTLINE_PRELOAD": self._preload,
            "FROSTLINE_WORKERS_PER_POD": str(self._job.placement.workers_per_pod),
            "FROSTLINE_DEVICE": self._job.training.device,
            "FROSTLINE_GRACE_SECONDS": str(GRACE_SECONDS - 1.0),
            **({"FROSTLINE_PLUG": "frostline_trainer.faults"} if self._job.faults else {}),
        }

    def _write_status(self) -> None:
        pods = [pod.info() for pod in sorted(self._pods.values(), key=lambda pod: pod.ordinal)]
        if pods != self._written:
            self.backend.change(lambda found: found["status"].update(pods=pods))
            self._written = pods

    def _end_all(self) -> None:
        """End the pods together, with grace; then controller and cache server; then the preload process and all that is left."""
        for pod in self._orphans:
            pod.delete(0.0)
        for pod in self._pods.values():
            pod.delete(self._grace_seconds)
        deadline = time.monotonic() + self._grace_seconds + 1.0
        while self._pods and time.monotonic() < deadline:
            for pod in list(self._pods.values()):
                pod.advance()
                if pod.gone:
                    del self._pods[pod.name]
            time.sleep(0.02)
        for pod in self._pods.values():
            pod.delete(0.0)
        for service in self._services:
            service.terminate(signal.SIGTERM)
        for service in self._services:
            service.wait(self._grace_seconds)
        self._pods.clear()
        try:
            self._write_status()
        except OSError as error:
            log.warning("the pods' end was not written error=%s", error)
