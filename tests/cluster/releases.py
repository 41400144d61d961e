"""A release of the chart on the test cluster: installed by a real Helm, watched through the API server, judged by its digest."""

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from frostline_contract.annotations import PLAN, PROGRESS, STATE
from frostline_controller.run.durable import decode_state
from tests.cluster.addresses import real
from tests.cluster.api import Rest
from tests.cluster.cluster import ROOT, Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.runs import FROSTLINE

CHART = ROOT / "charts" / "frostline"
DIGITS = ROOT / "examples" / "image_classification" / "digits.yaml"
SLOW_STEPS = 20
"""The number of steps of a planned fault of kind `slow`."""


def paced(steps: int, seconds: float = 0.2) -> list[dict[str, Any]]:
    """Return planned faults that lengthen each of the steps by `seconds`, also on a fast machine: no load, and time to
    observe."""
    return [{"kind": "slow", "worker": 0, "step": step, "seconds": seconds} for step in range(1, steps, SLOW_STEPS)]


LONG_LEASE = {"lease": {"retry_seconds": 1.0, "renew_seconds": 20.0, "duration_seconds": 30}}
"""The section `kubernetes` with which no leader is lost to a machine that stalls or to an API server that is briefly away."""

SMALL: dict[str, Any] = {
    "model": {"config": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "patch_size": 4}},
    "training": {
        "epochs": None,
        "steps": 60,
        "micro_batch_size": 16,
        "reduction_leaves": 4,
        "schedule": {"warmup_fraction": 0.1},
    },
    "faults": paced(60),
    "freeze": {"interval_steps": 10},
    "placement": {"workers": 4, "initial_pp_degree": 4, "planner": "paper_greedy", "reshape_every_freeze": True},
    "controller": {"heartbeat_seconds": 0.2, "join_settle_seconds": 0.1, "join_pause_seconds": 0.5},
    "kubernetes": {
        "lease": {"retry_seconds": 1, "renew_seconds": 5, "duration_seconds": 8},
        "storage": {"size": "1Gi"},
        "trainer": {"unreachable_seconds": 2, "grace_seconds": 15, "requests": {"cpu": "100m", "memory": "64Mi"}},
    },
}
"""Of the digits job, so that a run takes a quarter of a minute, on a fast machine too, and a successor of a leader seconds."""


def merged(base: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    """Return the values with sections merged and other values replaced; None removes."""
    result = dict(base)
    for change in changes:
        for key, value in change.items():
            if isinstance(value, dict) and isinstance(result.get(key), dict):
                result[key] = merged(result[key], value)
            elif value is None:
                result.pop(key, None)
            else:
                result[key] = value
    return result


def digits_job() -> dict[str, Any]:
    """Return the digits job of the examples."""
    return dict(yaml.safe_load(DIGITS.read_text(encoding="utf-8")))


def long(steps: int = 120) -> dict[str, Any]:
    """Return the sections of a run that lasts half a minute on any machine."""
    return {"training": {"steps": steps}, "faults": paced(steps)}


@functools.cache
def digest_of_one_worker(job: str, preload: str, replayed: str = "") -> str:
    """Return the digest of this job, run locally. preload: socket to fork from. replayed: run directory whose decisions are
    followed."""
    with tempfile.TemporaryDirectory(prefix="fl-alone-") as folder:
        file, out = Path(folder) / "alone.yaml", Path(folder) / "alone"
        file.write_text(job, encoding="utf-8")
        command = [*FROSTLINE, "run", "-f", str(file), "--out", str(out), "--quiet", "--no-report"]
        command += ["--replay", replayed] if replayed else []
        subprocess.run(command, check=True, cwd=ROOT, timeout=300, env={**os.environ, "FROSTLINE_PRELOAD": preload})
        return str(json.loads((out / "result.json").read_text(encoding="utf-8"))["digest"])


class Release:
    """The release `digits` in one namespace.

    preload: socket of the process from which runs to compare with fork their worker. helm: helm3 or helm4.
    """

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, preload: str) -> None:
        self.cluster, self.namespace, self.folder, self.preload = cluster, namespace, folder, preload
        self.name, self.helm = "digits", "helm4"
        self.job = merged(digits_job(), SMALL)

    def install(self, **sections: Any) -> None:
        """Install the release. sections: changes of the small digits job."""
        self.job = merged(self.job, sections)
        self._helm("install", self.name, str(CHART), "-f", str(self._values()))

    def upgrade(self, **sections: Any) -> str:
        self.job = merged(self.job, sections)
        return self._helm("upgrade", self.name, str(CHART), "-f", str(self._values()))

    def rollback(self) -> str:
        return self._helm("rollback", self.name)

    def uninstall(self) -> None:
        self._helm("uninstall", self.name)

    def helm_test(self) -> str:
        """Return the output of `helm test`. The pod of a successful test is deleted, so that `--logs` would find none."""
        return self._helm("test", self.name)

    def annotations(self) -> dict[str, str]:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{self.name}-trainer"
        return dict(self.cluster.rest.get(path)["metadata"].get("annotations") or {})

    def state(self) -> str:
        return self.annotations().get(STATE, "")

    def progress(self) -> dict[str, Any]:
        return dict(json.loads(self.annotations().get(PROGRESS) or "{}"))

    def incarnation(self) -> int:
        """Return the incarnation of the newest controller that has led."""
        return decode_state(self.annotations()[PLAN]).incarnation

    def fault_happened(self, index: int) -> bool:
        return (self.run_dir / "cluster" / "faults" / str(index)).exists()

    def step(self) -> int:
        """Return the last step with a durable record."""
        lines = self.lines("metrics.jsonl")
        return max((line["step"] for line in lines if "step" in line), default=0)

    def wait_for_state(self, state: str, seconds: float = 300.0) -> None:
        wait_for(lambda: self.state() == state, f"{self.name} to be {state}; {self.where()}", seconds)

    def wait_for_step(self, step: int, seconds: float = 300.0) -> None:
        wait_for(lambda: self.step() >= step, f"step {step} of {self.name}", seconds)

    def replicas(self) -> int:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{self.name}-trainer/scale"
        return int(self.cluster.rest.get(path)["spec"].get("replicas", 0))

    def scale(self, replicas: int) -> None:
        """Scale as a person does."""
        self.cluster.kubectl("scale", "statefulset", f"{self.name}-trainer", f"--replicas={replicas}", namespace=self.namespace)

    def controllers_scale_writes(self) -> list[str]:
        return [one for one in self.scale_writes() if one != "kubectl"]

    def scale_writes(self) -> list[str]:
        """Return the writers to /scale of the trainers by the audit log, oldest first: the first word of each user agent.

        A write that was refused since somebody else had written first is none.
        """
        path = f"/namespaces/{self.namespace}/statefulsets/{self.name}-trainer/scale"
        found = []
        for entry in self.cluster.plane.audited():
            refused = entry.get("responseStatus", {}).get("code", 200) >= 400
            if path in entry["requestURI"] and entry["verb"] in ("patch", "update") and not refused:
                found.append(str(entry.get("userAgent", "")).split("/")[0])
        return found

    def events(self) -> list[dict[str, Any]]:
        """Return the events about the run, oldest first."""
        found = self.cluster.rest.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        ours = [one for one in found if one["involvedObject"]["name"] == f"{self.name}-trainer"]
        return sorted(ours, key=lambda one: int(one["metadata"]["resourceVersion"]))

    def said(self, *words: str) -> list[str]:
        """Return the messages of the controller's events that have all the words."""
        messages = [str(one["message"]) for one in self.events() if one.get("reportingComponent") == "frostline-controller"]
        return [text for text in messages if all(word in text for word in words)]

    def pods(self, component: str) -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        return self.cluster.pods(self.namespace, selector)

    def leader(self) -> str:
        """Return the name of the pod that leads; empty while none does."""
        leaders = [pod for pod in self.pods("controller") if pod["metadata"]["labels"].get("frostline.io/role") == "leader"]
        return str(leaders[0]["metadata"]["name"]) if leaders else ""

    @property
    def audience(self) -> str:
        return f"frostline/{self.namespace}/{self.name}"

    def token(self, role: str, audience: str | None = None) -> str:
        """Return a token of a role's service account, bound to no pod. audience: None for the run's own, empty for the API
        server's."""
        chosen = self.audience if audience is None else audience
        spec = {"audiences": [chosen] if chosen else [], "expirationSeconds": 600}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}-{role}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.cluster.rest.create(path, body)["status"]["token"])

    def pod_token(self, pod: str) -> str:
        """Return a token as the pod itself has it: bound to the pod, for this run."""
        found = next(one for one in self.cluster.pods(self.namespace) if one["metadata"]["name"] == pod)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": found["metadata"]["uid"]}
        spec = {"audiences": [self.audience], "expirationSeconds": 600, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{found['spec']['serviceAccountName']}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.cluster.rest.create(path, body)["status"]["token"])

    def rest_as(self, token: str) -> Rest:
        """Return a client of the API server with this token."""
        return Rest(self.cluster.plane.url, token, str(self.cluster.plane.ca_file))

    def leading_pod(self) -> dict[str, Any]:
        """Return the pod that leads, or wait for the next one."""
        return wait_for(
            lambda: next((pod for pod in self.pods("controller") if pod["metadata"]["name"] == self.leader()), None), "a leader"
        )

    def controller_address(self) -> str:
        """Return host:port of the leader."""
        return f"{real(self.leading_pod()['status']['podIP'])}:7000"

    @functools.cached_property
    def run_dir(self) -> Path:
        """The run's folder on the shared volume. Looked up once, so that it can be read without an API server."""
        name = wait_for(self._volume, "the claim to be bound")
        folder = self.cluster.rest.get(f"/api/v1/persistentvolumes/{name}")["spec"]["nfs"]["path"]
        return Path(folder) / "runs" / self.name

    def _volume(self) -> str:
        """Return the name of the run's volume; empty before the claim is bound."""
        claims = self.cluster.rest.get(f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims")["items"]
        return next((str(claim["spec"]["volumeName"]) for claim in claims if claim["spec"].get("volumeName")), "")

    def lines(self, name: str) -> list[dict[str, Any]]:
        file = self.run_dir / name
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "result.json").read_text(encoding="utf-8")))

    def undisturbed_digest(self) -> str:
        """Return the digest of the same job on one undisturbed worker, by its own decisions, which are the same."""
        return digest_of_one_worker(yaml.safe_dump(self._alone()), self.preload)

    def replayed_digest(self) -> str:
        """Return `undisturbed_digest` by the decisions of this run, for runs with a person's decisions."""
        return digest_of_one_worker(yaml.safe_dump(self._alone()), self.preload, str(self.run_dir))

    def _alone(self) -> dict[str, Any]:
        changes = {"kubernetes": None, "faults": None, "controller": None, "checkpoint": None}
        return merged(self.job, changes, {"placement": {"workers": 1, "initial_pp_degree": None, "objective": None}})

    def page(self, path: str) -> str:
        """Return a page of the leading controller, through the API server."""
        proxy = f"/api/v1/namespaces/{self.namespace}/services/{self.name}-controller:web/proxy"
        return self.cluster.kubectl("get", "--raw", proxy + path, namespace=self.namespace)

    def restarts(self) -> dict[str, int]:
        """Return the restarts of all containers, by pod."""
        return {
            pod["metadata"]["name"]: sum(one["restartCount"] for one in pod.get("status", {}).get("containerStatuses") or ())
            for pod in self.cluster.pods(self.namespace)
        }

    def previous_logs(self) -> str:
        """Return the ends of the logs of restarted containers."""
        again = [name for name, count in self.restarts().items() if count]
        return "".join(
            self.cluster.kubectl("logs", name, "--previous", "--tail=30", namespace=self.namespace, check=False) for name in again
        )

    def where(self) -> str:
        """Return the states of the pods, for a message."""
        pods = self.cluster.pods(self.namespace)
        return ", ".join(f"{pod['metadata']['name']} {pod.get('status', {}).get('phase')}" for pod in pods)

    def _values(self) -> Path:
        file = self.folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(self.job), encoding="utf-8")
        return file

    def _helm(self, *words: str) -> str:
        return self.cluster.run(self.helm, *words, "--namespace", self.namespace, namespace=self.namespace)
