"""A worker process: one training process, from its start to its exit code.

Environment: see docs/design.md 14. Exit codes: 0 ended as told, 2 the user's mistake, 3 refused by the controller, 70 a fault,
71 its device failed (frostline_contract/exit_codes.py).
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

import torch

from frostline_contract.cpu_groups import enter_from
from frostline_contract.exit_codes import DONE, FAULT, REFUSED, USER_MISTAKE
from frostline_contract.job import Job, job_from_json
from frostline_contract.statistics import WorkerProfile
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.convert import to_message, to_record
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.connection import ControllerConnection, Refused
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.worker import Worker
from frostline_trainer.memory import settle_allocator
from frostline_trainer.process.identity import Identity
from frostline_trainer.process.plug import plug_of
from frostline_trainer.process.sick_device import end_if_sick
from frostline_trainer.process.sizes import measure_sizes
from frostline_trainer.transport import nccl

log = logging.getLogger(__name__)
JOB_PATIENCE_SECONDS = 60.0
SETTLING_SECONDS = 0.2


def main() -> int:
    """Entry point of a worker process (forked by the preload process, or started by itself)."""
    nccl.quiet()
    # Before any thread starts: one that does not block the signal would get it, and it would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    settle_allocator()
    identity = Identity.from_environment()
    enter_from(os.environ, identity.worker_id.replace("/", "-"))
    logging.basicConfig(
        level=os.environ.get("FROSTLINE_LOG_LEVEL", "INFO").upper(),
        format=f"%(asctime)s {identity.pod_name} %(levelname)s %(name)s %(message)s",
        stream=sys.stdout,
        force=True,
    )
    worker = None
    _leave_on_notice(lambda: worker)
    try:
        if mistake := os.environ.get("FROSTLINE_DEVICE_MISTAKE"):
            raise ValueError(mistake)
        worker = Worker(identity, *ask_for_job(identity))
        return worker.run()
    except Refused as refusal:
        log.error("refused: %s", refusal)
        return REFUSED
    except ValueError as mistake:
        log.error("%s", mistake)
        _report_outcome(identity, worker, str(mistake), user_mistake=True)
        return USER_MISTAKE
    except torch.OutOfMemoryError as shortage:
        log.exception("out of memory")
        mistake = (
            f"{identity.pod_name} has too little device memory to begin: {str(shortage).splitlines()[0]}; lower "
            "training.micro_batch_size, set training.activation_checkpointing, or use GPUs with more memory"
        )
        _report_outcome(identity, worker, mistake, user_mistake=True)
        return USER_MISTAKE
    except Exception as fault:
        end_if_sick(fault)
        log.exception("fault")
        _report_outcome(identity, worker, "".join(traceback.format_exception(fault))[-4000:], user_mistake=False)
        return FAULT


def ask_for_job(identity: Identity) -> tuple[Job, list[WorkerProfile]]:
    """The run's job from the controller, and the profiles that the run has measured, by kind of device.

    If the job leaves numerics to the run, this worker measures sizes for their choice, and waits until they are chosen.
    Raises Refused, or TimeoutError if no controller answers.
    """
    connection = ControllerConnection(identity.controller, identity.token, plug_of(os.environ))
    try:
        answer = connection.call("DescribeJob", control_pb2.DescribeJobRequest(), JOB_PATIENCE_SECONDS)
        job = _job_of(answer)
        if job.training.automatic:
            measured = to_message(measure_sizes(job), plan_pb2.SizeProfiles)
            while job.training.automatic:  # until the run has chosen, by this worker's or another one's measurement
                answer = connection.call("DescribeJob", control_pb2.DescribeJobRequest(measured=measured), JOB_PATIENCE_SECONDS)
                job = _job_of(answer)
                time.sleep(SETTLING_SECONDS if job.training.automatic else 0.0)
    finally:
        connection.stop()
    return job, [to_record(profile, WorkerProfile) for profile in answer.profiles]


def _job_of(answer: control_pb2.DescribeJobResponse) -> Job:
    return job_from_json(answer.job, "the controller's job")


def _leave_on_notice(found: Callable[[], Worker | None]) -> None:
    """Wait for SIGTERM in a thread: a handler would run only after the training thread's current collective.

    Every thread has to block the signal. So do the processes that a worker starts (decoders of images, compilers), which end with
    it by other means: a pipe that is closed, or SIGKILL.

    Args:
        found: the worker, which leaves; None before it exists: no plan names this process yet, so it just ends.
    """

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        worker = found()
        if worker is None:
            os._exit(DONE)
        worker.leave("SIGTERM")

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def _report_outcome(identity: Identity, worker: Worker | None, error: str, user_mistake: bool) -> None:
    """Report this process's end to the controller, even if the worker has never registered."""
    client = (worker.client if worker is not None else None) or ControlClient(
        identity.controller,
        identity.token,
        control_pb2.RegisterRequest(worker_id=identity.worker_id, pod_name=identity.pod_name),
        Mailbox(identity.worker_id),
        control_pb2.HeartbeatRequest,
        lambda lineage, step, interval: None,
        plug_of(os.environ),
    )
    try:
        client.leave("ended", ended=True, error=error, user_mistake=user_mistake)
    except (TimeoutError, Refused) as error_of_call:
        log.warning("the controller did not hear of it: %s", error_of_call)


if __name__ == "__main__":
    sys.exit(main())
