"""Failures by hand: who may go on, from which state, and the answers that are never given (docs/protocols.md 4)."""

from dataclasses import replace

import pytest

from frostline_controller.recovery.answer import answer
from frostline_controller.recovery.facts import GoBack, GoOn, NewEpoch, SurvivorReport, Wait
from tests.unit.controller.failures import failure, generation, plan, report, tag, vote

LOW, HIGH = range(2), range(2, 4)
PIPE = plan(1, "ABCD", pp_degree=2)
"""A and B hold units 0 and 1, C and D hold 2 and 3 (replica by replica: see the placement)."""
FIRST, LAST = (tuple(PIPE.placement.owners(unit)) for unit in (0, 3))


def pipe_reports(state_first, state_last, **fields):
    """Return the reports of one worker of each stage: the first stage's and the last stage's."""
    return report(FIRST[0], state_first, LOW, **fields), report(LAST[0], state_last, HIGH, **fields)


def test_waits_for_every_member_that_is_reached() -> None:
    made = failure(PIPE, report("A", tag(9, 1), LOW), ended="B", silent="C")
    assert answer(made) == Wait(("D",))


def test_who_has_promised_an_older_generation_only_is_asked_again() -> None:
    following = plan(3, "AB", base=1, start="continue", leavers="CD")
    members = [report(worker, tag(9, 1), newest_received=3 if worker != "B" else 1) for worker in "ABCD"]
    assert answer(failure(PIPE, *members, prepared=following)) == Wait(("B",))


def test_joiners_of_a_prepared_plan_are_waited_for() -> None:
    following = plan(2, "ABCDE", base=1, start="continue")
    members = [report(worker, tag(9, 1), newest_received=2) for worker in "ABCD"]
    assert answer(failure(PIPE, *members, prepared=following)) == Wait(("E",))


def test_goes_on_at_the_step_that_all_survivors_hold() -> None:
    first, last = pipe_reports(tag(9, 1), tag(9, 1))
    found = answer(failure(PIPE, first, last, ended=FIRST[1] + LAST[1]))
    assert found == GoOn(tag(9, 1), ((FIRST[0],),) * 2 + ((LAST[0],),) * 2, found.state_source, None, True)


def test_a_step_that_one_survivor_committed_is_committed_late_by_the_others() -> None:
    first = report(FIRST[0], tag(9, 1), LOW, prepared=True)
    last = report(LAST[0], tag(10, 1), HIGH, seen=(vote(10, 1),))
    found = answer(failure(PIPE, first, last, ended=FIRST[1] + LAST[1]))
    assert isinstance(found, GoOn)
    assert (found.state, found.vote, found.state_source, found.extends_all) == (tag(10, 1), vote(10, 1), LAST[0], True)
    assert found.holders == ((FIRST[0],),) * 2 + ((LAST[0],),) * 2


def test_a_vote_that_somebody_saw_is_enough_where_nobody_has_committed() -> None:
    first, last = pipe_reports(tag(9, 1), tag(9, 1), prepared=True)
    watching = report(FIRST[1], tag(9, 1), LOW, prepared=True, seen=(vote(9, 1), vote(10, 1)))
    found = answer(failure(PIPE, first, last, watching, ended=LAST[1]))
    assert isinstance(found, GoOn)
    assert (found.state, found.vote) == (tag(10, 1), vote(10, 1))
    assert found.holders[0] == tuple(sorted(FIRST))


def test_the_vote_of_a_reporter_that_has_died_since_still_counts_and_its_state_does_not() -> None:
    first, last = pipe_reports(tag(9, 1), tag(9, 1), prepared=True)
    expired = report(FIRST[1], tag(10, 1), LOW, seen=(vote(10, 1),))
    found = answer(failure(PIPE, first, last, expired, ended=FIRST[1] + LAST[1]))
    assert isinstance(found, GoOn)
    assert found.state == tag(10, 1)
    assert all(FIRST[1] not in workers for workers in found.holders)


def test_without_the_prepared_gradients_the_step_before_is_what_is_left_and_a_new_lineage_begins() -> None:
    first, last = report(FIRST[0], tag(9, 1), LOW), report(LAST[0], tag(10, 1), HIGH, seen=(vote(10, 1),))
    kept_unit = report(FIRST[1], tag(9, 1))  # keeps everything at step 9
    found = answer(failure(PIPE, first, last, kept_unit, ended=LAST[1]))
    assert isinstance(found, GoOn)
    assert (found.state, found.extends_all) == (tag(9, 1), False)
    assert all(LAST[0] not in workers for workers in found.holders), "it has gone on: what it has is another state"


def test_who_has_nothing_left_still_tells_what_it_saw() -> None:
    first, last = pipe_reports(tag(9, 1), tag(9, 1))
    torn = report(FIRST[1], tag(10, 1), LOW, torn=(0, 1), seen=(vote(10, 1),))
    found = answer(failure(PIPE, first, last, torn, ended=LAST[1]))
    assert isinstance(found, GoOn)
    assert (found.state, found.extends_all) == (tag(9, 1), False)


def test_prepared_gradients_of_another_generation_lead_nowhere() -> None:
    following = plan(2, "ABCD", pp_degree=2, base=1, start="survivors", holders=dict.fromkeys("ABCD", range(4)))
    first = report(FIRST[0], tag(9, 1), LOW, prepared=True, ran=2, newest_received=2)
    last = report(LAST[0], tag(10, 1), HIGH, ran=2, newest_received=2, seen=(vote(10, 1),))
    found = answer(failure(following, first, last, ended=FIRST[1] + LAST[1]))
    assert isinstance(found, GoBack)


def test_two_generations_votes_on_one_step_are_two_states() -> None:
    first = report(FIRST[0], tag(10, 1), LOW, ran=1, newest_received=2)
    last = report(LAST[0], tag(10, 2), HIGH, ran=2, newest_received=2)
    following = plan(2, "ABCD", pp_degree=2, base=1, start="continue", holders=dict.fromkeys("ABCD", range(4)))
    found = answer(failure(following, first, last, ended=FIRST[1] + LAST[1]))
    assert found == GoBack((0, 1), found.reason)
    assert "[0, 1]" in found.reason


def test_torn_units_come_from_elsewhere_or_the_checkpoint() -> None:
    first = report(FIRST[0], tag(10, 1), LOW, seen=(vote(10, 1),), torn=(1,))
    last = report(LAST[0], tag(10, 1), HIGH)
    assert answer(failure(PIPE, first, last, ended=FIRST[1] + LAST[1])) == GoBack(
        (1,), "units [1] are held by nobody at one step"
    )
    kept_unit = report(LAST[1], tag(9, 1), range(1, 4), prepared=True)
    found = answer(failure(PIPE, first, last, kept_unit, ended=FIRST[1]))
    assert isinstance(found, GoOn)
    assert found.state == tag(10, 1)
    assert found.holders[1] == (LAST[1],)


def test_a_worker_inside_the_update_is_no_state_source_where_another_is_through() -> None:
    inside = report("A", tag(10, 1), range(2), seen=(vote(10, 1),))
    half = report("A", tag(9, 1), range(2), prepared=True, seen=(vote(10, 1),))
    through = report("B", tag(10, 1), range(4), seen=(vote(10, 1),))
    pair = plan(1, "AB", pp_degree=1)
    assert answer(failure(pair, half, through)).state_source == "B"
    assert answer(failure(pair, inside, through)).state_source == "B"


def test_nobody_left_goes_back_without_a_new_epoch() -> None:
    assert answer(failure(PIPE, ended="ABCD")) == GoBack((0, 1, 2, 3), "units [0, 1, 2, 3] are held by nobody at one step")


def test_a_world_that_nobody_reports_from_may_run_on() -> None:
    found = answer(failure(PIPE, silent="ABCD"))
    assert isinstance(found, NewEpoch)
    assert found.generations == (generation(1),)
    assert "generation 1.1 may still run" in found.reason


def test_one_promise_or_one_end_stops_a_generation() -> None:
    stopped = answer(failure(PIPE, report("A", tag(9, 1)), silent="BCD"))
    assert isinstance(stopped, GoOn)
    assert isinstance(answer(failure(PIPE, ended="A", silent="BCD")), GoBack)


class TestPlannedReshape:
    """A and B run generation 1; generation 2 is C and D, prepared: A and B leave."""

    BASE = plan(1, "AB")
    NEXT = plan(2, "CD", base=1, start="continue", leavers="AB")

    def test_the_leavers_promise_does_not_stop_those_who_may_have_switched(self) -> None:
        members = [report(worker, tag(9, 1), newest_received=2, prepared=True) for worker in "AB"]
        found = answer(failure(self.BASE, *members, prepared=self.NEXT, silent="CD"))
        assert isinstance(found, NewEpoch)
        assert found.generations == (generation(2),)

    def test_before_all_are_ready_nobody_has_switched(self) -> None:
        members = [report(worker, tag(9, 1), newest_received=2, prepared=True) for worker in "AB"]
        unreached = replace(failure(self.BASE, *members, prepared=self.NEXT, silent="CD"), votable=False)
        found = answer(unreached)
        assert isinstance(found, GoOn)
        assert (found.state, found.extends_all) == (tag(9, 1), True)

    @pytest.mark.parametrize("knowing", ["A", "B"])
    def test_who_knows_that_it_is_dead_is_enough(self, knowing: str) -> None:
        members = [report(worker, tag(9, 1), newest_received=2, expired=(2,) if worker == knowing else ()) for worker in "AB"]
        found = answer(failure(self.BASE, *members, prepared=self.NEXT, silent="CD"))
        assert isinstance(found, GoOn)
        assert found.state == tag(9, 1)

    def test_switched_by_some_and_not_by_others(self) -> None:
        behind = report("A", tag(9, 1), newest_received=2, prepared=True)
        ahead = report("C", tag(10, 1), newest_received=2, ran=2, seen=(vote(10, 1),), switched=(2,))
        found = answer(failure(self.BASE, behind, ahead, prepared=self.NEXT, ended="BD"))
        assert isinstance(found, GoOn)
        assert (found.state, found.vote) == (tag(10, 1), vote(10, 1))
        assert found.holders == (("A", "C"),) * 4

    def test_the_old_generation_needs_no_reporter_where_its_switching_vote_was_seen(self) -> None:
        ahead = report("C", tag(10, 1), newest_received=2, ran=2, switched=(2,))
        found = answer(failure(self.BASE, ahead, prepared=self.NEXT, silent="ABD"))
        assert isinstance(found, GoOn)
        unaware = report("C", tag(10, 1), newest_received=2, ran=2)
        assert answer(failure(self.BASE, unaware, prepared=self.NEXT, silent="ABD")).generations == (generation(1),)

    def test_a_leavers_word_alone_does_not_say_how_far_the_others_came(self) -> None:
        switched = plan(2, "AC", base=1, start="continue", leavers="B", holders={"A": range(4), "B": range(4)})
        left = report("B", tag(10, 1), newest_received=2, ran=1, switched=(2,))
        found = answer(failure(switched, left, ended="C", silent="A"))
        assert isinstance(found, GoOn)
        assert (found.state, found.extends_all) == (tag(10, 1), False), "A may have seen votes of generation 2"
        member = report("C", tag(10, 1), (), newest_received=2, ran=1)
        assert answer(failure(switched, left, member, silent="A")).extends_all, "C has voted in none of them"

    def test_a_member_that_has_not_seen_the_switch_counts_after_the_plan_is_current(self) -> None:
        switched = plan(2, "AC", base=1, start="continue", leavers="B", holders={"A": range(4), "B": range(4)})
        behind = report("A", tag(9, 1), newest_received=2, ran=1, prepared=True)
        joined = report("C", tag(10, 1), range(2), newest_received=2, ran=2, seen=(vote(10, 1),))
        found = answer(failure(switched, behind, joined, ended="B"))
        assert isinstance(found, GoOn)
        assert (found.state, found.vote) == (tag(10, 1), vote(10, 1))


class TestInterruptedRecovery:
    """Generation 1 failed at step 9 with vote 10 known; generation 2 was to bring A and B to step 10, and failed too."""

    PLAN = plan(
        2, "AB", pp_degree=2, base=1, start="survivors", start_tag=tag(10, 1), start_vote=vote(10, 1),
        holders={"A": range(4), "B": range(2, 4)},
    )  # fmt: skip

    def test_its_vote_counts_as_seen(self) -> None:
        never_entered = report("A", tag(9, 1), prepared=True, newest_received=2, ran=1)
        found = answer(failure(self.PLAN, never_entered, ended="B"))
        assert isinstance(found, GoOn)
        assert (found.state, found.vote, found.state_source) == (tag(10, 1), vote(10, 1), "A")

    def test_state_that_it_does_not_name_is_given_up(self) -> None:
        stray = report("B", tag(11, 1), newest_received=2, ran=1)
        found = answer(failure(self.PLAN, stray, ended="A"))
        assert found == GoBack((0, 1), found.reason)

    def test_what_was_received_on_the_way_in_counts(self) -> None:
        moved = report("B", tag(10, 1), newest_received=2, ran=1)
        giving = report("A", tag(10, 1), range(2), newest_received=2, ran=1)
        found = answer(failure(self.PLAN, moved, giving))
        assert isinstance(found, GoOn)
        assert found.holders == (("A", "B"),) * 2 + (("B",),) * 2

    def test_what_was_given_is_the_state_alone(self) -> None:
        """B's own gradients are of generation 1, and another generation may have voted on their step since."""
        given = self.PLAN.model_copy(update={"start_step": 9, "vote": None})
        back = report("B", tag(9, 1), range(2), newest_received=2, ran=1, prepared=True, seen=(vote(10, 1),))
        holder = report("A", tag(9, 1), range(2, 4), newest_received=2, ran=1, prepared=True)
        found = answer(failure(given, back, holder))
        assert isinstance(found, GoOn)
        assert (found.state, found.holders[0]) == (tag(9, 1), ("B",))

    def test_a_returning_worker_that_it_does_not_name_brings_nothing(self) -> None:
        returning = report("Z", tag(11, 1), newest_received=2, ran=1, seen=(vote(11, 1),))
        held = report("A", tag(10, 1), newest_received=2, ran=2)
        found = answer(failure(self.PLAN, returning, held, ended="B"))
        assert isinstance(found, GoOn)
        assert (found.state, found.extends_all) == (tag(10, 1), True)
        assert found.holders == (("A",),) * 4

    def test_a_promise_below_it_does_not_stop_it(self) -> None:
        assert answer(failure(self.PLAN, report("A", tag(9, 1), newest_received=1, ran=1), ended="B")) == Wait(("A",))

    def test_a_new_lineage_that_it_began_is_not_begun_again(self) -> None:
        lossy = self.PLAN.model_copy(update={"lineage": 1, "vote": None, "start_step": 9, "state_generation": generation(1)})
        assert lossy.start_tag == tag(9, 1)
        behind = report("A", tag(9, 1), newest_received=2, ran=1, seen=(vote(10, 1),))
        found = answer(failure(lossy, behind, ended="B"))
        assert isinstance(found, GoOn)
        assert (found.state, found.extends_all) == (tag(9, 1), True)

    def test_the_first_step_of_a_new_lineage_is_committed_late(self) -> None:
        lossy = self.PLAN.model_copy(update={"lineage": 1, "vote": None, "start_step": 9})
        ahead = report("A", tag(10, 2, lineage=1), range(2), newest_received=2, ran=2, seen=(vote(10, 2, lineage=1),))
        behind = report("B", tag(9, 1), range(2, 4), newest_received=2, ran=2, prepared=True)
        found = answer(failure(lossy, ahead, behind))
        assert isinstance(found, GoOn)
        assert (found.state, found.extends_all) == (tag(10, 2, lineage=1), True)

    def test_a_restore_leaves_no_older_state_to_go_on_from(self) -> None:
        restored = plan(2, "AB", base=1, start="checkpoint", lineage=1)
        older = report("A", tag(10, 1), newest_received=2, ran=1)
        assert isinstance(answer(failure(restored, older, ended="B")), GoBack)
        fresh = report("A", tag(5, 2, lineage=1), newest_received=2, ran=2)
        assert answer(failure(restored, fresh, ended="B")).state == tag(5, 2, lineage=1)


class TestPieces:
    """Two pieces a unit: pieces 0 to 7 of units 0 to 3, on two replicas."""

    WHOLE = plan(1, "AB").model_copy(update={"state_ranges": 2})

    def test_a_unit_is_whole_where_its_pieces_are_with_several_survivors(self) -> None:
        """So it is left by a worker that lost its peers while it received state, piece by piece."""
        first = report("A", tag(9, 1), range(7))
        last = report("B", tag(9, 1), range(5, 8))
        found = answer(failure(self.WHOLE, first, last))
        assert isinstance(found, GoOn)
        assert found.holders == (("A",),) * 5 + (("A", "B"),) * 2 + (("B",),)

    def test_one_piece_that_nobody_has_takes_the_run_back(self) -> None:
        reports = [report(worker, tag(9, 1), range(8), torn=(5,)) for worker in "AB"]
        assert answer(failure(self.WHOLE, *reports)) == GoBack((5,), "units [2] are held by nobody at one step")

    def test_a_piece_of_another_state_is_no_part_of_the_unit(self) -> None:
        """The other half of step 9 is gone, and so is the first half of step 10: neither state is whole."""
        mixed = [*report("A", tag(9, 1), range(7)).held, *report("A", tag(10, 1), range(7, 8)).held]
        one = SurvivorReport("A", generation(1), generation(1), tuple(mixed))
        assert isinstance(answer(failure(self.WHOLE, one, ended="B")), GoBack)

    def test_a_report_of_a_piece_that_there_is_not_counts_for_nothing(self) -> None:
        found = answer(failure(self.WHOLE, report("A", tag(9, 1), range(12)), ended="B"))
        assert isinstance(found, GoOn) and len(found.holders) == 8
