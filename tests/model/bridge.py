"""The calls of production's decisions: its own functions build plans, answer failures and accept announcements.

Answers are cached by their inputs. A rule that is switched off changes the inputs, or overrules the result.
"""

from dataclasses import replace

from frostline_contract.plan import SURVIVORS, Plan, SeenVote, StateTag
from frostline_controller.recovery.answer import answer
from frostline_controller.recovery.facts import Answer, Failure, HeldPiece, SurvivorReport
from frostline_trainer.generations.plan_states import PlanState
from frostline_trainer.generations.plan_table import PlanTable, Row
from tests.model.building import answering_plan, first_plan, switch
from tests.model.configurations import Configuration
from tests.model.world import (
    NONE,
    Leader,
    Order,
    PlanView,
    Pool,
    Report,
    State,
    Vote,
    generation_id,
    order_of,
    worker_index,
    worker_name,
)


class Bridge:
    """Plans and states by number, and production's decisions about them. off: the rules that are switched off."""

    def __init__(self, configuration: Configuration, off: frozenset[str] = frozenset()) -> None:
        self.configuration, self.off = configuration, off
        self.states: Pool[State] = Pool()
        self.views: list[PlanView] = []
        self._plans: dict[tuple[Plan, int], int] = {}
        self._answers: dict[object, Answer] = {}
        self._reports: dict[tuple[int, Report], SurvivorReport] = {}
        self._takes: dict[tuple[int, Order, int], bool] = {}
        self._votables: dict[tuple[int, int, int], bool] = {}
        self._committed: dict[tuple[int, int, Order], int] = {}

    # ---- plans

    def view(self, plan: Plan, start: int) -> int:
        """Return the plan's number. start: the state that it starts from, NONE for "continue"."""
        found = self._plans.get((plan, start))
        if found is None:
            found = self._plans[plan, start] = len(self.views)
            self.views.append(self._look(plan, start))
        return found

    def _look(self, plan: Plan, start: int) -> PlanView:
        count = self.configuration.num_workers
        pieces = range(self.configuration.num_pieces)
        return PlanView(
            plan=plan,
            order=order_of(plan.generation),
            base=order_of(plan.base),
            kind=plan.start,
            members=tuple(worker_index(worker) for worker in plan.placement.workers),
            participants=tuple(worker_index(worker) for worker in plan.participants),
            needs=tuple(tuple(plan.needs(worker_name(worker))) for worker in range(count)),
            holders=tuple(tuple(worker_index(worker) for worker in plan.holders_of(piece)) for piece in pieces),
            sources=tuple(worker_index(worker) for worker in plan.sources),
            state_source=worker_index(plan.state_source) if plan.state_source else NONE,
            start=start,
        )

    def first_plan(self) -> int:
        """Return generation 1.1, from the initial weights."""
        start = self.states.number(State(0, (), (1, 1)))
        plan = first_plan(self.configuration)
        return self.view(plan, start)

    def switching_plan(self, leader: Leader, order: Order) -> int:
        assert self.configuration.switch is not None
        base = self.views[leader.current].plan
        plan = switch(self.configuration, order, base)
        return self.view(plan, NONE)

    def recovery_plan(
        self, leader: Leader, order: Order, found: Answer, usable: tuple[int, ...], lineage: int, epoch: int
    ) -> Plan:
        return answering_plan(self.configuration, self.views[leader.current].plan, order, found, usable, lineage, epoch)

    # ---- states

    def committed(self, state: int, lineage: int, order: Order) -> int:
        """Return a state after the commit of the next step's vote of generation `order` in `lineage`."""
        key = (state, lineage, order)
        found = self._committed.get(key)
        if found is None:
            old = self.states[state]
            found = self._committed[key] = self.states.number(State(lineage, (*old.history, order), order, old.torn))
        return found

    def torn(self, state: int) -> int:
        return self.states.number(self.states[state]._replace(torn=True))

    def restored(self, lineage: int, order: Order) -> int:
        """Return the checkpoint's state (that of the start), as the plan `order` restores it."""
        return self.states.number(State(lineage, (), order))

    # ---- what a worker accepts

    def takes(self, worker: int, newest_received: Order, plan: int) -> bool:
        """Whether the plan table of a worker whose newest generation is `newest_received` accepts an announcement of `plan`."""
        key = (worker, newest_received, plan)
        found = self._takes.get(key)
        if found is None:
            view = self.views[plan]
            table = PlanTable(worker_name(worker), newest=generation_id(newest_received))
            if newest_received[1] == view.order[1]:
                table.rows[newest_received[1]] = Row(view.plan, PlanState.OVER)
            found = self._takes[key] = table.receive(view.plan)
        return found

    def votable(self, worker: int, plan: int, step: int) -> bool:
        """Whether a member that has the notice that all are ready may vote for `plan` in the vote of `step`."""
        key = (worker, plan, step)
        found = self._votables.get(key)
        if found is None:
            made = self.views[plan].plan
            table = PlanTable(worker_name(worker))
            table.receive(made)
            table.start_forming()
            table.formed(made.generation)
            table.all_ready(made.generation.counter)
            found = self._votables[key] = table.votable(step, made.decision_number) == made.generation.counter
        return found

    # ---- the answer to a failure

    def answer(self, leader: Leader) -> Answer:
        """Return production's answer to the leader's facts."""
        key = (leader.current, leader.prepared, leader.reports, leader.ended, leader.silent)
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = answer(self.failure(leader))
        return found

    def failure(self, leader: Leader) -> Failure:
        """Return the facts as production has them, without those that the switched-off rules remove."""
        current, prepared = self.views[leader.current].plan, leader.prepared
        if "vote-in-plan" in self.off:
            current = current.model_copy(update={"vote": None})
        if "quorum" in self.off:
            prepared = NONE
        reports = {
            worker_name(worker): self._report(worker, report)
            for worker, report in enumerate(leader.reports)
            if report is not None
        }
        ended = frozenset(worker_name(worker) for worker in leader.ended)
        silent = frozenset(worker_name(worker) for worker in leader.silent)
        if "wait" in self.off:
            everybody = {worker_name(worker) for worker in range(self.configuration.num_workers)}
            silent |= everybody - set(reports) - ended
        failure = Failure(
            current=current,
            prepared=self.views[prepared].plan if prepared != NONE else None,
            reports=reports,
            ended=ended,
            silent=silent,
        )
        return by_step_number(failure) if "tags" in self.off else failure

    def prepared_pieces(self, plan: int, worker: int) -> tuple[int, ...]:
        """Return the pieces whose gradients a worker has when it is prepared in `plan`'s generation."""
        if "acknowledged" in self.off:
            return tuple(self.views[plan].plan.pieces_of(worker_name(worker)))
        return self.views[plan].needs[worker]

    def _report(self, worker: int, report: Report) -> SurvivorReport:
        found = self._reports.get((worker, report))
        if found is None:
            found = self._reports[worker, report] = self._make_report(worker, report)
        return found

    def _make_report(self, worker: int, report: Report) -> SurvivorReport:
        ready = set(self.prepared_pieces(report.prepared, worker)) if report.prepared != NONE else set()
        held = []
        for piece, state in enumerate(report.pieces):
            tag = self.tag(state) if state != NONE else None
            if tag is not None:
                held.append(HeldPiece(piece, tag, prepared=piece in ready and state == report.run))
        return SurvivorReport(
            worker_id=worker_name(worker),
            newest_received=generation_id(report.newest_received),
            ran=self.views[report.ran].plan.generation if report.ran != NONE else None,
            held=tuple(held),
            seen=tuple(seen_vote(vote) for vote in report.seen) if "seen-votes" not in self.off else (),
            switched=frozenset(generation_id(order) for order in report.switched),
            expired=frozenset(generation_id(order) for order in report.expired),
        )

    def tag(self, state: int) -> StateTag | None:
        """Return the name of a state in a report; None for a torn one."""
        held = self.states[state]
        if held.torn and "torn" not in self.off:
            return None
        return held.tag()

    def matches(self, state: int, tag: StateTag | None) -> bool:
        """Whether `tag` names the state."""
        own = self.tag(state)
        if own is None or tag is None or "tags" not in self.off:
            return own is not None and own == tag
        return (own.lineage, own.step) == (tag.lineage, tag.step)

    def comes_to(self, plan: int, state: int, vote: SeenVote | None) -> int:
        """Return a state whose next step is prepared in `plan` after the late commit of `vote`; NONE where that is impossible."""
        if vote is None or plan == NONE or self.states[state].step + 1 != vote.step:
            return NONE
        order = self.views[plan].order
        if order != order_of(vote.generation) and "tags" not in self.off:
            return NONE
        return self.committed(state, vote.lineage, order)


def by_step_number(failure: Failure) -> Failure:
    """Return the facts without the rule "tags": all reported states look as if the current generation's votes had led to them."""
    same = failure.current.generation
    current = failure.current.model_copy(
        update={
            "state_generation": same if failure.current.state_generation is not None else None,
            "vote": failure.current.vote.model_copy(update={"generation": same}) if failure.current.vote else None,
        }
    )
    reports = {
        worker: replace(
            report,
            ran=same if current.start == SURVIVORS and worker in current.participants and report.ran else report.ran,
            held=tuple(replace(one, state=one.state.model_copy(update={"generation": same})) for one in report.held if one.state),
            seen=tuple(vote.model_copy(update={"generation": same}) for vote in report.seen),
        )
        for worker, report in failure.reports.items()
    }
    return replace(failure, current=current, reports=reports)


def seen_vote(vote: Vote) -> SeenVote:
    return SeenVote(lineage=vote.lineage, step=vote.step, generation=generation_id(vote.order), slots=())
