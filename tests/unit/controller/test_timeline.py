"""A record of decisions alone shows which of them survive, as the run's lineages do (docs/protocols.md 4.7)."""

import random

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.lineage import RESTORE, ROLLBACK, LineageStart
from frostline_contract.plan import Decision
from frostline_controller.decisions.surviving import next_number, remembered_decisions, surviving_decisions, timeline

CALENDAR = DecisionCalendar(interval_steps=8, lag_steps=3, total_steps=200)
HISTORIES = 500


class History:
    """A run's decisions and lineages, drawn at random by the rules under which a run makes them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.step, self.highest = rng, 0, 0
        self.decisions: list[Decision] = []
        self.starts: list[LineageStart] = []
        for _ in range(rng.randrange(1, 14)):
            rng.choice((self.decide, self.decide, self.roll_back, self.restore))()
        self.decide()

    @property
    def lineage(self) -> int:
        return self.starts[-1].lineage if self.starts else 0

    def surviving(self) -> list[Decision]:
        return surviving_decisions(self.decisions, tuple(self.starts), CALENDAR)

    def decide(self) -> None:
        """Decide the next interval: keep, or freeze deeper; now and then the decision is void."""
        number = next_number(self.surviving())
        self.step = max(self.step, CALENDAR.last_step_of(number))
        self.decisions.append(
            Decision(
                number=number, interval=number, effective_step=CALENDAR.effective_step(number), lineage=self.lineage,
                decided_in=self.lineage, freeze_point=self.rng.randrange(4), kind=self.rng.choice(("keep", "freeze")),
                void=self.rng.random() < 0.1,
            )
        )  # fmt: skip
        self.step += self.rng.randrange(8)

    def roll_back(self) -> None:
        """Let the next decision take an earlier one back, or come too late for that and be void."""
        number = next_number(self.surviving())
        self.step = max(self.step, CALENDAR.last_step_of(number))
        in_force = [one for one in self.surviving() if not one.void and one.effective_step <= self.step]
        if not in_force:
            return
        back, void, decided_in = self.rng.choice(in_force).effective_step - 1, self.rng.random() < 0.4, self.lineage
        self.highest += 1
        due = CALENDAR.effective_step(number)
        self.decisions.append(
            Decision(
                number=number, interval=number, effective_step=due, lineage=self.highest, decided_in=decided_in,
                freeze_point=self.rng.randrange(4), kind="rollback", rollback_to_step=back, void=void,
            )
        )  # fmt: skip
        if void:
            self.step = max(self.step, due)
        else:
            self.starts.append(LineageStart(lineage=self.highest, starts_at_step=back, kind=ROLLBACK))
            self.step = back

    def restore(self) -> None:
        """Return all members to a checkpoint."""
        self.highest, self.step = self.highest + 1, self.rng.randrange(self.step + 1)
        self.starts.append(LineageStart(lineage=self.highest, starts_at_step=self.step, kind=RESTORE))


def test_decisions_alone_show_what_survives_once_the_newest_lineage_has_decided() -> None:
    """A policy, and a reader of another run's plans.jsonl, see decisions without lineages."""
    for seed in range(HISTORIES):
        history = History(random.Random(seed))
        survive = {decision.number: decision for decision in history.surviving()}
        remembered = remembered_decisions(history.decisions, tuple(history.starts), CALENDAR)
        assert timeline(history.decisions, CALENDAR) == survive, f"history {seed}"
        assert timeline(remembered, CALENDAR) == survive, f"history {seed}, as a policy is shown it"


def test_the_histories_hold_what_makes_it_hard() -> None:
    drawn = [History(random.Random(seed)) for seed in range(HISTORIES)]
    for kind in (RESTORE, ROLLBACK):
        assert sum(any(start.kind == kind for start in history.starts) for history in drawn) > HISTORIES // 4
    assert sum(any(one.void and one.kind == ROLLBACK for one in history.decisions) for history in drawn) > HISTORIES // 10
