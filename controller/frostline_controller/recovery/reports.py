"""The facts of one failure while it is being answered: workers that were fenced, have reported, have ended, or are silent.

This file gathers these facts; `recovery.answer` decides.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from frostline_contract.lineage import Cuts, LineageStart
from frostline_contract.plan import GenerationId, SeenVote, StateTag
from frostline_contract.worker_id import pod_uid_of
from frostline_controller.recovery.answer import answer
from frostline_controller.recovery.facts import Answer, Failure, GoOn, HeldPiece, SurvivorReport, Wait
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import generation_of, to_message, to_record

UNWATCHED_SECONDS = 0.3
"""How long a worker's stream must be closed before an answer that loses nothing is made without the worker. A live worker opens
its stream again sooner."""
RETURN_SECONDS = 3.0
"""How long a new controller waits for members to connect to it before an answer that loses nothing is made without them."""


@dataclass
class Recovery:
    """One failure of a generation, with the reports received so far.

    A report is a promise: its worker enters no generation up to the one that the report names. Workers that have reported or
    ended are no longer waited for. A silent worker is waited for until `controller.dead_after_seconds` after its fence was sent,
    or, without a stream to send it on, after the stream was closed.

    Args:
        since: when the failure was first noticed, seconds by the run's clock.
        reason: the first sign of the failure, in words.
        of: the generation that failed.
        reports: the newest of each worker.
        errors: tracebacks from the reports, by worker, the first of each.
        asked: when the fence was sent, seconds by the run's clock, by worker.
        excluded: workers that hang or computed wrong bits, with the reason. They stay excluded even if they report later.
        hung: those of the excluded workers that hang.
        suspects: those of the excluded workers that computed wrong bits, or may have.
        charged: whether this failure has been charged to the retry budget.
        distrusted_from: the first step whose result is wrong and must not be used; 0: none is.
        cache_wrong: whether a wrong value of the cache is the reason.
        distrusted_detail: the differences that were found, for the event.
    """

    since: float
    reason: str
    of: GenerationId
    reports: dict[str, SurvivorReport] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    hung: set[str] = field(default_factory=set)
    suspects: set[str] = field(default_factory=set)
    charged: bool = False
    distrusted_from: int = 0
    cache_wrong: bool = False
    distrusted_detail: dict[str, str] = field(default_factory=dict)

    def take(self, request: pb.ReportRecoveryRequest, promise: bool = True) -> None:
        """Take a report, which replaces the earlier one of its worker.

        Args:
            request: the report.
            promise: whether the report concerns the generation that failed.
        """
        if promise:
            self.reports[request.worker_id] = survivor_report(request)
        if request.error and not request.fenced:
            self.errors.setdefault(request.worker_id, request.error)
        if request.distrusted_from:
            self.distrusted_from = min(self.distrusted_from or request.distrusted_from, request.distrusted_from)
            self.cache_wrong |= request.cache_distrusted
            self.excluded |= dict.fromkeys(request.distrusted_workers, last_line(request.error))
            self.suspects.update(request.distrusted_workers)
            self.distrusted_detail |= request.distrusted_detail

    def exclude_hung(self, worker_id: str, reason: str) -> None:
        """Exclude a worker that hangs from the answer."""
        self.excluded[worker_id] = reason
        self.hung.add(worker_id)

    def fence(self, facts: RunFacts, outbox: Outbox, now: float) -> None:
        """Send the fence to all participants of n and n + 1 that have not received it: they stop, and report their state."""
        plans = facts.live_plans
        newest = max(plan.generation for plan in plans)
        fenced = []
        for worker_id in sorted({worker for plan in plans for worker in plan.participants}):
            report = self.reports.get(worker_id)
            if worker_id in self.asked or (report is not None and newest <= report.newest_received):
                continue
            worker = facts.members.get(worker_id)
            if worker is not None and worker.watching:
                self.asked[worker_id] = now
                fenced.append(worker_id)
        if fenced:
            outbox.streams.send_to(fenced, fence_message(newest, self.reason))

    def failure(self, facts: RunFacts, now: float, votable: bool, doubted_too: bool = False) -> Failure:
        """Return the facts as of now.

        Args:
            facts: the run's facts.
            now: seconds by the run's clock.
            votable: whether members may have received the notice that all are ready for the prepared plan.
            doubted_too: count doubtful workers, which may still come back, as silent.
        """
        assert facts.current is not None
        plans = facts.live_plans
        named = {worker for plan in plans for worker in plan.participants} | set(self.reports)
        ended = {worker for worker in named if facts.members.has_ended(worker)}
        silent = {worker for worker in named - ended if self._is_silent(facts, worker, now, doubted_too)}
        return Failure(
            current=facts.current,
            prepared=facts.state.prepared,
            reports={worker: without_distrusted(report, facts.state.lineages) for worker, report in self.reports.items()},
            ended=frozenset(ended),
            silent=frozenset(silent),
            votable=votable,
        )

    def answer(self, facts: RunFacts, now: float, votable: bool) -> tuple[Answer, Failure]:
        """Return the answer as of now, and the facts that it follows from.

        Doubtful workers are not waited for where the run can go on without them and loses no step.

        Args:
            facts: the run's facts.
            now: seconds by the run's clock.
            votable: as in `failure`.
        """
        failure = self.failure(facts, now, votable)
        found = answer(failure)
        away = sorted(set(self.reports) - failure.silent - failure.ended - self._reachable(facts, now))
        if isinstance(found, Wait) or away:
            doubted = self.failure(facts, now, votable, doubted_too=True)
            without = answer(doubted)
            if isinstance(without, GoOn) and without.extends_all:
                return without, doubted
            if away:
                return Wait(tuple(away)), failure
        return found, failure

    def _reachable(self, facts: RunFacts, now: float) -> set[str]:
        return {worker_id for worker_id in self.reports if facts.members.reachable(worker_id, now)}

    def _is_silent(self, facts: RunFacts, worker_id: str, now: float, doubted_too: bool) -> bool:
        """Whether no report of a worker is expected: the worker hangs, is given up, or has missed its deadline. It may still run.

        Args:
            facts: the run's facts.
            worker_id: the worker.
            now: seconds by the run's clock.
            doubted_too: a broken stream or a few missed heartbeats are enough, though a live worker on a busy machine may have
                them.
        """
        if self.goes_with_excluded(worker_id):
            return True
        patience = min(RETURN_SECONDS if doubted_too else math.inf, facts.members.dead_after_seconds)
        if facts.members.loss_of(worker_id, facts.cluster.uids, settled=now - facts.started > patience):
            return True
        worker = facts.members.get(worker_id)
        if worker is None:
            return False
        if worker_id in self.reports:
            return doubted_too and not facts.members.reachable(worker_id, now)
        asked = self.asked.get(worker_id)
        if asked is None and not worker.watching:  # it cannot be asked
            asked = max(self.since, worker.unwatched_since)
        if asked is not None and now - asked > facts.members.dead_after_seconds:
            return True
        quiet = now - worker.last_received > facts.members.lost_after_seconds
        return doubted_too and (quiet or (not worker.watching and now - worker.unwatched_since > UNWATCHED_SECONDS))

    def goes_with_excluded(self, worker_id: str) -> bool:
        """Whether a worker is excluded, or shares the pod of an excluded worker; that pod is deleted after the answer."""
        pod = pod_uid_of(worker_id)
        return any(pod_uid_of(other) == pod for other in self.excluded)

    @property
    def may_be_replaced(self) -> dict[str, str]:
        """Excluded workers whose pods may be deleted before the answer, since no further report is expected of them: those that
        hang, and those with wrong bits once they have reported."""
        return {one: why for one, why in self.excluded.items() if one in self.hung or one in self.reports}


def survivor_report(request: pb.ReportRecoveryRequest) -> SurvivorReport:
    """Return the report of a message as a record."""
    return SurvivorReport(
        worker_id=request.worker_id,
        newest_received=generation_of(request.generation),
        ran=generation_of(request.ran) if request.HasField("ran") else None,
        held=tuple(
            HeldPiece(one.piece, to_record(one.state, StateTag) if one.intact else None, one.prepared) for one in request.pieces
        ),
        seen=tuple(to_record(one, SeenVote) for one in request.seen),
        switched=frozenset(generation_of(fate.generation) for fate in request.fates if fate.switched),
        expired=frozenset(generation_of(fate.generation) for fate in request.fates if not fate.switched),
    )


def distrusts_anew(request: pb.ReportRecoveryRequest, lineages: Iterable[LineageStart]) -> bool:
    """Whether the report declares results wrong that no lineage since the worker's own has declared wrong already."""
    lineage = max((one.state.lineage for one in request.pieces if one.intact), default=0)
    return bool(request.distrusted_from) and Cuts(tuple(lineages)).distrusting().survives(lineage, request.distrusted_from)


def without_distrusted(report: SurvivorReport, lineages: Iterable[LineageStart]) -> SurvivorReport:
    """Return the report without the states that a later lineage has declared wrong."""
    distrusting = Cuts(tuple(lineages)).distrusting()

    def trusted(state: StateTag | None, steps_ahead: int) -> bool:
        return state is not None and distrusting.survives(state.lineage, state.step + steps_ahead)

    return replace(
        report,
        held=tuple(
            replace(one, state=one.state if trusted(one.state, 0) else None, prepared=one.prepared and trusted(one.state, 1))
            for one in report.held
        ),
    )


def facts_line(failure: Failure, found: Answer) -> dict[str, object]:
    """Return the facts from which an answer was computed, in the form of plans.jsonl."""
    return {
        "reported": sorted(failure.reports),
        "ended": sorted(failure.ended),
        "silent": sorted(failure.silent),
        "missing": list(getattr(found, "missing", ())),
    }


def fence_message(generation: GenerationId, reason: str) -> pb.WatchPlanResponse:
    """Return the notice that all generations up to this one are over; a worker that receives it reports its state."""
    notice = pb.FenceNotice(generation=to_message(generation, plan_pb2.GenerationId), reason=reason)
    return pb.WatchPlanResponse(fence=notice)


def last_line(text: str) -> str:
    """Return the last non-empty line of a traceback, which names the error; "" for no text."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
