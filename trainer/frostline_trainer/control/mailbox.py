"""The mailbox: the controller's messages to this worker. The watch thread writes it, the training thread reads it at votes."""

from collections.abc import Callable
from dataclasses import dataclass, field

from frostline_contract.plan import Decision, GenerationId, Plan
from frostline_proto.v1 import control_pb2
from frostline_rpc.convert import to_record
from frostline_trainer.generations.plan_table import DueReport, PlanTable


class Fenced(RuntimeError):
    """The controller has fenced the generation, or does not want this worker any more. It is no failure of this worker.

    Attributes:
        until: The newest generation that the report's promise covers.
    """

    def __init__(self, due: DueReport) -> None:
        super().__init__(due.reason)
        self.until = due.until


@dataclass
class Mailbox:
    """Plans, decisions and notices, the newest of each. Callable from any thread.

    Args:
        worker_id: Of this worker.
        drain: Why the run is to stop at a checkpoint; empty if it is not.
        end: Why this worker is to end; empty if it is not.
        checkpoint: Whether a checkpoint is requested.
        lost: Why the controller refuses this worker for good; empty if it does not.
    """

    worker_id: str
    drain: str = ""
    end: str = ""
    checkpoint: bool = False
    lost: str = ""
    plans: PlanTable = field(init=False)
    _decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plans = PlanTable(self.worker_id)
        self._changed = self.plans.changed

    def take(self, message: control_pb2.WatchPlanResponse, on_fence: Callable[[GenerationId], None],
             on_stack: Callable[[str], None]) -> None:  # fmt: skip
        """Store one announcement, by its kind.

        Args:
            message: The message from the watch stream.
            on_fence: Called with a fence's generation, which cannot wait for the training thread.
            on_stack: Called with the reason of a request for stacks, which cannot wait either.
        """
        kind = message.WhichOneof("message")
        if kind == "plan":
            self.put_plan(to_record(message.plan, Plan))
        elif kind == "decision":
            self.put_decision(to_record(message.decision, Decision))
        elif kind == "ready":
            self.plans.all_ready(message.ready.generation.counter)
        elif kind == "withdraw":
            self.plans.withdraw(message.withdraw.generation.counter)
        elif kind == "drain":
            self.put_notice(drain=message.drain.reason or "drain")
        elif kind == "end":
            self.put_notice(end=message.end.reason or "end")
        elif kind == "checkpoint":
            self.put_notice(checkpoint=True)
        elif kind == "fence":
            generation = to_record(message.fence.generation, GenerationId)
            self.plans.put_fence(generation, message.fence.reason)
            on_fence(generation)
        elif kind == "stack":
            on_stack(message.stack.reason)

    def put_plan(self, plan: Plan) -> bool:
        """Take an announced plan with its decisions. Returns whether it is new (`PlanTable.receive`)."""
        with self._changed:
            if not self.plans.receive(plan):
                return False
            for decision in plan.decisions:
                self._put_decision(decision)
            return True

    def put_decision(self, decision: Decision) -> None:
        """Store a decision by its number and the lineage in which it was decided, for the vote that needs it."""
        with self._changed:
            self._put_decision(decision)
            self._changed.notify_all()

    def decision(self, lineage: int, number: int) -> Decision | None:
        """The decision due as `number` in `lineage`."""
        with self._changed:
            return self._decisions.get((lineage, number))

    def put_notice(self, *, drain: str = "", end: str = "", checkpoint: bool | None = None, lost: str = "") -> None:
        """Store a notice; arguments that are not given change nothing."""
        with self._changed:
            self.drain, self.end, self.lost = drain or self.drain, end or self.end, lost or self.lost
            self.checkpoint = self.checkpoint if checkpoint is None else checkpoint
            self._changed.notify_all()

    def due_report(self) -> DueReport | None:
        """The report that must be made now, if any: because the controller refuses this worker, or for a fence."""
        with self._changed:
            return DueReport(self.lost, self.plans.newest) if self.lost else self.plans.due_report()

    def check(self) -> None:
        """Raise Fenced if a report must be made now."""
        if (due := self.due_report()) is not None:
            raise Fenced(due)

    def wake(self) -> None:
        """Wake a thread in `wait`, after a change outside the mailbox."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Return when anything has arrived, or `wake` was called, or after `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    def _put_decision(self, decision: Decision) -> None:
        self._decisions[decision.decided_in, decision.number] = decision
