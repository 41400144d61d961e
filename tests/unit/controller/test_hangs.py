"""The member that hangs: the earliest of a stuck world, after its phase's deadline, never before; never a slow healthy one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline_contract.phases import Phase
from frostline_controller.members.hangs import DEADLINE_FACTOR, EQUAL_FACTOR, FIRST_FACTOR, DevicePlace, MemberProgress, judge

FLOOR, SILENT = 60.0, 2.0
USUAL = {"schedule": 0.02, "exchange": 0.003, "vote": 0.002, "commit": 0.001, "load": 0.001}


def member(name: str, phase: str, seconds: float, step: int = 10, **more) -> MemberProgress:
    return MemberProgress(name, more.pop("entered", True), step, phase, seconds, p99=more.pop("p99", USUAL), **more)


def blamed(members: list[MemberProgress], floor: float = FLOOR, predicted: float = 0.0) -> str | None:
    verdict = judge(members, floor, SILENT, predicted)
    return None if verdict is None else verdict.worker_id


def test_a_deadlock_in_the_schedule_of_one_stage_is_that_stages() -> None:
    """All members of its replica are in the same phase; those that wait for others are recognized by their `waiting`."""
    members = [
        member("a", "schedule", 61, waiting=True),
        member("b", "schedule", 61.2),
        member("c", "exchange", 61, waiting=True),
        member("d", "exchange", 61, waiting=True),
    ]
    verdict = judge(members, FLOOR, SILENT)
    assert verdict is not None
    assert (verdict.worker_id, verdict.phase, verdict.step, verdict.deadline) == ("b", "schedule", 10, FLOOR)
    assert verdict.reason == "b hangs in schedule after step 10, for 61.2 s; the deadline is 60.0 s"
    assert blamed([replace(one, phase_seconds=one.phase_seconds - 2) for one in members]) is None


def test_who_has_not_committed_yet_is_earlier_than_who_computes_the_next_step() -> None:
    members = [member("a", "commit", 61, step=9), member("b", "exchange", 61, waiting=True), member("c", "load", 61)]
    assert blamed(members) == "a"


def test_waiting_long_in_the_vote_is_no_fault_while_another_still_computes() -> None:
    """The slow member's evaluation has its own, longer deadline."""
    slow = member("a", "evaluate", 200, p99={**USUAL, "evaluate": 80.0})
    members = [slow, member("b", "vote", 200, waiting=True), member("c", "vote", 200, waiting=True)]
    assert blamed(members) is None
    assert blamed([replace(slow, phase_seconds=401), *members[1:]]) == "a"


def test_a_frozen_process_is_blamed_by_those_that_wait_for_it() -> None:
    frozen = member("a", "vote", 0.01, step=9, heartbeat_age=61.5)
    members = [frozen, member("b", "exchange", 60.5, waiting=True), member("c", "exchange", 60.5, waiting=True)]
    verdict = judge(members, FLOOR, SILENT)
    assert verdict is not None
    assert verdict.worker_id == "a"
    assert verdict.reason == (
        "a is silent for 61.5 s (last heard in vote after step 9), and b waits in exchange after step 10, for 60.5 s; "
        "the deadline is 60.0 s"
    )
    assert blamed([replace(one, phase_seconds=59.9) for one in members[1:]] + [frozen]) is None


def test_who_is_cut_off_while_training_goes_on_does_not_hang() -> None:
    cut = member("a", "vote", 0.01, heartbeat_age=500.0)
    assert blamed([cut, member("b", "schedule", 0.02, step=900), member("c", "vote", 0.001, step=900, waiting=True)]) is None


def test_a_slow_one_that_has_just_moved_on_blames_nobody_whose_heartbeat_is_older() -> None:
    """b was released 0.1 s ago; a's last heartbeat, from before that, still reports that a waits."""
    members = [member("a", "exchange", 65, waiting=True, heartbeat_age=0.4), member("b", "norms", 0.1, p99={"schedule": 70.0})]
    assert blamed(members) is None


def test_a_phase_that_nobody_has_finished_has_ten_floors() -> None:
    fresh = [member("a", "schedule", 100, p99={}), member("b", "schedule", 100, p99={}, waiting=True)]
    assert blamed(fresh) is None
    late = [replace(one, phase_seconds=FIRST_FACTOR * FLOOR + 1) for one in fresh]
    assert blamed(late) == "a"
    assert blamed(late, predicted=2 * FLOOR) is None, "a step that is planned to be long has ten of its own"
    assert blamed([late[0], replace(late[1], p99=USUAL)]) == "a"
    assert blamed([replace(fresh[0]), replace(fresh[1], p99=USUAL)]) == "a", "one member's history serves all"


def test_nobody_is_blamed_where_all_stand_alike_until_all_are_fenced() -> None:
    alike = [member(name, "exchange", 100, waiting=True) for name in "abc"]
    assert blamed(alike) is None
    stuck = [replace(one, phase_seconds=EQUAL_FACTOR * FLOOR + 1) for one in alike]
    verdict = judge(stuck, FLOOR, SILENT)
    assert verdict is not None
    assert verdict.worker_id == ""
    assert verdict.reason == (
        "all 3 members stand in exchange after step 10, for 181.0 s; "
        "the deadline for that is 180.0 s, and nobody is behind another"
    )
    reading = [replace(one, phase="load", waiting=False) for one in alike]
    assert blamed(reading) is None, "a file system that hangs for all is nobody's fault"
    assert blamed([replace(one, phase_seconds=181) for one in reading]) == ""


def test_a_lone_worker_is_to_blame_itself() -> None:
    assert blamed([member("a", "schedule", 61)]) == "a"
    assert blamed([member("a", "schedule", 59)]) is None


def test_who_has_not_entered_is_earlier_than_who_has() -> None:
    joiner = member("j", "start", 601, entered=False, p99={})
    members = [joiner, member("a", "reshape", 601, entered=False, waiting=True, p99={}), member("b", "load", 601, waiting=True)]
    assert blamed(members) == "j"


@pytest.mark.parametrize("phase", ["start", "spare"])
def test_who_is_ready_and_does_not_enter_has_one_floor(phase: str) -> None:
    """It has only to read that the others have switched; they wait for it in their first reshape, which has ten floors."""
    inside = [member(name, "reshape", 70, entered=False, waiting=True, p99={}) for name in "ab"]
    joiner = member("j", phase, 61, entered=False, p99={})
    assert blamed([joiner, *inside]) is None, "a plan of a restart: it may still build"
    assert blamed([replace(joiner, ready=True), *inside]) == "j"
    assert blamed([replace(joiner, ready=True, phase_seconds=59), *inside]) is None
    moving = replace(joiner, ready=True, phase="reshape")
    assert blamed([moving, *inside]) is None, "it enters"


def test_at_the_end_only_who_still_has_something_to_do_is_judged() -> None:
    ended = [member("a", "publish", 100, p99={}), member("b", "done", 5000), member("c", "done", 5000)]
    assert blamed(ended) is None
    assert blamed([replace(ended[0], phase_seconds=601), *ended[1:]]) == "a"
    assert blamed(ended[1:]) is None


def on_gpu(name: str, thread: str, device: str, waits: bool, waiting: bool = True, seconds: float = 61) -> MemberProgress:
    """A member over NCCL. thread, device: phases. waits: the device does, for others; waiting: the thread does."""
    place = DevicePlace(device, seconds, waits) if device else None
    return member(name, thread, seconds, waiting=waiting, device=place)


WAITS, COMPUTES = True, False
STUCK_DEVICES: dict[str, tuple[list[MemberProgress], str | None]] = {
    "the first stage of replica 1 is stuck; its thread has run ahead to the fence like all others": (
        [
            on_gpu("dp0-pp0", "norms", "exchange", WAITS),
            on_gpu("dp0-pp1", "norms", "exchange", WAITS),
            on_gpu("dp1-pp0", "norms", "schedule", COMPUTES),
            on_gpu("dp1-pp1", "norms", "schedule", WAITS),
        ],
        "dp1-pp0",
    ),
    "its thread has run ahead and is the only one that waits; the others' threads are busy handing over": (
        [
            on_gpu("dp0-pp0", "exchange", "exchange", WAITS, waiting=False),
            on_gpu("dp0-pp1", "exchange", "exchange", WAITS, waiting=False),
            on_gpu("dp1-pp0", "norms", "schedule", COMPUTES),
            on_gpu("dp1-pp1", "exchange", "schedule", WAITS, waiting=False),
        ],
        "dp1-pp0",
    ),
    "the last stage of replica 0 is stuck; the first one waits for its gradients": (
        [
            on_gpu("dp0-pp0", "norms", "schedule", WAITS),
            on_gpu("dp0-pp1", "norms", "schedule", COMPUTES),
            on_gpu("dp1-pp0", "norms", "exchange", WAITS),
            on_gpu("dp1-pp1", "norms", "exchange", WAITS),
        ],
        "dp0-pp1",
    ),
    "a device is stuck in the norms; all others are idle, their threads in the vote": (
        [
            member("dp0-pp0", "vote", 61, waiting=True),
            on_gpu("dp0-pp1", "norms", "norms", COMPUTES),
            member("dp1-pp0", "vote", 61, waiting=True),
            member("dp1-pp1", "vote", 61, waiting=True),
        ],
        "dp0-pp1",
    ),
    "a device is stuck in the update; the others wait for its next step": (
        [
            on_gpu("dp0-pp0", "update", "update", COMPUTES, waiting=False),
            member("dp0-pp1", "norms", 61, step=11, waiting=True, device=DevicePlace("schedule", 61, WAITS)),
        ],
        "dp0-pp0",
    ),
    "a thread is stuck before it hands anything over: its device has nothing to do": (
        [
            member("dp0-pp0", "load", 61),
            on_gpu("dp0-pp1", "norms", "schedule", WAITS),
        ],
        "dp0-pp0",
    ),
    "a process is stopped: it is silent, and all other devices wait": (
        [
            member("dp0-pp0", "schedule", 0.01, heartbeat_age=61.5),
            on_gpu("dp0-pp1", "norms", "schedule", WAITS),
        ],
        "dp0-pp0",
    ),
    "all devices wait at one place: a message is lost, and nobody is blamed": (
        [on_gpu(name, "norms", "exchange", WAITS) for name in "ab"],
        None,
    ),
    "a device computes for long, and comes on": (
        [
            on_gpu("dp0-pp0", "norms", "schedule", COMPUTES, seconds=1.0),
            on_gpu("dp0-pp1", "norms", "schedule", WAITS),
        ],
        None,
    ),
    "a device stands still while its thread still hands work over": (
        [
            member("dp0-pp0", "schedule", 1.0, device=DevicePlace("load", 61, COMPUTES)),
            on_gpu("dp0-pp1", "norms", "schedule", WAITS),
        ],
        None,
    ),
}


@pytest.mark.parametrize("case", STUCK_DEVICES)
def test_the_member_whose_own_device_is_stuck_is_blamed(case: str) -> None:
    members, culprit = STUCK_DEVICES[case]
    p99 = {**USUAL, "norms": 0.02, "update": 0.001}
    assert blamed([replace(one, p99=p99) for one in members]) == culprit


def test_by_the_threads_places_alone_a_healthy_member_would_be_excluded() -> None:
    """The verdict on the same world without the devices' phases: the second case of the table."""
    members, culprit = STUCK_DEVICES[next(case for case in STUCK_DEVICES if "the only one that waits" in case)]
    without = [replace(one, device=None) for one in members]
    assert blamed(without) not in (None, culprit)
    verdict = judge(members, FLOOR, SILENT)
    assert verdict is not None
    assert verdict.reason == "dp1-pp0 (its device) hangs in schedule after step 10, for 61.0 s; the deadline is 60.0 s"


@st.composite
def worlds(draw) -> list[MemberProgress]:
    count = draw(st.integers(1, 6))
    seconds = st.sampled_from([0.0, 0.1, 1.0, 2.5, 9.0, 10.5, 31.0, 60.5, 150.0, 601.0, 1e4])
    return [
        MemberProgress(
            worker_id=f"w{i}",
            entered=draw(st.booleans()),
            step=draw(st.integers(0, 2)),
            phase=draw(st.sampled_from([*Phase, "a user's own"])),
            phase_seconds=draw(seconds),
            waiting=draw(st.booleans()),
            p99=draw(st.dictionaries(st.sampled_from(list(Phase)), st.sampled_from([0.01, 1.0, 20.0]), max_size=6)),
            heartbeat_age=draw(st.sampled_from([0.0, 0.5, 3.0, 100.0])),
        )
        for i in range(count)
    ]


@settings(max_examples=800, deadline=None)
@given(worlds(), st.sampled_from([1.0, 10.0, 60.0]), st.sampled_from([0.0, 30.0]))
def test_never_one_that_is_ahead_and_never_before_the_floor(
    members: list[MemberProgress], floor: float, predicted: float
) -> None:
    verdict = judge(members, floor, SILENT, predicted)
    if verdict is None:
        return
    p99 = {}
    for one in members:
        for phase, seconds in one.p99.items():
            p99[phase] = max(p99.get(phase, 0.0), seconds)
    received = [one for one in members if one.heartbeat_age <= SILENT and one.phase != "done"]
    first = min(one.place for one in received)
    at_first = [one for one in received if one.place == first]
    late = [one for one in at_first if one.phase_seconds == verdict.seconds]
    assert verdict.seconds > verdict.deadline >= floor
    assert late, "a time that somebody told"
    # Two phases may be one place of a step, each with a history: the verdict is on one of them.
    assert verdict.deadline >= min(DEADLINE_FACTOR * p99.get(one.phase, 0.0) for one in late)
    assert all(one.phase_seconds >= SILENT for one in received), "while anybody moves, nobody hangs"
    if verdict.worker_id:
        (suspect,) = [one for one in members if one.worker_id == verdict.worker_id]
        assert suspect.place <= first, "it is ahead of a member that is heard"
        assert not suspect.waiting or suspect.heartbeat_age > SILENT or all(one.waiting for one in at_first)
    else:
        assert len({one.place for one in members}) == 1
        assert verdict.deadline >= EQUAL_FACTOR * floor


@settings(max_examples=300, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter_to_who_is_at_fault(members: list[MemberProgress], random) -> None:
    distinct = [replace(one, phase_seconds=one.phase_seconds + i / 64, heartbeat_age=one.heartbeat_age + i / 64)
                for i, one in enumerate(members)]  # fmt: skip
    shuffled = random.sample(distinct, len(distinct))
    assert judge(distinct, 10.0, SILENT) == judge(shuffled, 10.0, SILENT)
