"""The oracle of the chaos runs on timelines made by hand: what it accepts, and that it refuses each thing that may not happen."""

from dataclasses import replace

import pytest

from frostline_contract.plan import GenerationId, SeenVote
from tests.chaos.acts import Act
from tests.chaos.lateness import Lateness, lateness
from tests.chaos.oracle import EITHER, LOST, WHOLE, Verdict
from tests.chaos.timeline import Complete, Hit
from tests.unit.chaos_timelines import BACK, BARE, FIRST, VOTED_AT, hit, life, verdict


def test_a_killed_worker_with_a_buddy_costs_nothing() -> None:
    found = verdict(FIRST, life(2, "survivors", 14, "abd"), hits=(hit("kill_worker", "c", 14, "norms"),))
    assert found.complaints == ()
    assert [recovery.expected for recovery in found.recoveries] == [WHOLE]
    assert found.backs == []


def test_who_dies_as_it_enters_one_step_behind_takes_no_step_back() -> None:
    """c raises as it commits step 14, which it is to do late, and is killed before it enters: the others have committed 14."""
    hits = (hit("raise", "c", 14, "commit"), hit("kill_worker", "c", 13, "reshape", generation="1.2", at=VOTED_AT + 10))
    entered, after = life(2, "survivors", 15, "abcd", recorded=()), life(3, "survivors", 15, "abd")
    assert verdict(FIRST, entered, after, hits=hits).complaints == ()
    before = verdict(FIRST, entered, life(3, "survivors", 14, "abd"), hits=hits)
    assert any("goes on from step 13, the faults allow" in complaint for complaint in before.complaints)


def test_who_dies_as_the_run_goes_back_takes_it_no_step_on() -> None:
    """c and d die and the run goes back to step 10; a, whose own last step is 14, is killed as it enters (seed 1127204)."""
    hits = (*(hit("kill_worker", worker, 14) for worker in "cd"),
            hit("kill_worker", "a", 14, "reshape", generation="1.2", at=VOTED_AT + 10))  # fmt: skip
    back, after = life(2, "checkpoint", 11, "ab", lineage=1, recorded=()), life(3, "survivors", 11, "b", lineage=1)
    assert verdict(FIRST, back, after, hits=hits, **BACK).complaints == ()
    further = verdict(FIRST, back, life(3, "survivors", 14, "b", lineage=1), hits=hits, **BACK)
    assert any("goes on from step 13, the faults allow" in complaint for complaint in further.complaints)


def test_going_back_where_nothing_is_lost_is_refused() -> None:
    found = verdict(FIRST, life(2, "checkpoint", 11, "abd", lineage=1), hits=(hit("kill_worker", "c", 14),), **BACK)
    assert any("went back to step 10, but whole" in complaint for complaint in found.complaints)


def test_owner_and_buddy_together_go_back_to_the_newest_checkpoint() -> None:
    hits = (hit("kill_worker", "c", 14), hit("kill_worker", "d", 14))
    found = verdict(FIRST, life(2, "checkpoint", 11, "ab", lineage=1), hits=hits, **BACK)
    assert found.complaints == ()
    assert [(recovery.expected, recovery.missing) for recovery in found.recoveries] == [(LOST, (2,))]
    assert found.backs == [10]


def test_the_state_that_leavers_kept_is_better_than_an_older_checkpoint_and_no_better_than_a_newer_one() -> None:
    """Training has switched from four workers to a at step 13, and a dies in step 16; b, c and d keep step 13 (seed 20261448)."""
    alone = life(2, "continue", 14, "a", leavers=("b", "c", "d"))
    again = life(3, "survivors", 14, "b", lineage=1, leavers=("c", "d"))
    dead = (hit("kill_worker", "a", 16, generation="1.2", at=VOTED_AT + 10),)
    found = verdict(FIRST, alone, again, hits=dead, cuts=((1, 13),))
    assert (found.complaints, found.backs) == ((), [13])
    newer = verdict(FIRST, alone, again, hits=dead, cuts=((1, 13),), checkpoints=(Complete(0, 15, VOTED_AT + 5),))
    assert newer.complaints == ("1.3 goes on from the left step 13, and a checkpoint of step 15 exists",)
    fewer = verdict(FIRST, alone, replace(again, plan=again.plan.model_copy(update={"leavers": ()})), hits=dead, cuts=((1, 13),))
    assert any("went on, but lost: pieces" in complaint for complaint in fewer.complaints), "b has the pieces of a and b alone"


def test_a_pause_after_a_leave_goes_on_at_its_step_and_a_pause_without_one_is_refused() -> None:
    left, on = hit("leave", "c", 2), life(2, "checkpoint", 3, "wxyz", lineage=1)
    fewer = Hit(Act("resize", 2, value=2), (), 2, "", "", (), VOTED_AT - 10)
    for asked in (left, fewer):
        assert verdict(FIRST, on, hits=(asked,), pauses=frozenset((2,))) == Verdict((), ())
    late = verdict(FIRST, life(2, "checkpoint", 2, "wxyz", lineage=1), hits=(left,), pauses=frozenset((1,)))
    assert any("goes on at step 2, the run was drained at step 2" in complaint for complaint in late.complaints)
    assert verdict(FIRST, on, hits=(), pauses=frozenset((2,))).complaints
    assert verdict(FIRST, on, hits=(left,)).complaints


def test_who_dies_a_step_after_a_switch_has_seen_its_first_vote_though_no_record_says_so() -> None:
    """Leavers have dropped their state by then; a step earlier they all have it (seed 1140052 of 2026-11-26)."""
    switched = life(2, "continue", 14, "ab", buddies=False, leavers=("c", "d"), recorded=())
    back = life(3, "checkpoint", 11, "a", lineage=1)
    for step, complaint in ((15, False), (14, True)):
        dead = hit("kill_worker", "b", step, generation="1.2", at=VOTED_AT + 10)
        found = verdict(FIRST, switched, back, hits=(dead,), checkpoints=BACK["checkpoints"], cuts=BACK["cuts"])
        assert any("but whole" in one for one in found.complaints) == complaint, found


def test_the_last_of_a_lost_node_may_be_answered_before_it_ends() -> None:
    """Its peers' ends reach it before its own does: it reports, is given a plan, and ends in that one."""
    found = verdict(
        FIRST, life(2, "checkpoint", 11, "a", lineage=1, recorded=()), life(3, "checkpoint", 11, "xy", lineage=2),
        hits=(hit("kill_node", "abcd", 14),),
        checkpoints=BACK["checkpoints"],
        cuts=((1, 10), (2, 10)),
        failures=((1, "b is gone; back to step 10: units [1] are held by nobody"), (2, "back to step 10: units [0] are held")),
    )  # fmt: skip
    assert found.complaints == ()
    assert found.backs == [10, 10]


def test_going_on_with_a_unit_that_nobody_has_is_refused() -> None:
    hits = (hit("kill_worker", "c", 14), hit("kill_worker", "d", 14))
    found = verdict(FIRST, life(2, "survivors", 14, "ab"), hits=hits)
    assert any("went on, but lost: pieces [2]" in complaint for complaint in found.complaints)


def test_two_that_are_not_each_others_buddies_cost_nothing() -> None:
    hits = (hit("kill_worker", "a", 14), hit("kill_worker", "c", 14))
    assert verdict(FIRST, life(2, "survivors", 14, "bd"), hits=hits).complaints == ()


@pytest.mark.parametrize("kind", ["kill_worker", "kill_pod", "kill_node", "stop", "deadlock", "cut_node"])
def test_without_buddies_each_way_to_go_loses_its_units(kind: str) -> None:
    found = verdict(BARE, life(2, "checkpoint", 11, "abd", lineage=1), hits=(hit(kind, "c", 14),), **BACK)
    assert found.complaints == ()
    assert found.recoveries[0].missing == (2,)


@pytest.mark.parametrize("kind", ["raise", "late_commit"])
def test_an_error_of_a_worker_that_lives_loses_nothing_even_without_buddies(kind: str) -> None:
    phase = "tally" if kind == "late_commit" else "prepared"
    start = 15 if kind == "late_commit" else 14
    assert verdict(BARE, life(2, "survivors", start, "abcd"), hits=(hit(kind, "c", 14, phase),)).complaints == ()


def test_a_torn_unit_is_lost_only_where_nobody_keeps_it() -> None:
    torn = hit("tear", "c", 14, "update", torn=(2,))
    assert verdict(FIRST, life(2, "survivors", 15, "abcd"), hits=(torn,)).complaints == ()
    assert verdict(BARE, life(2, "checkpoint", 11, "abcd", lineage=1), hits=(torn,), **BACK).complaints == ()
    assert verdict(BARE, life(2, "survivors", 15, "abcd"), hits=(torn,)).complaints != ()


def test_a_long_cut_loses_what_only_the_cut_one_has_and_a_short_one_is_no_failure() -> None:
    long = hit("cut", "c", 14, seconds=30.0)
    assert verdict(BARE, life(2, "checkpoint", 11, "abd", lineage=1), hits=(long,), **BACK).complaints == ()
    short = verdict(BARE, life(2, "survivors", 14, "abcd"), hits=(hit("cut", "c", 14, seconds=1.0),))
    assert any("that no fault explains" in complaint for complaint in short.complaints)


def test_an_answer_may_wait_for_whom_a_cut_kept_from_being_heard() -> None:
    """Who was given up is heard again before the answer, and is a member of it."""
    answer = life(2, "survivors", 14, "abcd")
    healed = verdict(BARE, answer, hits=(hit("cut", "c", 14, seconds=30.0, at=VOTED_AT - 40),))
    assert healed.complaints == ()
    still_cut = verdict(BARE, answer, hits=(hit("cut", "c", 14, seconds=30.0, at=VOTED_AT - 10),))
    assert "no fault explains" in still_cut.complaints[0]


def test_a_failure_that_no_fault_explains_is_refused() -> None:
    found = verdict(FIRST, life(2, "survivors", 14, "abcd"), hits=())
    assert any("that no fault explains" in complaint for complaint in found.complaints)


def test_an_error_in_a_later_generation_is_not_what_an_earlier_one_answers() -> None:
    """1.2 has no record of its own; 1.3's first one is younger than the error in it."""
    hits = (
        hit("late_commit", "d", 14, "tally"),
        hit("kill_worker", "b", 14, "checkpoint", generation="1.2", at=VOTED_AT + 1),
        hit("late_commit", "a", 15, "tally", generation="1.3", at=VOTED_AT + 2),
    )
    answers = life(2, "survivors", 15, "abcd", recorded=()), life(3, "survivors", 15, "acd", recorded=(15,))
    found = verdict(FIRST, *answers, life(4, "survivors", 16, "acd"), hits=hits)
    assert found.complaints == ()
    assert [[one.generation for one in recovery.hits] for recovery in found.recoveries] == [["1.1"], ["1.2"], ["1.3"]]


def test_each_failure_needs_a_fault_of_its_own() -> None:
    lives = (FIRST, life(2, "survivors", 14, "abd"), life(3, "survivors", 20, "ab"))
    first = hit("kill_worker", "c", 14)
    second = hit("kill_worker", "d", 20, generation="1.2", at=VOTED_AT + 50)
    assert verdict(*lives, hits=(first, second)).complaints == ()
    alone = verdict(*lives, hits=(first,))
    assert any("1.3 answers a failure of 1.2 that no fault explains" in complaint for complaint in alone.complaints)


def test_who_died_after_its_report_belongs_to_the_next_failure() -> None:
    """d is named in the answer and dies before its first vote; c's units, kept by d, are kept by it no longer."""
    answer = life(2, "survivors", 14, "abd", recorded=())
    hits = (hit("kill_worker", "c", 14), hit("kill_worker", "d", 13, "reshape", generation="1.2", at=VOTED_AT - 5))
    back = verdict(FIRST, answer, life(3, "checkpoint", 11, "ab", lineage=1), hits=hits, **BACK)
    assert back.complaints == ()
    assert [recovery.expected for recovery in back.recoveries] == [WHOLE, EITHER], "its move may have been over"


@pytest.mark.parametrize("left", ["torn", "killed"])
def test_what_was_lost_before_an_answer_that_never_ran_is_lost_for_the_next_one_too(left: str) -> None:
    """d's unit is torn in its buddy a, or gone with it; d is to give it in the answer, and is cut off before anybody has it."""
    first = hit("tear", "a", 14, "update", torn=(0, 3)) if left == "torn" else hit("kill_worker", "a", 14, "commit")
    members = "abc" if left == "torn" else "bc"
    answer = life(2, "survivors", 15, members, recorded=(), leavers=("d",))
    cut = hit("cut_node", "d", 14, generation="1.2", at=VOTED_AT - 5)
    back = verdict(FIRST, answer, life(3, "checkpoint", 11, members, lineage=1), hits=(first, cut), **BACK)
    assert back.complaints == ()
    assert [recovery.expected for recovery in back.recoveries] == [WHOLE, EITHER], "its move may have been over"
    assert 3 in back.recoveries[1].missing


@pytest.mark.parametrize(
    ("phase", "first", "right"),
    [
        ("exchange", 14, True), ("exchange", 15, False), ("exchange", 13, False), ("vote", 14, True), ("vote", 15, False),
        ("seen", 14, True), ("seen", 15, True), ("seen", 16, False), ("commit", 15, True), ("commit", 13, False),
    ],
)  # fmt: skip
def test_no_step_is_skipped_or_redone_beyond_a_prepared_one(phase: str, first: int, right: bool) -> None:
    found = verdict(FIRST, life(2, "survivors", first, "abd"), hits=(hit("kill_worker", "c", 14, phase),))
    assert (found.complaints == ()) is right, found.complaints


@pytest.mark.parametrize(("counter", "kind", "right"), [(3, "kill_worker", True), (2, "kill_worker", False), (3, "raise", False)])
def test_a_lineage_begins_where_a_prepared_plan_may_have_voted_unheard(counter: int, kind: str, right: bool) -> None:
    """The plan between was prepared for who died; one that only failed says that it has not run it."""
    answer = life(counter, "survivors", 15, "abd" if kind == "kill_worker" else "abcd", lineage=1)
    answer = replace(answer, plan=answer.plan.model_copy(update={"base": FIRST.plan.generation}))
    complaints = verdict(FIRST, answer, hits=(hit(kind, "c", 14, "between"),)).complaints
    assert any("begins lineage 1" in complaint for complaint in complaints) is not right


def test_a_lineage_begins_where_a_plan_that_was_switched_to_may_have_voted_unheard() -> None:
    """e alone runs the second generation, and dies in it before anybody is told that it has begun: the answer is to the first."""
    switched = life(2, "continue", 15, "e", recorded=())
    plan = life(3, "survivors", 15, "abcd", lineage=1).plan.model_copy(update={"base": FIRST.plan.generation})
    answer = replace(life(3, "survivors", 15, "abcd", lineage=1), plan=plan)
    killed = hit("kill_worker", "e", 15, "checkpoint", generation="1.2", at=VOTED_AT + 10)
    assert not any("begins lineage" in complaint for complaint in verdict(FIRST, switched, answer, hits=(killed,)).complaints)
    received = life(3, "survivors", 15, "abcd", lineage=1)
    assert any("begins lineage 1" in complaint for complaint in verdict(FIRST, switched, received, hits=(killed,)).complaints)


def test_going_on_keeps_the_lineage() -> None:
    found = verdict(FIRST, life(2, "survivors", 14, "abd", lineage=1), hits=(hit("kill_worker", "c", 14),))
    assert any("begins lineage 1" in complaint for complaint in found.complaints)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"checkpoints": (Complete(0, 5, 50.0), Complete(0, 10, 60.0), Complete(0, 12, 70.0))}, "the newest complete checkpoint"),
        ({"failures": ((1, "c is gone"),)}, "back to step 10"),
        ({"failures": ((0, "back to step 10"),)}, "back to step 10"),
        ({"cuts": ()}, "has no cut to step 10"),
    ],
)
def test_going_back_is_exact_and_told(change: dict, says: str) -> None:
    found = verdict(BARE, life(2, "checkpoint", 11, "abd", lineage=1), hits=(hit("kill_worker", "c", 14),), **{**BACK, **change})
    assert any(says in complaint for complaint in found.complaints), found.complaints


def test_a_checkpoint_that_completes_during_the_failure_may_be_taken() -> None:
    dying = (Complete(0, 5, 50.0), Complete(0, 10, 60.0), Complete(0, 12, VOTED_AT - 5))
    found = verdict(
        BARE, life(2, "checkpoint", 11, "abd", lineage=1), hits=(hit("kill_worker", "c", 14),), **{**BACK, "checkpoints": dying}
    )
    assert found.complaints == ()


def test_a_restore_without_a_new_lineage_is_refused() -> None:
    found = verdict(BARE, life(2, "checkpoint", 11, "abd"), hits=(hit("kill_worker", "c", 14),), **BACK)
    assert any("which is not a new one" in complaint for complaint in found.complaints)


def test_nobody_is_given_up_without_a_fault() -> None:
    answer = replace(life(2, "survivors", 14, "ab"), reported=frozenset("ab"), ended=frozenset("c"), silent=frozenset("d"))
    found = verdict(FIRST, answer, hits=(hit("kill_worker", "c", 14),))
    assert any("counts d as silent: no fault befell it" in complaint for complaint in found.complaints)


@pytest.mark.parametrize(("recorded", "says"), [((12, 13), False), ((), True)])
def test_a_leaver_may_be_gone_once_it_has_given_what_it_had(recorded: tuple[int, ...], says: bool) -> None:
    switched = life(2, "continue", 12, "abc", leavers=("d",), recorded=recorded)
    answer = replace(
        life(3, "survivors", 14 if recorded else 12, "ab"), reported=frozenset("ab"), ended=frozenset("c"), silent=frozenset("d")
    )
    killed = hit("kill_worker", "c", 14 if recorded else 12, generation="1.2", at=VOTED_AT + 10)
    complaints = verdict(FIRST, switched, answer, hits=(killed,)).complaints
    assert any("counts d as silent" in complaint for complaint in complaints) is says


def test_a_world_that_may_live_on_unheard_is_fenced_by_a_new_epoch() -> None:
    cut = (hit("cut_node", "abcd", 14),)
    fenced = verdict(FIRST, life(2, "checkpoint", 11, "efgh", lineage=1, run_epoch=1), hits=cut, **BACK)
    assert fenced.complaints == ()
    bare = verdict(FIRST, life(2, "checkpoint", 11, "efgh", lineage=1), hits=cut, **BACK)
    assert any("has run epoch 0, expected 1" in complaint for complaint in bare.complaints)
    killed = verdict(
        FIRST, life(2, "checkpoint", 11, "efgh", lineage=1, run_epoch=1), hits=(hit("kill_node", "abcd", 14),), **BACK
    )
    assert any("has run epoch 1, expected 0" in complaint for complaint in killed.complaints)


def test_a_late_commit_is_seen() -> None:
    vote = SeenVote(lineage=0, step=14, generation=GenerationId(incarnation=1, counter=1), slots=(0.0,))
    answer, error = life(2, "survivors", 15, "abcd", vote=vote), (hit("late_commit", "b", 14, "tally"),)
    assert [recovery.late for recovery in verdict(FIRST, answer, hits=error, late=frozenset([("1.1", 14)])).recoveries] == [True]
    assert [recovery.late for recovery in verdict(FIRST, answer, hits=error, late=frozenset([("1.1", 13)])).recoveries] == [False]


def test_a_cut_makes_late_what_cannot_pass_it() -> None:
    committed = {step: step * 0.1 for step in range(1, 41)}
    members = dict.fromkeys(committed, frozenset("ab"))
    cut = hit("cut", "a", 6, at=0.65, seconds=3.0)
    assert lateness((cut,), committed, members, 120.0, 60.0) == Lateness(frozenset(), frozenset())
    found = lateness((cut,), committed, members, 0.2, 60.0)
    assert (found.must, found.may) == ({1, 2, 3}, {1, 2, 3, 4}), "the fourth is due a moment before the cut heals"
    short = lateness((hit("cut", "a", 6, at=0.65, seconds=0.6),), committed, members, 0.2, 60.0)
    assert 1 not in short.must
    assert 4 not in short.may
    members |= dict.fromkeys(range(12, 41), frozenset("b"))
    left = lateness((cut,), committed, members, 0.2, 60.0)
    assert (left.must, left.may) == ({1}, {1, 2, 3, 4}), "nobody waits for a worker that has left the shape"
