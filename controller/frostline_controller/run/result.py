"""The result of a run: claimed on the run epoch's object, so that there is only one, and written as result.json."""

import logging
import time
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from frostline_contract.plan import Plan
from frostline_contract.run_status import RunStatus
from frostline_controller.ledger.keeping import ledger_of
from frostline_controller.run.epochs import claim_result, current_epoch
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

RESULT_VERSION = 1


def claimed(root: Path, plan: Plan | None, outcome: pb.RunOutcome) -> pb.RunOutcome:
    """Return the outcome that counts: this one, or one that a predecessor claimed and could not write (docs/protocols.md 5.6).

    Args:
        root: of the checkpoints.
        plan: of the newest generation, for its run epoch; None: none was ever made.
        outcome: as reported by a worker or this controller.

    Raises:
        Conflict: another world goes on with the run.
        OSError: the run epoch's object cannot be written. A failure is returned all the same, since no second result can
            contradict it.
    """
    try:
        run_epoch = plan.run_epoch if plan is not None else current_epoch(root).run_epoch
        stands: dict[str, Any] = dict(claim_result(root, run_epoch, MessageToDict(outcome)))
    except OSError as error:
        if outcome.status != RunStatus.FAILED:
            raise
        log.warning("the result is not claimed error=%s", error)
        return outcome
    return ParseDict(stands, pb.RunOutcome())


def result_record(
    facts: RunFacts, store: RunStore, outcome: pb.RunOutcome, state: RunStatus, *, user_mistake: bool, crash_loop: bool
) -> dict[str, object]:
    """Return the contents of result.json (docs/run-directory.md has the schema).

    Args:
        facts: of the run.
        store: of the run.
        outcome: the one that counts.
        state: in which the run ends.
        user_mistake: the outcome is a failure that the user has to correct.
        crash_loop: the outcome is a failure that recoveries did not help.
    """
    job, known = facts.job, facts.identity
    settings = {
        **dict(outcome.settings),
        "job_name": job.name, "seed": job.seed, "family": job.model.family, "task": job.task.kind,
        "batch_size": job.training.batch_size, "micro_batch_size": job.training.micro_batch_size,
        "num_microbatches": job.training.num_microbatches, "reduction_leaves": job.training.reduction_leaves,
        "precision": outcome.settings.get("precision", job.training.precision),
        "numerics": job.training.numerics, "batch": job.training.batch,
        "total_steps": facts.total_steps, "freeze_policy": job.freeze.policy.name if job.elastic.freeze else "none",
        "workers": job.placement.workers, "dataset_digest": known.dataset_digest if known else "",
        "weights_digest": known.weights_digest if known else "", "probe_digest": known.probe_digest if known else "",
        "probe_detail": known.probe_detail if known else "",
    }  # fmt: skip
    return {
        "version": RESULT_VERSION,
        "name": job.name,
        "status": state,
        "steps": outcome.steps,
        "memory": facts.memory.rows(),
        "traffic": store.records.carried.as_json(),
        "ledger": ledger_of(facts, store).as_json(),
        "wall_seconds": round(max(0.0, time.time() - facts.state.started_at), 3) if facts.state.started_at else 0.0,
        "digest": outcome.digest,
        "final": dict(outcome.final),
        "message": outcome.message,
        "user_mistake": user_mistake,
        "crash_loop": crash_loop,
        "checkpoint_path": outcome.checkpoint_path,
        "lineage": facts.state.lineage,
        "settings": settings,
        "events": store.events.all(),
    }
