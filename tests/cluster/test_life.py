"""A run steered by kubectl: freeze, resize and cancel; a scale request is answered once and never reverted."""

from typing import Any

import pytest

from frostline_contract.annotations import COMMAND, REQUESTED_WORKERS
from tests.cluster.releases import Release, long
from tests.cluster.waiting import wait_for


def annotate(release: Release, text: str) -> None:
    release.cluster.kubectl("annotate", "--overwrite", "statefulset", "digits-trainer", text, namespace=release.namespace)


def members(release: Release) -> int:
    """Return the number of workers in the newest plan."""
    plans = [line for line in release.lines("plans.jsonl") if line["kind"] == "plan"]
    return len(plans[-1]["placement"]["workers"]) if plans else 0


def handed_back(release: Release) -> list[dict[str, Any]]:
    return [line for line in release.lines("events.jsonl") if line["kind"] == "leave" and "handed back" in line["reason"]]


def trainers(release: Release) -> list[str]:
    return [pod["metadata"]["name"] for pod in release.pods("trainer")]


def first_trainers(release: Release) -> list[str]:
    """Return the names of the pods that the StatefulSet's scale asks for: the scale may change again right after this."""
    return [f"digits-trainer-{number}" for number in range(release.replicas())]


def test_freeze_by_hand_is_the_next_decision(release: Release) -> None:
    release.install(**long(), freeze={"interval_steps": 10, "policy": {"name": "manual", "alpha": None}})
    release.wait_for_step(12)
    annotate(release, f"{COMMAND}=freeze 3")
    wait_for(lambda: COMMAND not in release.annotations(), "the command to be taken")
    wait_for(lambda: release.progress().get("freeze_point") == 3, "freeze point 3", 60)
    assert release.said("freeze by command")
    release.wait_for_state("completed", 240)


def test_a_word_that_is_no_command_is_refused_and_the_run_goes_on(release: Release) -> None:
    release.install()
    release.wait_for_step(5)
    annotate(release, f"{COMMAND}=frieze 3")
    (said,) = wait_for(lambda: release.said("refused", "frieze"), "the refusal")
    assert "known are freeze, unfreeze" in said
    release.wait_for_state("completed", 240)


def test_a_scale_request_is_answered_once_and_explained(release: Release) -> None:
    release.install(**long(160))
    release.wait_for_step(10)
    release.scale(8)
    wait_for(lambda: release.annotations().get(REQUESTED_WORKERS) == "8", "the request to be noted")
    wait_for(lambda: release.replicas() == 4, "the answer")
    wait_for(lambda: release.said("a scale request", "8 workers", "answered by 4"), "the explanation")
    release.scale(2)
    wait_for(lambda: release.replicas() == 2 and len(release.pods("trainer")) == 2 and members(release) == 2, "two workers", 90)
    annotate(release, f"{REQUESTED_WORKERS}=3")
    wait_for(lambda: release.replicas() == 3 and len(release.pods("trainer")) == 3, "three pods", 90)
    assert len(release.said("8 workers", "answered by 4")) == 1
    assert len(release.controllers_scale_writes()) <= 1 + 3, "a start and three requests"
    release.wait_for_state("completed")
    assert release.result()["digest"] == release.undisturbed_digest()


def test_cancel_leaves_the_last_checkpoint(release: Release) -> None:
    release.install(**long(600))  # nobody waits for its end
    release.wait_for_step(10)
    annotate(release, f"{COMMAND}=cancel")
    release.wait_for_state("cancelled")
    wait_for(lambda: release.replicas() == 0 and not release.pods("trainer"), "the pods to be gone")
    assert release.result()["status"] == "cancelled"
    assert list((release.run_dir / "checkpoints").rglob("manifest.json"))


def test_pods_are_handed_back_as_layers_freeze(release: Release) -> None:
    """Also a person's scale requests before and after: the controller writes the scale at most once for each."""
    placement = {"workers": 6, "initial_pp_degree": 6, "objective": "cost", "planner": "optimal"}
    by_hand = {"interval_steps": 10, "policy": {"name": "manual", "alpha": None}}
    release.install(**long(160), placement=placement, freeze=by_hand)
    release.wait_for_step(5)
    release.scale(8)
    wait_for(lambda: release.said("8 workers", "answered by"), "the answer")
    annotate(release, f"{COMMAND}=freeze 4")
    wait_for(lambda: handed_back(release) and release.replicas() < 6, "pods to be handed back", 120)
    wait_for(lambda: trainers(release) == first_trainers(release), "the pods with the last numbers, and no others, to be gone")
    wish = 4 if release.replicas() != 4 else 3
    release.scale(wish)
    wait_for(lambda: release.said(f"{wish} workers", "answered by"), "the answer")
    release.wait_for_state("completed")
    retaken = [line for line in release.lines("events.jsonl") if line["kind"] == "join" and "taken again" in line["reason"]]
    reasons = 1 + 2 + len(handed_back(release)) + len(retaken) + 1
    assert len(release.controllers_scale_writes()) <= reasons, "a start, two requests, the plans' own, the end"
    assert not [line for line in release.lines("events.jsonl") if line["kind"] == "failure"], "handing back cost a recovery"
    assert release.result()["digest"] == release.replayed_digest()


@pytest.mark.parametrize("change", ["live", "fixed"])
def test_an_upgrade_in_mid_run(release: Release, change: str) -> None:
    """A pod that is replaced right after it trains like its peers."""
    release.install(**long())
    release.wait_for_step(10)
    before = release.job
    if change == "live":
        release.upgrade(checkpoint={"every_steps": 7})
        wait_for(lambda: release.said("changed: checkpoint.every_steps from 0 to 7"), "the change to be told")
    else:
        release.upgrade(training={"batch_size": 32, "micro_batch_size": 4})
        wait_for(lambda: release.said("refused: training.batch_size", "stays 64"), "the refusal")
        release.job = before
    release.cluster.kubectl("delete", "pod", "digits-trainer-1", namespace=release.namespace)
    release.wait_for_state("completed")
    assert release.result()["digest"] == release.undisturbed_digest()
    if change == "live":
        assert [line for line in release.lines("events.jsonl") if line["kind"] == "checkpoint" and line["step"] % 7 == 0]
