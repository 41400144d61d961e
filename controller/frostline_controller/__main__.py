"""`python -m frostline_controller --run-dir DIR`: one controller of one run, until it is told to stop."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

from frostline_contract.durable_files import replace_durably
from frostline_contract.job import Job, JobError, load_job
from frostline_contract.plan import Decision
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RESUMABLE, RunStatus
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.decisions.next_decision import replayed_decisions
from frostline_controller.planner.inputs import parallel_slots
from frostline_controller.run.controller import Controller
from frostline_controller.run.durable import DurableStore
from frostline_controller.run.patience import Stopped, may_pass, patiently
from frostline_controller.run.plug import plug_of
from frostline_controller.run.run import Run
from frostline_controller.run.same_job import check_same_job
from frostline_controller.run.settling import take_settled
from frostline_controller.serving.leading import lead, stamp_logs
from frostline_rpc.auth import Tokens
from frostline_rpc.event_loop import run_serving

SUPERSEDED = 4
"""Exit code of a controller that another one has replaced."""

RESUMED_STATES = RESUMABLE | {RunStatus.DRAINING}
"""The states from which --resume goes on. Draining: the predecessor was stopped (Ctrl-C twice) before the drain had ended.
Without --resume (after a controller's crash) such a drain goes on."""

log = logging.getLogger("frostline_controller")


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the options of one controller. Exits with 2 for unknown ones, as argparse does."""
    parser = argparse.ArgumentParser(prog="python -m frostline_controller", description="The controller of one run.")
    parser.add_argument("--run-dir", required=True, type=Path, help="folder of the run; holds job.yaml and tokens.json")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", default=0, type=int, help="TCP port; 0 chooses a free one")
    parser.add_argument("--replay", type=Path, help="folder of a run whose freeze history is followed")
    parser.add_argument(
        "--resume", action="store_true", help="go on with a run that was suspended, failed, cancelled or draining"
    )
    parser.add_argument(
        "--limit",
        default=0,
        type=int,
        help="with --resume: the most workers, -1: those of the job; without it as asked for before",
    )
    parser.add_argument(
        "--accept-numerics", action="store_true", help="with --resume: take workers of another probe digest, and record it"
    )
    return parser.parse_args(argv)


async def serve(options: argparse.Namespace) -> int:
    """Lead the run until SIGTERM or SIGINT (0), or until another controller has taken over (SUPERSEDED)."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        run, replayed = await take_over(options, stop)
        try:
            asked_to_stop = await lead_run(options, run, replayed, stop)
        finally:
            run.close()
    except Stopped:
        return 0
    return 0 if asked_to_stop else SUPERSEDED


async def take_over(options: argparse.Namespace, stop: asyncio.Event) -> tuple[Run, tuple[Decision, ...] | None]:
    """Raise the incarnation, and open the run on the predecessor's state. Returns the replayed decisions too. Raises Stopped."""
    folder: Path = options.run_dir
    places = RunDirectory(folder)
    job = await patiently(partial(asyncio.to_thread, read_job, places.job), stop)
    logging.getLogger().setLevel(job.controller.log_level.upper())
    replayed = replayed_decisions(job, options.replay)
    backend = await patiently(partial(asyncio.to_thread, LocalBackend, places.cluster), stop)
    store = DurableStore(backend)
    state, cluster = await patiently(partial(asyncio.to_thread, store.take_over), stop)
    job = await patiently(partial(asyncio.to_thread, take_settled, job, state, places.job), stop)
    check_same_job(state, job, places.job)
    slots = parallel_slots(job, len(os.sched_getaffinity(0)))  # the local cluster's pods share this machine

    async def open_run() -> Run:
        return Run(job, folder, backend, store, state, cluster, parallel_slots=slots)

    run = await patiently(open_run, stop)
    stamp_logs(run.facts)
    run.facts.accept_numerics = options.accept_numerics
    return run, replayed


def read_job(file: Path) -> Job:
    """Read the run's job file. Raises OSError where reading fails in a way that may pass, and JobError for any other mistake."""
    try:
        return load_job(file)
    except JobError as error:
        if isinstance(error.__cause__, OSError) and may_pass(error.__cause__):
            raise error.__cause__ from error
        raise


async def lead_run(options: argparse.Namespace, run: Run, replayed: tuple[Decision, ...] | None, stop: asyncio.Event) -> bool:
    """Start the run's parts and lead. A start that fails by a file is made again, with new parts: theirs have counted the time.

    True where `stop` was set, False where another controller has taken over. Raises Stopped.
    """
    places, asked, begun = run.store.places, options.resume, False

    async def say_where(port: int) -> None:
        await asyncio.to_thread(replace_durably, places.controller_address, f"{options.host}:{port}\n")

    async def start_and_lead() -> bool:
        nonlocal asked, begun
        controller = Controller(run, replayed, run.facts.job.checkpoint_root(places.path), plug=plug_of(run))
        await controller.start()
        if asked and (begun or is_to_resume(controller)):
            begun = True  # a resume that fails half-way may leave a state that no longer looks as if it were to resume
            await controller.commands.resume("resumed", options.limit)
        elif asked and is_to_limit(controller, options.limit):
            await controller.sizing.request_workers(options.limit, "resume")
        asked = False
        return await lead(controller, Tokens.read(places.tokens), options.host, options.port, stop, say_where)

    return await patiently(start_and_lead, stop)


def is_to_resume(controller: Controller) -> bool:
    """Whether --resume has something to do: the run has stopped, or a predecessor's result other than completion stands."""
    stands = controller.ending.outcome  # claimed, and not yet written
    stopped = controller.run.facts.state.state in RESUMED_STATES
    return stopped or (stands is not None and stands.status != RunStatus.COMPLETED)


def is_to_limit(controller: Controller, limit: int) -> bool:
    """Whether --limit replaces another limit of a run that goes on without an end to resume from: its controllers have died."""
    facts, stands = controller.run.facts, controller.ending.outcome is not None
    return limit != 0 and not facts.ended and not stands and facts.state.requested_workers not in (-1, limit)


def main(argv: list[str] | None = None) -> int:
    """Control one run until a signal stops it. Returns the exit status: 2 for an invalid job or folder, or a taken port."""
    logging.basicConfig(format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s", stream=sys.stderr)
    options = arguments(sys.argv[1:] if argv is None else argv)
    try:
        return run_serving(serve(options))
    except (ValueError, OSError) as error:
        print(f"frostline controller: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
