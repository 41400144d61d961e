"""The whole chart on the test cluster: a run from `helm install` to its result, as a person lives with it."""

from frostline_contract.annotations import COMMAND
from tests.cluster.cluster import is_ready
from tests.cluster.releases import Release
from tests.cluster.waiting import wait_for


def test_a_run_from_install_to_its_result(release: Release) -> None:
    release.install()
    wait_for(lambda: len(release.pods("trainer")) == 4 and all(map(is_ready, release.pods("trainer"))), "four ready trainers")
    assert all(map(is_ready, release.pods("controller"))) and len(release.pods("controller")) == 2
    release.wait_for_state("completed", 240)
    result = release.result()
    assert result["status"] == "completed" and result["steps"] == 60
    assert [line for line in release.lines("events.jsonl") if line["kind"] == "freeze"], "nothing froze"
    assert [line for line in release.lines("events.jsonl") if line["kind"] == "reshape"], "nothing was reshaped"
    wait_for(lambda: release.replicas() == 0, "the pods to be given back")
    assert result["digest"] == release.undisturbed_digest()
    assert release.said("completed")


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


def test_a_leader_that_is_killed_is_followed_by_the_other(release: Release) -> None:
    release.install()
    release.wait_for_step(10)
    before = release.leader()
    release.cluster.kubectl("delete", "pod", before, "--grace-period=0", "--force", namespace=release.namespace)
    wait_for(lambda: release.leader() not in ("", before), "another leader", 4 + 5 + 10)
    release.wait_for_state("completed", 240)
    assert release.result()["digest"] == release.undisturbed_digest()
