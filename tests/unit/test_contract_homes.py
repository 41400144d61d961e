"""The contract's small homes: phases, run states, the run directory, back-off, worker ids, and who of the members is gone."""

import json
from pathlib import Path

import pytest

from frostline_contract.backoff import Backoff
from frostline_contract.phases import AT_REST, FAULT_PHASES, IN_STEP, OUTSIDE, OWN_WORK, Phase, place_of
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import ENDED, RESUMABLE, RunStatus
from frostline_contract.worker_id import make_worker_id, pod_uid_of
from frostline_controller.api import RunResult
from frostline_controller.members.membership import Membership


def test_phases_have_one_order_and_an_unknown_word_counts_as_a_steps_beginning() -> None:
    assert [place_of(phase) for phase in Phase] == list(range(len(Phase)))
    assert place_of("another version's") == place_of(Phase.LOAD) < place_of(Phase.VOTE) < place_of(Phase.COMMIT)
    assert place_of(Phase.COMMITTED) < place_of(Phase.LOAD), "a step's record is the beginning of what follows it"


def test_what_a_member_does_in_a_step_is_not_outside_of_it() -> None:
    assert not IN_STEP & OUTSIDE and not OWN_WORK & OUTSIDE
    assert {Phase.VOTE, Phase.TALLY, Phase.SEEN} == IN_STEP - OWN_WORK, "in these a member waits for the others' ballots"
    assert AT_REST <= OUTSIDE and {Phase.START, Phase.SPARE} == AT_REST, "in these a worker waits for a plan"
    assert FAULT_PHASES[0] is Phase.LOAD and Phase.DONE not in FAULT_PHASES and Phase.START not in FAULT_PHASES


def test_a_run_that_has_ended_resumes_unless_it_completed() -> None:
    assert {RunStatus.COMPLETED} == ENDED - RESUMABLE
    assert not ENDED & {RunStatus.WAITING, RunStatus.RUNNING, RunStatus.DRAINING}


def test_a_result_of_an_earlier_version_is_read_in_todays_word(tmp_path: Path) -> None:
    places = RunDirectory(tmp_path)
    assert places.ended_as() == "" and not places.holds_run()
    places.result.write_text(json.dumps({"status": "drained", "steps": 7}))
    assert places.ended_as() == RunStatus.SUSPENDED == RunResult(tmp_path).status
    places.result.write_text(json.dumps({"status": "completed"}))
    assert places.ended_as() == RunStatus.COMPLETED


def test_facts_and_status_come_back_without_what_the_file_adds(tmp_path: Path) -> None:
    places = RunDirectory(tmp_path)
    places.write_facts({"started_at": 1.5})
    places.write_status({"step": 3}, saved_at=9.0)
    assert (places.read_facts(), places.read_status()) == ({"started_at": 1.5}, {"step": 3})
    places.result.write_text("{")
    with pytest.raises(ValueError, match=r"result\.json: no JSON"):
        places.read_result()


def test_a_back_off_doubles_up_to_its_longest_and_begins_anew_after_a_healthy_life() -> None:
    backoff = Backoff(0.5, 3.0, healthy_seconds=30.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failed(lived_seconds=30.5) == 0.5 and backoff.failures == 0
    assert [backoff.failed(lived_seconds=1.0), backoff.failed()] == [0.5, 1.0]
    backoff.reset()
    assert backoff.failed() == 0.5
    for _ in range(5000):
        assert backoff.failed() <= 3.0


def test_a_spread_back_off_waits_between_its_share_and_all_of_it() -> None:
    waits = [Backoff(4.0, 4.0, spread=0.5).failed() for _ in range(200)]
    assert 2.0 <= min(waits) < 2.5 and 3.5 < max(waits) <= 4.0


def test_a_workers_id_names_its_pod() -> None:
    assert pod_uid_of(make_worker_id("uid-1", "ab12")) == "uid-1"
    assert pod_uid_of("no pod") == ""


@pytest.mark.parametrize(
    ("pods", "settled", "ended", "gone"),
    [
        (frozenset(), False, False, False),
        (frozenset({"uid"}), False, False, False),
        (frozenset({"other"}), False, False, True),
        (frozenset(), True, False, True),
        (frozenset({"uid"}), False, True, True),
    ],
)
def test_a_worker_that_this_controller_never_heard_of_is_gone_only_where_it_cannot_come(
    pods: frozenset[str], settled: bool, ended: bool, gone: bool
) -> None:
    members = Membership(dead_after_seconds=10.0, heartbeat_seconds=0.5)
    if ended:
        members.end("uid/1", "")
    assert members.loss_of("uid/1", pods, settled) == ("worker uid/1 is gone" if gone else "")
