"""The oracle of the chaos runs on whole runs that end and go on, on what the guard takes back, and on bits that changed."""

from dataclasses import replace

import pytest

from frostline_contract.job.cluster import Fault
from frostline_contract.plan import GenerationId
from tests.chaos.acts import Act
from tests.chaos.oracle import LOST, WHOLE
from tests.chaos.timeline import Hit, Life
from tests.unit.chaos_timelines import BACK, FIRST, UNITS, VOTED_AT, hit, life, verdict


def test_a_killed_run_goes_back_to_its_checkpoint_in_a_new_epoch() -> None:
    killed = Hit(Act("kill_all", 14), tuple("abcd"), 14, "outside", "", (), VOTED_AT - 10)
    resumed = life(2, "checkpoint", 11, "efgh", lineage=1, run_epoch=1)
    assert verdict(FIRST, resumed, hits=(killed,), **BACK).complaints == ()
    on = verdict(FIRST, life(2, "survivors", 14, "efgh"), hits=(killed,))
    assert any("went on, but lost" in complaint for complaint in on.complaints)


@pytest.mark.parametrize(("first", "lineage", "says"), [(3, 1, ""), (2, 1, "was drained at step 2"), (3, 0, "not a new one")])
def test_a_drained_run_goes_on_where_it_was(first: int, lineage: int, says: str) -> None:
    drained = Hit(Act("drain", 2), (), 2, "outside", "", (), VOTED_AT - 10)
    resumed = life(2, "checkpoint", first, "efgh", lineage=lineage)
    resumed = replace(resumed, plan=resumed.plan.model_copy(update={"generation": GenerationId(incarnation=2, counter=2)}))
    found = verdict(FIRST, resumed, hits=(drained,)).complaints
    assert any(says in complaint for complaint in found) if says else found == ()


@pytest.mark.parametrize(
    "kind",
    [
        "hold_all",
        "fail_write",
        "lie_write",
        "stall_write",
        "freeze",
        "resize",
        "scale",
        "hold_preload",
        "kill_shard",
        "second_owner",
        "reshape",
    ],
)
def test_what_nobody_dies_of_is_no_reason_for_a_failure(kind: str) -> None:
    act = Hit(Act(kind, 14), (), 14, "outside", "", (), VOTED_AT - 10)
    found = verdict(FIRST, life(2, "survivors", 14, "abcd"), hits=(act,))
    assert any("that no fault explains" in complaint for complaint in found.complaints)


def test_a_rollback_of_the_guard_is_gone_on_from() -> None:
    killed = hit("kill_worker", "c", 26, "rollback")
    back = life(2, "survivors", 11, "abd", lineage=1)
    assert verdict(FIRST, back, hits=(killed,), rollbacks={1: 10}).complaints == ()
    assert verdict(FIRST, back, hits=(killed,)).complaints != ()


def test_a_rollback_may_go_back_before_the_generation_in_which_it_is_taken() -> None:
    """The freeze of step 10 is taken back at step 34, by members whose generation began at 22."""
    entered = life(2, "continue", 22, "abcd", recorded=(22, 34))
    raised = hit("raise", "c", 34, "rollback", generation="1.2", at=VOTED_AT + 10)
    for step, accepted in ((9, False), (10, True), (34, True), (35, False)):
        back = life(3, "survivors", step + 1, "abcd", lineage=1)
        assert (not verdict(FIRST, entered, back, hits=(raised,), rollbacks={1: 10}).complaints) == accepted, step


NOBODY_NAMED = {"workers": [], "holders": [{"worker": "c"}, {"worker": "d"}]}
FLIPPED = Hit(Fault(kind="flip", step=14), ("c",), 14, "committed", "1.1", (), VOTED_AT - 10)


def test_a_bit_that_changed_is_undone_from_before_it() -> None:
    said = {**BACK, "distrusting": frozenset((1,)), "wrong_bits": ((1, NOBODY_NAMED),)}
    back = life(2, "checkpoint", 11, "abcd", lineage=1, run_epoch=1)
    assert verdict(FIRST, back, hits=(FLIPPED,), **said).complaints == ()
    for wrong in ((FIRST,), (FIRST, life(2, "checkpoint", 15, "abcd", lineage=1)), (FIRST, life(2, "survivors", 14, "abcd"))):
        assert verdict(*wrong, hits=(FLIPPED,), **said).complaints != ()


def test_what_befalls_a_run_after_its_bit_was_found_is_judged_as_ever() -> None:
    said = {**BACK, "distrusting": frozenset((1,)), "wrong_bits": ((1, NOBODY_NAMED),)}
    back = life(2, "checkpoint", 11, "abcd", lineage=1, run_epoch=1)
    killed = hit("kill_worker", "c", 24, generation="1.2", at=VOTED_AT + 10)
    on = life(3, "survivors", 24, "abd", lineage=1, run_epoch=1)
    assert verdict(FIRST, back, on, hits=(FLIPPED, killed), **said).complaints == ()
    assert [one.expected for one in verdict(FIRST, back, on, hits=(FLIPPED, killed), **said).recoveries] == [LOST, WHOLE]
    assert verdict(FIRST, back, on, hits=(FLIPPED,), **said).complaints != (), "nobody died"
    again = life(3, "checkpoint", 11, "abcd", lineage=2, run_epoch=2)
    twice = {**said, "distrusting": frozenset((1, 2)), "wrong_bits": ((1, NOBODY_NAMED), (2, NOBODY_NAMED))}
    assert verdict(FIRST, back, again, hits=(FLIPPED,), **twice).complaints != (), "found twice"


def in_replicas(members: str) -> Life:
    """Return the first generation of replicas that hold the whole model each."""
    leaves = tuple(8 * place // len(members) for place in range(len(members) + 1))
    degrees = {"degrees": {"dp": len(members), "pp": 1}, "stage_bounds": (0, UNITS), "leaf_bounds": leaves}
    placement = FIRST.plan.placement.model_copy(update={**degrees, "workers": tuple(members)})
    return replace(FIRST, plan=FIRST.plan.model_copy(update={"placement": placement, "buddy_indices": ()}))


@pytest.mark.parametrize(
    ("what", "members", "detail", "right"),
    [
        ("weight", "abcd", {"workers": ["c"]}, True),
        ("weight", "abcd", {"workers": []}, False),
        ("weight", "abcd", {"workers": ["d"]}, False),
        ("moment", "abc", {"workers": ["a", "c"]}, False),
        ("moment", "ac", {"workers": [], "holders": [{"worker": "a"}, {"worker": "c"}]}, True),
        ("moment", "ac", {"workers": []}, False),
        ("gradient", "ac", {"workers": ["c"], "certain": "yes"}, True),
        ("gradient", "ac", {"workers": ["a"], "certain": "yes"}, False),
        ("activation", "ac", {"workers": ["a", "c"], "certain": "no: each repeats its own bits"}, True),
        ("activation", "ac", {"workers": ["a"], "certain": "no: each repeats its own bits"}, False),
        ("cached_value", "ac", {"workers": []}, True),
    ],
)
def test_whose_bits_changed_is_named_where_that_can_be_known(what: str, members: str, detail: dict, right: bool) -> None:
    back = life(2, "checkpoint", 11, members, lineage=1, run_epoch=1)
    flipped = replace(FLIPPED, fault=Fault(kind="flip", step=14, what=what))
    said = {**BACK, "distrusting": frozenset((1,)), "wrong_bits": ((1, detail),)}
    complaints = verdict(in_replicas(members), back, hits=(flipped,), **said).complaints
    assert (complaints == ()) is right, complaints
    assert right or "and its event names" in complaints[0]


@pytest.mark.parametrize("events", [0, 2])
def test_wrong_bits_are_told_once(events: int) -> None:
    back = life(2, "checkpoint", 11, "abcd", lineage=1, run_epoch=1)
    said = {**BACK, "distrusting": frozenset((1,)), "wrong_bits": ((1, {"workers": ["c"]}),) * events}
    assert verdict(in_replicas("abcd"), back, hits=(FLIPPED,), **said).complaints == (
        f"{events} events tell of the wrong bits that 1.2 answers",
    )
