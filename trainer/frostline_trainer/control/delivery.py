"""What the controller announces over the watch, put where the training thread finds it."""

from collections.abc import Callable

from frostline_contract.plan import Decision, GenerationId, Plan
from frostline_proto.v1 import control_pb2
from frostline_rpc.convert import to_record
from frostline_trainer.control.mailbox import Mailbox


def deliver(
    message: control_pb2.WatchPlanResponse,
    mailbox: Mailbox,
    on_fence: Callable[[GenerationId], None],
    on_stack: Callable[[str], None],
) -> None:
    """Put one announcement into the mailbox; a fence and a request for stacks cannot wait for the training thread."""
    kind = message.WhichOneof("message")
    if kind == "plan":
        mailbox.put_plan(to_record(message.plan, Plan))
    elif kind == "decision":
        mailbox.put_decision(to_record(message.decision, Decision))
    elif kind == "ready":
        mailbox.plans.all_ready(message.ready.generation.counter)
    elif kind == "withdraw":
        mailbox.plans.withdraw(message.withdraw.generation.counter)
    elif kind == "drain":
        mailbox.tell(drain=message.drain.reason or "drain")
    elif kind == "end":
        mailbox.tell(end=message.end.reason or "end")
    elif kind == "checkpoint":
        mailbox.tell(checkpoint=True)
    elif kind == "fence":
        generation = to_record(message.fence.generation, GenerationId)
        mailbox.plans.put_fence(generation, message.fence.reason)
        on_fence(generation)
    elif kind == "stack":
        on_stack(message.stack.reason)
