"""The plan that answers a failure: buddies, sources of state, the retry budget, and when joiners are taken in."""

from hypothesis import example, given
from hypothesis import strategies as st

from frostline_contract.pieces import Pieces
from frostline_contract.plan import Placement, Plan
from frostline_controller.members.membership import Worker
from frostline_controller.planner.draft import PlanDraft
from frostline_controller.planner.plans import (
    buddies_of,
    entry_plan,
    sources_of,
    survivors_plan,
    switching_plan,
    uncovered_of,
)
from frostline_controller.recovery.budget import ERROR_CHARACTERS, RetryBudget
from frostline_controller.recovery.facts import GoOn
from tests.unit.controller.failures import NUM_UNITS, generation, placement, plan, tag, vote


def store(worker_id: str) -> Worker:
    return Worker(worker_id, f"pod-{worker_id}", "node", 1, "127.0.0.1", 4000, None, 0.0, 0.0)


UNITS = Pieces(NUM_UNITS)
"""One piece a unit."""


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Placement, dict[str, str]]:
    pp_degree, dp_degree = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (2, 3), (1, 5), (3, 1)]))
    made = placement("ABCDEFGH"[: pp_degree * dp_degree], pp_degree)
    return made, {worker: draw(st.sampled_from("xyz")) for worker in made.workers}


@given(shapes())
def test_a_buddy_is_in_another_domain_and_exists_wherever_there_is_one(drawn: tuple[Placement, dict[str, str]]) -> None:
    made, domains = drawn
    buddies = buddies_of(made, domains, UNITS)
    assert len(buddies) == NUM_UNITS
    for unit, buddy in enumerate(buddies):
        owners = made.owners(unit)
        at = {domains[owner] for owner in owners}
        elsewhere = [worker for worker in made.workers if domains[worker] not in at]
        if len(at) > 1 or not elsewhere:
            assert buddy == ""
        else:
            assert buddy in elsewhere
    assert set(uncovered_of(made, domains, buddies, UNITS)) == {
        unit for unit in range(NUM_UNITS) if not buddies[unit] and len({domains[o] for o in made.owners(unit)}) == 1
    }
    for stage in range(made.shape.num_stages):
        assert len({buddies[unit] for unit in made.units_of_stage(stage)}) == 1, "one buddy a stage: one message a step"


@given(shapes())
def test_without_domains_nobody_keeps_anything(drawn: tuple[Placement, dict[str, str]]) -> None:
    made, _ = drawn
    buddies = buddies_of(made, {}, UNITS)
    assert buddies == ("",) * NUM_UNITS
    assert uncovered_of(made, {}, buddies, UNITS) == tuple(range(NUM_UNITS))


def test_copies_are_spread_and_who_has_one_keeps_it() -> None:
    made = placement("ABCD", 4)
    domains = dict(zip("ABCD", "abcd", strict=True))
    assert buddies_of(made, domains, UNITS) == ("B", "C", "D", "A")
    held = ({"D"}, {"A"}, {"B"}, {"C"})
    assert buddies_of(made, domains, UNITS, held) == ("D", "A", "B", "C")


def survivors(holders: tuple[str, ...], workers: str, pp_degree: int = 1, domains: dict[str, str] | None = None) -> Plan:
    found = GoOn(tag(9, 1), tuple(tuple(units) for units in holders), holders[0][0], vote(9, 1), True)
    made = placement(workers, pp_degree)
    base = plan(1, "ABCD", 2).model_copy(update={"run_epoch": 3})
    draft = PlanDraft(
        generation=generation(5), lineage=0, placement=made, first_worker=store(workers[0]), freeze_point=1, decision_number=2,
        domains={worker: worker for worker in "ABCDE"} if domains is None else domains,
    )  # fmt: skip
    return survivors_plan(draft, base=base, found=found)


def test_a_survivors_plan_says_where_everything_is() -> None:
    made = survivors(("AB", "AB", "B", "C"), "BCE", domains={"A": "x", "B": "x", "C": "y", "E": "z"})
    assert (made.start_tag, made.vote, made.run_epoch, made.base) == (tag(9, 1), vote(9, 1), 3, generation(1))
    assert (made.freeze_point, made.decision_number, made.leavers) == (1, 2, ())
    assert [made.holders_of(unit) for unit in range(4)] == [["B"], ["B"], ["B"], ["C"]]
    assert made.sources == ("B", "B", "B", "C")
    assert made.state_source == "B", "the answer's own is not placed"
    assert made.store_port == 4000


def lost_with_one_domain(holders: set[str], domains: dict[str, str]) -> bool:
    return len({domains.get(worker) for worker in holders}) < 2


@given(
    st.lists(st.sets(st.sampled_from("ABCD"), min_size=1), min_size=4, max_size=4), st.sampled_from(["AB", "AE", "E", "CDE"]),
    st.sampled_from(["abcde", "aabbc", "aaaab", "aaaaa", ""]),
)  # fmt: skip
@example([{"A"}, {"A"}, {"A", "D"}, {"C", "D"}], "AB", "aabbc")
def test_no_state_is_sent_away(holders: list[set[str]], workers: str, nodes: str) -> None:
    """Every unit has a source that takes part, and where it has holders in two domains, two of them take part; no others do."""
    domains = dict(zip("ABCDE", nodes, strict=False))
    made = survivors(tuple("".join(sorted(units)) for units in holders), workers, domains=domains)
    for unit, units in enumerate(holders):
        assert made.sources[unit] in units & set(made.participants)
        assert set(made.holders_of(unit)) == units & set(made.participants)
        assert lost_with_one_domain(units, domains) or not lost_with_one_domain(set(made.holders_of(unit)), domains)
    for leaver in made.leavers:
        others = set(made.participants) - {leaver}
        alone = any(not units & others for units in holders)
        apart = any(
            lost_with_one_domain(units & others, domains) and not lost_with_one_domain(units, domains) for units in holders
        )
        assert alone or apart, f"{leaver} is not needed"
    assert made.state_source in {worker for units in holders for worker in units} & set(made.participants)
    assert len(made.buddies) == NUM_UNITS


def test_a_copy_outside_a_node_that_is_ending_takes_part_until_the_first_vote() -> None:
    """A and B's node ends. B has reported and is planned in, but will end too: the copies of C, left out, must not be lost."""
    made = survivors(("B", "BC", "BC", "BD"), "BD", domains={"A": "x", "B": "x", "C": "y", "D": "y"})
    assert made.leavers == ("C",)
    assert [made.holders_of(unit) for unit in range(4)] == [["B"], ["B", "C"], ["B", "C"], ["B", "D"]]


def test_a_planned_switch_counts_the_buddies_copies_too() -> None:
    base = plan(1, "ABCD", 4).model_copy(update={"buddy_indices": (1, 2, 3, 0), "run_epoch": 2})
    domains = dict(zip("ABCD", "abcd", strict=True))
    draft = PlanDraft(
        generation=generation(2), lineage=0, placement=placement("ABC", 1), first_worker=store("A"), domains=domains
    )
    made = switching_plan(draft, base=base, window=(5, 9))
    assert [made.holders_of(unit) for unit in range(4)] == [["A", "B"], ["B", "C"], ["C", "D"], ["A", "D"]]
    assert (made.leavers, made.run_epoch) == (("D",), 2)
    assert (made.buddies, made.uncovered) == (("",) * 4, ()), "each unit has three owners in three domains"


class TestRetryBudget:
    def test_deaths_are_free(self) -> None:
        budget = RetryBudget()
        for _ in range(20):
            budget = budget.charged(10, 0, of_its_own=False, error="")
        assert budget.exhausted(limit=2) == ""

    def test_the_first_error_is_told(self) -> None:
        budget = RetryBudget()
        for number in range(3):
            assert budget.exhausted(limit=2) == ""
            budget = budget.charged(10, 0, of_its_own=True, error=f"error {number}")
        assert "2 recoveries in a row without one step beyond step 10; first error: error 0" in budget.exhausted(limit=2)

    def test_a_step_further_starts_anew_and_a_step_done_again_does_not(self) -> None:
        budget = RetryBudget()
        for step in (10, 6, 10):
            budget = budget.charged(step, 0, of_its_own=True, error=f"at {step}")
        assert "first error: at 10" in budget.exhausted(limit=2)
        budget = budget.charged(11, 0, of_its_own=True, error="later")
        assert (budget.exhausted(limit=2), budget.first_error) == ("", "later")

    def test_a_rollback_starts_anew(self) -> None:
        budget = RetryBudget().charged(40, 0, of_its_own=True, error="before").charged(33, 1, of_its_own=True, error="after")
        assert (budget.count, budget.exhausted(limit=1)) == (1, "")

    def test_a_long_error_keeps_its_end(self) -> None:
        budget = RetryBudget().charged(1, 0, of_its_own=True, error="x" * 100_000 + "ValueError: the reason")
        assert budget.first_error.endswith("ValueError: the reason")
        assert len(budget.first_error) == ERROR_CHARACTERS


# ---- several pieces a unit


def cut_draft(counter: int, made: Placement, ranges: int, domains: dict[str, str] | None = None) -> PlanDraft:
    return PlanDraft(
        generation=generation(counter), lineage=0, placement=made, first_worker=store(made.workers[0]), domains=domains or {},
        state_ranges=ranges,
    )  # fmt: skip


@given(shapes(), st.integers(2, 4))
def test_pieces_of_a_unit_are_kept_by_its_buddy_and_covered_as_it_is(
    drawn: tuple[Placement, dict[str, str]], ranges: int
) -> None:
    made, domains = drawn
    table = Pieces(NUM_UNITS, ranges)
    by_unit, by_piece = buddies_of(made, domains, UNITS), buddies_of(made, domains, table)
    assert by_piece == tuple(buddy for buddy in by_unit for _ in range(ranges))
    assert list(uncovered_of(made, domains, by_piece, table)) == table.of_units(uncovered_of(made, domains, by_unit, UNITS))


def test_a_units_pieces_come_from_several_owners() -> None:
    """A joiner gets each half of a unit from a different replica."""
    base, new = placement("AB", 1), placement("ABC", 1)
    assert sources_of(base, new, Pieces(NUM_UNITS, 2)) == ("A", "B") * NUM_UNITS
    assert sources_of(base, new, UNITS) == ("A", "B") * (NUM_UNITS // 2)


def test_a_unit_whose_pieces_lie_apart_is_put_together() -> None:
    base = plan(1, "AB", 1).model_copy(update={"state_ranges": 2})
    holders = (("A", "B"),) * 6 + (("A",), ("B",))
    found = GoOn(tag(9, 1), holders, "A", None, True)
    made = survivors_plan(cut_draft(5, placement("AB", 1), 2), base=base, found=found)
    assert made.state_ranges == 2
    assert made.sources == ("A", "B") * 3 + ("A", "B"), "taken in turn; the last unit's halves from who has them"
    assert [made.holders_of(piece) for piece in (6, 7)] == [["A"], ["B"]]
    assert (made.held_by("A"), made.needs("A")) == (frozenset(range(7)), list(range(8)))


def test_a_switch_and_a_checkpoints_plan_keep_the_cut() -> None:
    domains = dict(zip("ABC", "abc", strict=True))
    first = entry_plan(cut_draft(1, placement("AB", 2), 3, domains), base=None, checkpoint=None, run_epoch=0)
    assert (first.pieces.count, first.buddies) == (12, ("B",) * 6 + ("A",) * 6)
    made = switching_plan(cut_draft(2, placement("BC", 2), 3, domains), base=first, window=(5, 9))
    assert made.state_ranges == 3
    assert [made.holders_of(piece) for piece in range(12)] == [["B", "A"]] * 12, "the owner and the buddy of each"
    assert (made.leavers, made.sources) == (("A",), ("A",) * 6 + ("B",) * 6)
