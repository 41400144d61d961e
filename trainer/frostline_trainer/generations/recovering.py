"""A worker's part of a recovery: it reports the state that it holds, and may commit one step late (docs/protocols.md 4.1)."""

import logging
import traceback
from collections import deque

import torch

from frostline_contract.plan import GenerationId, Plan, SeenVote
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.convert import to_message
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Fenced, Mailbox
from frostline_trainer.process.sick_device import memory_shortage
from frostline_trainer.replication.wrong_bits import CacheDiffers, WrongBits
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.loop import TrainingLoop
from frostline_trainer.step.run_state import RunState

log = logging.getLogger(__name__)
ERROR_CHARACTERS = 4000


class Recovery:
    """The contents of a recovery report: the votes that this worker has seen, and the loop whose step it may still commit.

    Only the training thread uses it.

    Args:
        worker_id: this worker.
        context, state: the run's, on this worker.
        mailbox: has the plan table, with the outcomes of plans.
        client: sends the report.

    Attributes:
        ran: the generation of which this worker was last a member, and to which prepared gradients belong.
        seen: the votes of the newest steps; the training loop adds them.
    """

    def __init__(self, worker_id: str, context: RunContext, state: RunState, mailbox: Mailbox, client: ControlClient) -> None:
        self._worker_id, self._context, self._state = worker_id, context, state
        self._mailbox, self._client = mailbox, client
        self.ran: GenerationId | None = None
        self._plan: Plan | None = None
        self._failed: TrainingLoop | None = None
        self.seen: deque[SeenVote] = deque(maxlen=2)
        self._switched: deque[GenerationId] = deque(maxlen=2)
        self._unanswered: control_pb2.ReportRecoveryRequest | None = None

    # ---- before a failure

    def switched(self, plan: Plan) -> None:
        """Note that a vote has switched to `plan`."""
        self._switched.append(plan.generation)

    def entering(self, plan: Plan) -> None:
        """Note that this worker's state belongs to `plan`'s generation from now on, and drop prepared gradients.

        `commit_late` was called before.
        """
        self.drop_prepared()
        self.ran, self._plan, self._unanswered = plan.generation, plan, None

    @property
    def seen_step(self) -> int:
        """The step of the newest vote that this worker has seen; -1 for none."""
        return self.seen[-1].step if self.seen else -1

    # ---- when it has failed

    def take_over(self, loop: TrainingLoop) -> None:
        """Take the prepared step of the failed loop, for a late commit, and nothing that refers to the loop's groups."""
        self.drop_prepared()
        loop.generation.abandon(keep_prepared=loop.prepared is not None)
        if loop.prepared is not None:
            self._failed = loop

    def drop_prepared(self) -> None:
        """Drop the prepared gradients of the failed generation."""
        if self._failed is not None:
            self._failed.generation.abandon(keep_prepared=False)
        self._failed = None

    def report(self, failure: RuntimeError, newest_received: GenerationId) -> None:
        """Send the report, in the background.

        Args:
            failure: why the generation ended here.
            newest_received: this worker promises to enter no generation up to this one.
        """
        request = control_pb2.ReportRecoveryRequest(
            worker_id=self._worker_id,
            incarnation=self._client.response.incarnation if self._client.response is not None else 0,
            generation=to_message(newest_received, plan_pb2.GenerationId),
            pieces=self._pieces(),
            seen=[to_message(vote, plan_pb2.SeenVote) for vote in self.seen],
            fates=self._plan_outcomes(),
            error="" if isinstance(failure, Fenced) else text_of(failure),
            fenced=isinstance(failure, Fenced),
        )
        if isinstance(failure, torch.OutOfMemoryError):
            request.memory_shortage.CopyFrom(memory_shortage(self._context))
        if isinstance(failure, WrongBits):
            # The cache may have been wrong since its first use; the step under way must not be used in any case.
            request.distrusted_from = failure.first_step or self._state.cache_step or self._state.step + 1
            request.cache_distrusted = isinstance(failure, CacheDiffers)
            request.distrusted_workers.extend(failure.workers)
            request.distrusted_detail.update(failure.detail)
        if self.ran is not None:
            request.ran.CopyFrom(to_message(self.ran, plan_pb2.GenerationId))
        self._add_unanswered(request)
        self._client.report_recovery(request)
        log.info(
            "reported at step %d: heard %s, ran %s, %d pieces", self._state.step, newest_received, self.ran, len(request.pieces)
        )

    def _add_unanswered(self, request: control_pb2.ReportRecoveryRequest) -> None:
        """Add the findings of an earlier report that no plan has answered: this one replaces it, perhaps before it was sent."""
        earlier, self._unanswered = self._unanswered, request
        if earlier is None:
            return
        if earlier.generation == request.generation and request.fenced:
            request.error, request.fenced = earlier.error, earlier.fenced
        if earlier.HasField("memory_shortage") and not request.HasField("memory_shortage"):
            request.memory_shortage.CopyFrom(earlier.memory_shortage)
        if earlier.distrusted_from:
            first = min(one for one in (earlier.distrusted_from, request.distrusted_from) if one)
            request.distrusted_from = first
            request.cache_distrusted |= earlier.cache_distrusted
            request.distrusted_workers.extend(set(earlier.distrusted_workers) - set(request.distrusted_workers))
            request.distrusted_detail.update({**earlier.distrusted_detail, **request.distrusted_detail})

    def commit_late(self, plan: Plan) -> None:
        """Commit the step of the plan's vote, if this worker has prepared exactly this step and has not committed it."""
        vote, loop, state = plan.vote, self._failed, self._state
        if vote is None or loop is None or loop.prepared is None:
            return
        same = (vote.lineage, vote.step, vote.generation) == (state.lineage, loop.prepared.step, loop.plan.generation)
        if same and state.step == vote.step - 1:
            loop.commit_late(vote)
            if vote not in self.seen:
                self.seen.append(vote)
            log.info("committed step %d of %s late", vote.step, vote.generation)

    def _pieces(self) -> list[control_pb2.PieceReport]:
        """The pieces in the report: intact ones with their state tags, and torn ones that this worker should hold."""
        held, needed = self._context.holdings.all(), set(self._plan.needs(self._worker_id)) if self._plan is not None else set()
        prepared = self._failed is not None
        reports = []
        for piece in sorted(needed | held.keys()):
            tag = held.get(piece)
            report = control_pb2.PieceReport(piece=piece, intact=tag is not None)
            if tag is not None:
                report.state.CopyFrom(to_message(tag, plan_pb2.StateTag))
                report.prepared = prepared and piece in needed and tag == self._state.tag
            reports.append(report)
        return reports

    def _plan_outcomes(self) -> list[control_pb2.PlanFate]:
        known = [(generation, True) for generation in self._switched]
        known += [(generation, False) for generation in sorted(self._mailbox.plans.expired)]
        return [
            control_pb2.PlanFate(generation=to_message(generation, plan_pb2.GenerationId), switched=switched)
            for generation, switched in known
        ]


def text_of(failure: BaseException) -> str:
    """A failure's text and the end of its traceback."""
    return "".join(traceback.format_exception(failure))[-ERROR_CHARACTERS:]


def release_frames(failure: BaseException | None) -> None:
    """Clear an exception's frames, since they keep references to a failed generation's tensors, and so its sockets open."""
    while failure is not None:
        traceback.clear_frames(failure.__traceback__)
        before = failure.__cause__ or failure.__context__
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        failure = before
