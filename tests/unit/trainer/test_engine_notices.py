"""Notices of the controller to a worker, and the facts that all members share."""

import pytest

from frostline_contract.plan import Decision, GenerationId, Plan
from frostline_contract.statistics import IntervalStatistics, StepRecord
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message
from frostline_trainer.control.mailbox import Fenced, Mailbox
from frostline_trainer.generations.plan_states import PlanState
from frostline_trainer.step.run_state import RunState
from tests.hand_made_plans import Layout


def plan(counter: int, incarnation: int = 1, **fields: object) -> Plan:
    base: dict[str, object] = {"start": "continue", "switch_from": 3, "switch_until": 5, "decision_number": 2, "lineage": 0}
    generation = GenerationId(incarnation=incarnation, counter=counter)
    return Plan(generation=generation, freeze_point=0, placement=Layout(1, 2).placement(0), **(base | fields))


def test_what_comes_over_the_watch_is_put_where_it_belongs() -> None:
    box, now = Mailbox("w0"), list[object]()
    generation = plan_pb2.GenerationId(incarnation=1, counter=7)
    decision = Decision(number=2, interval=2, effective_step=11, freeze_point=3)

    def take(**message: object) -> None:
        box.take(pb.WatchPlanResponse(**message), now.append, now.append)  # type: ignore[arg-type]

    take(plan=to_message(plan(7), plan_pb2.Plan))
    take(decision=to_message(decision, plan_pb2.Decision))
    (made,) = box.plans.start_forming()
    assert made == plan(7) and box.decision(0, 2) == decision
    box.plans.formed(made.generation)
    take(ready=pb.ReadyNotice(generation=generation))
    assert box.plans.state(made.generation) is PlanState.READY
    take(withdraw=pb.WithdrawNotice(generation=generation))
    assert box.plans.state(made.generation) is PlanState.WITHDRAWN
    take(drain=pb.DrainNotice())
    take(checkpoint=pb.CheckpointNotice())
    assert (box.drain, box.checkpoint, box.end) == ("drain", True, "")
    take(end=pb.EndNotice(reason="completed"))
    assert (box.drain, box.end) == ("drain", "completed")
    take(stack=pb.StackNotice(reason="it hangs"))
    assert now == ["it hangs"] and box.due_report() is None
    take(fence=pb.FenceNotice(generation=generation, reason="a member is gone"))
    assert now == ["it hangs", made.generation], "what cannot wait for the training thread"
    with pytest.raises(Fenced, match="a member is gone") as fenced:
        box.check()
    assert fenced.value.until == made.generation
    box.put_notice(lost="not wanted any more")
    with pytest.raises(Fenced, match="not wanted any more"):
        box.check()


def test_decisions_are_found_by_lineage_and_number() -> None:
    box = Mailbox("w1")
    kept = Decision(number=2, interval=2, effective_step=11, freeze_point=3)
    rollback = Decision(number=3, interval=3, effective_step=15, freeze_point=0, lineage=1, kind="rollback", rollback_to_step=4)
    box.put_plan(plan(7, decisions=(kept, rollback)))
    assert box.decision(0, 2) == kept and box.decision(1, 2) is None
    assert box.decision(0, 3) == rollback, "due in the lineage that it ends"
    box.put_decision(second := rollback.model_copy(update={"number": 5, "interval": 5, "effective_step": 23, "lineage": 7}))
    assert box.decision(0, 5) == second, "whichever lineage it opens: earlier rollbacks may have come too late"
    due = kept.model_copy(update={"decided_in": 1})
    box.put_plan(plan(8, lineage=1, start="checkpoint", start_step=9, decisions=(kept, rollback, due)))
    assert (box.decision(1, 2), box.decision(0, 2), box.decision(1, 3)) == (due, kept, None), "the controller names it by both"


def record(step: int, lineage: int = 0) -> StepRecord:
    return StepRecord(
        lineage=lineage, step=step, loss=1.0, learning_rate=0.1, gradient_norm=1.0, freeze_point=0, pp_degree=1, dp_degree=1,
        generation="1.1", step_seconds=0.1,
    )  # fmt: skip


def statistics(number: int, lineage: int = 0) -> IntervalStatistics:
    return IntervalStatistics(
        number=number, lineage=lineage, first_step=1, last_step=4, freeze_point=0, unit_gradient_norms=(1.0,),
        unit_parameters=(1,), learning_rate=0.1, learning_rate_peak=0.1, loss_mean=1.0, accepted_steps=4,
    )  # fmt: skip


def test_only_what_a_later_vote_has_confirmed_leaves() -> None:
    state = RunState(unconfirmed=record(1), unconfirmed_statistics=statistics(1))
    assert state.outgoing() == ([], [])
    state.confirm()
    state.unconfirmed = record(2)
    assert [item.step for item in state.outgoing()[0]] == [1]
    assert [item.number for item in state.outgoing()[1]] == [1]
    state.confirm()
    state.confirm()
    assert [item.step for item in state.records] == [1, 2], "a vote confirms once"


def test_what_is_acknowledged_goes_and_the_rest_stays() -> None:
    state = RunState(records=[record(1), record(2), record(1, 1)], statistics=[statistics(1), statistics(2)])
    state.forget(0, 1, None)
    assert [(item.lineage, item.step) for item in state.records] == [(0, 2), (1, 1)]
    assert len(state.statistics) == 2
    state.forget(0, None, 1)
    assert [item.number for item in state.statistics] == [2]
    state.forget(1, 1, 0)
    assert (state.records, state.statistics) == ([], []), "whatever belongs to an earlier lineage is durable or over"


def test_a_joiner_takes_everything_and_a_rollback_keeps_what_is_unacknowledged() -> None:
    source = RunState(step=7, accepted_steps=6, records=[record(7)], codec_chain=[2])
    joiner = RunState()
    joiner.take(RunState.model_validate(source.dump()), keep_unacknowledged=False)
    assert joiner.dump() == source.dump()
    rolled = RunState(step=9, records=[record(8), record(9)])
    rolled.take(RunState(step=4), keep_unacknowledged=True)
    assert rolled.step == 4 and [item.step for item in rolled.records] == [8, 9]


def test_the_numerics_history_is_a_chain() -> None:
    one, same, other = RunState(), RunState(), RunState(freeze_point=1)
    assert one.chain(1, False) == same.chain(1, False) != other.chain(1, False)
    assert one.chain(2, True) != same.chain(2, False)
    assert len(one.numerics_hash) == 64


def test_statistics_on_their_way_enter_the_new_lineage() -> None:
    state = RunState(statistics=[statistics(1)], unconfirmed_statistics=statistics(2), records=[record(3)])
    state.enter_lineage(4)
    assert state.lineage == 4
    assert [item.lineage for item in state.statistics] == [4]
    assert state.unconfirmed_statistics is not None and state.unconfirmed_statistics.lineage == 4
    assert state.records[0].lineage == 0, "a record belongs to the lineage that it was committed in"
