"""The end of a run: all members evaluate, hash and save together, then wait until the controller has stored the outcome.

After a failure the remaining members can repeat all of it, since it changes neither the run state nor the units.
"""

import logging
import threading
from pathlib import Path

import torch

from frostline_contract.phases import Phase
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_proto.v1 import control_pb2
from frostline_trainer.checkpoints.last_files import WAIT_SECONDS, LastFiles
from frostline_trainer.checkpoints.reading import is_complete
from frostline_trainer.checkpoints.saving import Saving
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.entering import Entered
from frostline_trainer.replication.copies import compare_copies
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.digests import world_digest
from frostline_trainer.step.due import Ended, LoopEnd
from frostline_trainer.step.evaluation import evaluate
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.run_state import RunState

log = logging.getLogger(__name__)
STATUS = {Ended.FINISHED: RunStatus.COMPLETED, Ended.DRAINED: RunStatus.SUSPENDED, Ended.FAILED: RunStatus.FAILED}


class Conclusion:
    """The end of a run in a worker: final evaluation, last checkpoint, final model.

    Args:
        context, state: the run's, on this worker.
        saving: this worker's checkpoints.
        client: sends the outcome to the controller.
        mailbox: the controller's notices; the notice of the run's end ends the wait.
        run_dir: folder of the final model.
        clock: the phase clock. Each part that is done counts as progress, so that neither a large split nor a slow disk looks
            like a hang.
    """

    def __init__(self, context: RunContext, state: RunState, saving: Saving, client: ControlClient, mailbox: Mailbox,
                 run_dir: Path, clock: PhaseClock) -> None:  # fmt: skip
        self._context, self._state, self._saving = context, state, saving
        self._client, self._mailbox, self._run_dir = client, mailbox, run_dir
        self._clock = clock

    def conclude(self, entered: Entered, ended: LoopEnd) -> None:
        """Conclude the run; returns when the controller has stored the result. Raises RuntimeError if a member is lost before
        that, or if copies of a unit differ."""
        self._clock.enter(Phase.FINISH)
        generation = entered.generation
        self._state.agreed_step = compare_copies(generation, self._state.step, self._state.agreed_step)
        files = LastFiles(self._saving, self._mailbox, self._clock.moved, patient=ended.how is not Ended.FAILED)
        folder = files.hand_in(entered, self._state)
        digest = world_digest(generation)
        unwritten = files.checkpoint(entered, self._state, folder)
        # The weights are safe before the score reads data that the run has not read yet: a broken sample ends the process.
        metrics = final_score(generation, self._state.step) if ended.how is Ended.FINISHED else {}
        if entered.index == 0:
            self._clock.enter(Phase.PUBLISH)
            if ended.how is Ended.FINISHED and not unwritten:
                unwritten = files.model(self._context, folder, RunDirectory(self._run_dir).model, self._state.step)
            self._send_outcome(self._outcome(ended, folder, unwritten, digest, metrics))
        self._clock.enter(Phase.DONE)
        while not self._mailbox.end:
            self._mailbox.check()
            self._mailbox.wait(WAIT_SECONDS)

    def _outcome(
        self, ended: LoopEnd, folder: Path, unwritten: str, digest: str, metrics: dict[str, float]
    ) -> control_pb2.RunOutcome:
        """The run's outcome.

        Args:
            ended: how training ended.
            folder: the last checkpoint.
            unwritten: why the run's last files could not be written; empty if they were.
            digest: of the final weights.
            metrics: of the final evaluation, by name.
        """
        published = is_complete(folder)
        status, message = STATUS[ended.how], ended.message
        if status != RunStatus.FAILED and unwritten:
            # A run without its last weights is neither completed nor can it be resumed from where it drained.
            status, message = RunStatus.FAILED, unwritten_text(self._state.step, folder, unwritten)
        place = str(folder.relative_to(self._saving.root)) if published else ""
        return make_outcome(status, self._context, self._state, digest, metrics, place, message)

    def _send_outcome(self, outcome: control_pb2.RunOutcome) -> None:
        """Send the outcome in the background, since the sender must still be able to receive a fence."""
        threading.Thread(target=self._client.outcome, args=(outcome,), name="outcome", daemon=True).start()


def final_score(generation: Generation, step: int) -> dict[str, float]:
    """The test split's metrics, measured without a lossy codec; they steer nothing in the run. step: the last committed one."""
    job = generation.context.job
    if not job.evaluation.test_at_end:
        return {}
    if job.cache.codec != "none":
        generation.freeze_to(generation.freeze_point)
    _, metrics = evaluate(generation, generation.context.data.test, step)
    return metrics


def unwritten_text(step: int, folder: Path, why: str) -> str:
    """A message for the user: what is missing and what to do.

    Args:
        step: the last committed step.
        folder: the last checkpoint.
        why: the system's error; empty if another member has failed.
    """
    return (
        f"trained to step {step}, but its weights could not be written to {folder} ({why or 'a share of it is missing'}); "
        "free some space and resume from the last complete checkpoint"
    )


def make_outcome(status: RunStatus, context: RunContext, state: RunState, digest: str, metrics: dict[str, float], checkpoint: str,
                 message: str = "") -> control_pb2.RunOutcome:  # fmt: skip
    """The outcome that the controller writes into result.json.

    Args:
        status: how the run ended.
        context, state: the run's, on this worker.
        digest: of the final weights.
        metrics: of the final evaluation, by name.
        checkpoint: the last checkpoint, relative to the checkpoint root; "": there is none.
        message: for the user; empty: there is none.
    """
    job = context.job
    settings = {
        "torch": torch.__version__,
        "device": context.device.type,
        "probe_digest": context.probe_digest,
        "probe": context.probe_detail,
        "dataset_digest": context.data.digest,
        "numerics": job.training.numerics,
        "numerics_hash": state.numerics_hash,
        "batch_size": str(job.training.batch_size),
        "micro_batch_size": str(job.training.micro_batch_size),
        "reduction_leaves": str(job.training.reduction_leaves),
        "threads": str(job.training.threads),
        "precision": context.precision.name,
        "seed": str(job.seed),
        "main_metric": context.task.main_metric,
        "lineage": str(state.lineage),
        "accepted_steps": str(state.accepted_steps),
    }
    return control_pb2.RunOutcome(
        status=status,
        digest=digest,
        final=metrics,
        steps=state.step,
        message=message,
        checkpoint_path=checkpoint,
        settings=settings,
    )
