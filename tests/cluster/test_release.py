"""The whole chart on the test cluster: a run from `helm install` to its result, as a person uses it."""

import itertools
import json

import pytest

from frostline_contract.annotations import COMMAND
from tests.cluster.cluster import is_ready
from tests.cluster.releases import LONG_LEASE, SMALL, Release, digits_job, paced
from tests.cluster.waiting import wait_for
from tests.wide_rows import wide_rows

LEASE_SECONDS = SMALL["kubernetes"]["lease"]["duration_seconds"]
SLACK_SECONDS = 10.0
"""Allowance for a loaded machine, on which the successor's process and its API calls are slow."""


def test_a_run_from_install_to_its_result(release: Release) -> None:
    """The run has the model of the digits job; other tests have a smaller one."""
    release.install(model=digits_job()["model"])
    wait_for(lambda: len(release.pods("trainer")) == 4 and all(map(is_ready, release.pods("trainer"))), "four ready trainers")
    wait_for(lambda: list(map(is_ready, release.pods("controller"))) == [True, True], "two ready controllers")
    ended = "--for=jsonpath={.metadata.annotations.frostline\\.io/state}=completed"
    release.cluster.kubectl(
        "wait", "statefulset/digits-trainer", ended, "--timeout=240s", namespace=release.namespace, seconds=250
    )
    result = json.loads(release.page("/result"))
    assert result == release.result(), "the controller goes on serving it"
    assert result["status"] == "completed" and result["steps"] == 60
    assert [line for line in release.lines("events.jsonl") if line["kind"] == "freeze"], "nothing froze"
    assert [line for line in release.lines("events.jsonl") if line["kind"] == "reshape"], "nothing was reshaped"
    wait_for(lambda: release.replicas() == 0, "the pods to be given back")
    assert result["digest"] == release.undisturbed_digest()
    assert release.said("completed")


def test_a_killed_worker_comes_back_in_its_container(release: Release) -> None:
    """The agent restarts the worker: no restart of a container, no wait for a kubelet's back-off."""
    release.install(faults=[*SMALL["faults"], {"kind": "kill_worker", "worker": 1, "step": 15}], kubernetes=LONG_LEASE)
    release.wait_for_state("completed", 240)
    assert [line for line in release.lines("events.jsonl") if line["kind"] == "failure"]
    assert not any(release.restarts().values())
    assert release.result()["digest"] == release.undisturbed_digest()


def test_suspend_and_resume_by_annotation(release: Release) -> None:
    release.install()
    release.wait_for_step(15)
    kubectl = release.cluster.kubectl
    kubectl("annotate", "statefulset", "digits-trainer", f"{COMMAND}=suspend", namespace=release.namespace)
    release.wait_for_state("suspended")
    wait_for(lambda: release.replicas() == 0 and not release.pods("trainer"), "the pods to be gone")
    stopped_at = release.step()
    assert stopped_at < 60
    kubectl("annotate", "statefulset", "digits-trainer", f"{COMMAND}=resume", namespace=release.namespace)
    release.wait_for_state("completed", 240)
    assert release.result()["digest"] == release.undisturbed_digest()


@pytest.mark.parametrize("moment", wide_rows(("", "planned", "announced"), wide=("planned",)))
def test_a_leader_that_is_killed_is_followed_by_the_other(release: Release, moment: str) -> None:
    """The leader's pod is deleted by force during the run; or its process is killed before or right after it announces a plan."""
    faults = [{"kind": "kill_controller", "step": 11, "phase": moment}] if moment else []
    release.install(training={"steps": 100}, freeze={"interval_steps": 60}, faults=[*paced(100), *faults])
    release.wait_for_step(12)
    before = release.incarnation()
    if moment:
        release.upgrade(placement={"hysteresis": 0.2})  # a live field: a plan is written for it
        wait_for(lambda: release.fault_happened(len(paced(100))), "the planned kill", 90)
    else:
        release.cluster.kubectl("delete", "pod", release.leader(), "--grace-period=0", "--force", namespace=release.namespace)
    wait_for(lambda: release.incarnation() > before, "a successor", LEASE_SECONDS + 5 + SLACK_SECONDS)
    release.wait_for_state("completed", 240)
    decided = [line["number"] for line in release.lines("plans.jsonl") if line["kind"] == "decision"]
    assert decided == sorted(set(decided)), "a decision was taken twice"
    reported = sorted(line["time_seconds"] for line in release.lines("metrics.jsonl") if line.get("step", 61) <= 60)
    stood = max(after - before for before, after in itertools.pairwise(reported))
    assert stood < LEASE_SECONDS, "nobody led for at least so long, and no decision was due until step 60: training goes on"
    assert release.result()["digest"] == release.undisturbed_digest()
