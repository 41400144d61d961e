"""The messages for a worker that connects, and the message of a decision."""

from frostline_contract.plan import Decision
from frostline_controller.members.membership import Worker
from frostline_controller.recovery.reports import fence_message
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.serving.streams import Announcement
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message

RECENT_DECISIONS = 4
"""How many of the newest decisions are sent to a worker that connects. They are in the plan too, but a worker that runs the plan
already does not read it again."""


def welcome(
    facts: RunFacts, outbox: Outbox, worker: Worker, *, ready_announced: bool, draining: str, end: str,
    fences: list[pb.WatchPlanResponse],
) -> list[Announcement]:  # fmt: skip
    """Everything that is in force, for a worker whose stream has just opened.

    A worker that is in no plan and still runs an older generation is fenced: its generation may have been given up.

    Args:
        facts: of the run.
        outbox: of the run.
        worker: the one that connects.
        ready_announced: whether the notice that the prepared plan is ready was sent.
        draining: why members are asked to stop; empty: no member is.
        end: why the worker is to exit; empty: the worker is to stay.
        fences: those of a failure that is being answered.
    """
    if end:
        return [pb.WatchPlanResponse(end=pb.EndNotice(reason=end))]
    messages: list[Announcement] = []
    current = facts.current
    if current is not None and not outbox.unannounced:
        over = worker.generation is not None and worker.generation < current.generation
        if over and worker.worker_id not in current.places:
            messages.append(fence_message(worker.generation, f"generation {current.generation} has taken its place"))
        messages.append(outbox.plan_message(current))
    messages += [decision_message(decision) for decision in facts.state.decisions[-RECENT_DECISIONS:]]
    prepared = facts.state.prepared
    if prepared is not None:
        messages.append(outbox.plan_message(prepared))
        if ready_announced:
            generation = to_message(prepared.generation, plan_pb2.GenerationId)
            messages.append(pb.WatchPlanResponse(ready=pb.ReadyNotice(generation=generation)))
    if draining:
        messages.append(pb.WatchPlanResponse(drain=pb.DrainNotice(reason=draining)))
    return [*messages, *fences]


def decision_message(decision: Decision) -> pb.WatchPlanResponse:
    """A decision as WatchPlan sends it."""
    return pb.WatchPlanResponse(decision=to_message(decision, plan_pb2.Decision))
