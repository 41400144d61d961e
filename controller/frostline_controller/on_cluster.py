"""`python -m frostline_controller.on_cluster`: one of a release's controllers. It waits for the Lease, leads the run, and ends.

Environment, set by the chart: FROSTLINE_NAMESPACE, FROSTLINE_RELEASE, FROSTLINE_POD_NAME, FROSTLINE_POD_UID, FROSTLINE_RUN_DIR,
FROSTLINE_AUDIENCE (of trainers' tokens), FROSTLINE_CACHE (host:port of the cache server; unset: none), FROSTLINE_BIND_HOST
(0.0.0.0).

A leader whose Lease has expired ends at once, in any state: its writes are durable and fenced, the rest is left to its successor.
Exit codes: 0 stopped by a signal, 1 a fault, 2 the user's mistake, 4 another controller leads.
"""

import asyncio
import logging
import os
import secrets
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from frostline_contract.durable_files import PRIVATE, create_durably
from frostline_contract.job import Job, JobError
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cluster.kubernetes.api import Api, ApiError
from frostline_controller.cluster.kubernetes.backend import KubernetesBackend
from frostline_controller.cluster.kubernetes.job_source import JobSource
from frostline_controller.cluster.kubernetes.leader_label import LeaderLabel
from frostline_controller.cluster.kubernetes.lease import LeaderLease, LeaseTimes
from frostline_controller.decisions.next_decision import replayed_decisions
from frostline_controller.run.checkpoints import CannotWrite, has_been_used, try_to_write
from frostline_controller.run.controller import Controller
from frostline_controller.run.durable import DurableStore
from frostline_controller.run.patience import FILE_SECONDS, Stopped, patiently, pause
from frostline_controller.run.plug import plug_of
from frostline_controller.run.run import Run
from frostline_controller.run.same_job import check_same_job
from frostline_controller.run.settling import take_settled
from frostline_controller.serving.leading import lead, stamp_logs
from frostline_controller.serving.web import WebServer
from frostline_rpc.api_server import fetch_keys, token_review
from frostline_rpc.auth import CONTROLLER, OPERATOR, WORKER, Caller, Callers
from frostline_rpc.errors import NotLeading
from frostline_rpc.event_loop import run_serving
from frostline_rpc.health import serve_health
from frostline_rpc.projected import Bearer, ProjectedTokens

PORT, HEALTH_PORT, WEB_PORT = 7000, 7001, 7002
SUPERSEDED = 4
log = logging.getLogger("frostline_controller")


@dataclass(frozen=True)
class Settings:
    """The chart's settings of this pod."""

    namespace: str
    release: str
    pod_name: str
    pod_uid: str
    run_dir: Path
    audience: str
    cache_address: str
    host: str

    @staticmethod
    def from_environment() -> "Settings":
        """Read the settings from the environment. Raises ValueError for a missing variable."""
        names = ("NAMESPACE", "RELEASE", "POD_NAME", "POD_UID", "RUN_DIR", "AUDIENCE")
        missing = [f"FROSTLINE_{name}" for name in names if not os.environ.get(f"FROSTLINE_{name}")]
        if missing:
            raise ValueError(f"{', '.join(missing)} not set; this program is started by the chart, locally by `frostline run`")
        namespace, release, pod_name, pod_uid, run_dir, audience = (os.environ[f"FROSTLINE_{name}"] for name in names)
        cache = os.environ.get("FROSTLINE_CACHE", "")
        host = os.environ.get("FROSTLINE_BIND_HOST", "0.0.0.0")
        return Settings(namespace, release, pod_name, pod_uid, Path(run_dir), audience, cache, host)

    @property
    def identity(self) -> str:
        """The identity of this process among leaders (docs/protocols.md 5.4)."""
        return f"{self.pod_uid}/{secrets.token_hex(4)}"

    @property
    def trainers(self) -> str:
        """The name of the StatefulSet, and of its service account."""
        return f"{self.release}-trainer"


class LeaderGate:
    """Callers of a leader: no call is answered once the leader's time is over (docs/protocols.md 5.4)."""

    def __init__(self, callers: Callers, lease: LeaderLease) -> None:
        self._callers, self._lease = callers, lease

    async def identify(self, token: str) -> Caller | None:
        """Return the role of a token. Raises NotLeading once another controller may lead."""
        caller = await self._callers.identify(token)
        if not self._lease.leads():
            raise NotLeading("this controller leads no more; another one will answer")
        return caller


async def serve(settings: Settings) -> int:
    """Wait for the Lease, lead the run, end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    health, web = await serve_health(settings.host, HEALTH_PORT), WebServer()
    await web.start(settings.host, WEB_PORT)
    api = Api.in_cluster()
    jobs = JobSource(api, settings.namespace, f"{settings.release}-job", settings.release)
    times = (await patiently(partial(asyncio.to_thread, jobs.before_leading, settings.run_dir), stop)).kubernetes.lease
    lease = LeaderLease(
        api, settings.namespace, f"{settings.release}-controller", settings.identity,
        LeaseTimes(times.duration_seconds, times.renew_seconds, times.retry_seconds), on_lost=leave_at_once,
    )  # fmt: skip
    try:
        if not await acquired(lease, stop):
            return 0
        return await lead_run(settings, api, jobs, lease, web, stop)
    finally:
        await asyncio.to_thread(lease.release)
        await health.stop(None)
        await web.close()
        jobs.close()
        api.close()


async def acquired(lease: LeaderLease, stop: asyncio.Event) -> bool:
    """Whether this process leads now; False where it was stopped before."""
    acquiring = asyncio.create_task(asyncio.to_thread(lease.acquire))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        await asyncio.to_thread(lease.release)
    stopping.cancel()
    return await acquiring and not stop.is_set()


async def lead_run(settings: Settings, api: Api, jobs: JobSource, lease: LeaderLease, web: WebServer, stop: asyncio.Event) -> int:
    """Lead until a signal stops the process (0) or another controller has taken over (SUPERSEDED).

    Args:
        settings: from this process's environment.
        api: the API server.
        jobs: the job file in its ConfigMap.
        lease: the Lease, which this process holds.
        web: serves the run's pages and metrics from now on.
        stop: set by a signal.
    """
    job, said = await patiently(partial(asyncio.to_thread, jobs.accept, settings.run_dir), stop)
    logging.getLogger().setLevel(job.controller.log_level.upper())
    backend = KubernetesBackend(api, settings.namespace, settings.trainers, trainer_selector(settings.release))
    keeping: list[asyncio.Task[None]] = []
    try:
        run = await take_over(settings, job, backend, lease, stop)
        stamp_logs(run.facts)
        root = run.facts.job.checkpoint_root(settings.run_dir)
        if not await owns_folder(run, jobs, root, stop):
            return SUPERSEDED  # whoever starts next reads the folder anew
        if run.facts.current is None:  # a run that has trained goes on: its workers report each checkpoint that fails
            await wait_for_checkpoint_root(run, root, stop)
        await patiently(partial(asyncio.to_thread, keep_cache_secret, settings.run_dir), stop)  # the first file that needs a link

        async def started() -> Controller:
            """Start new parts: those of a start that has failed may count the time since then."""
            controller = Controller(run, replayed_decisions(run.facts.job, None), root, jobs, plug_of(run))
            await controller.start()
            return controller

        controller = await patiently(started, stop)
        for text in said:
            await run.outbox.event("command", text)
        label = LeaderLabel(api, settings.namespace, settings.release, settings.pod_name)

        async def take_the_service(port: int) -> None:
            await patiently(partial(asyncio.to_thread, label.take), stop)
            keeping.append(asyncio.create_task(label.keep(lease.leads)))

        callers = LeaderGate(known_callers(settings, backend), lease)
        web.lead(run.facts, run.store)
        asked_to_stop = await lead(controller, callers, settings.host, PORT, stop, take_the_service)
        return 0 if asked_to_stop else SUPERSEDED
    finally:
        for task in keeping:
            task.cancel()
        backend.close()


async def take_over(settings: Settings, job: Job, backend: KubernetesBackend, lease: LeaderLease, stop: asyncio.Event) -> Run:
    """Raise the incarnation, and open the run on the predecessor's state.

    Args:
        settings: from this process's environment.
        job: the job from the ConfigMap.
        backend: the cluster.
        lease: the run's files are written only while this process holds it.
        stop: set by a signal.

    Raises:
        Stopped: `stop` was set first.
    """
    store = DurableStore(backend)
    state, cluster = await patiently(partial(asyncio.to_thread, store.take_over), stop)
    file = RunDirectory(settings.run_dir).job
    job = await patiently(partial(asyncio.to_thread, take_settled, job, state, file), stop)
    check_same_job(state, job, file)

    def may_write() -> None:
        """The run's files lie on a shared volume, where no fence keeps a former leader from appending to its successor's."""
        if not lease.leads():
            raise NotLeading("this controller leads no more; another one writes the run's files")

    async def open_run() -> Run:
        place = settings.run_dir
        return Run(job, place, backend, store, state, cluster, cache_address=settings.cache_address, may_write=may_write)

    return await patiently(open_run, stop)


async def owns_folder(run: Run, jobs: JobSource, root: Path, stop: asyncio.Event) -> bool:
    """Whether this run may use its folder. Where the run is new, and the folder has the steps of a release of the same name and
    another job, whose volume was kept: wait until one of the two is changed, then return False. Raises Stopped."""
    folder, announced = run.store.places.path, ""
    if run.facts.state.started_at or not (run.store.records.latest or await asyncio.to_thread(has_been_used, root)):
        return True
    while unlike := await patiently(partial(asyncio.to_thread, jobs.unlike, folder), stop):
        text = (
            f"{folder} holds an earlier release's run of another job ({'; '.join(unlike)}): install under another name, move "
            "that folder away, or upgrade to that job to go on with it"
        )
        if text != announced:
            announced = text
            await run.outbox.event("cannot_start", text)
        await pause(stop, FILE_SECONDS)
    return not announced


async def wait_for_checkpoint_root(run: Run, root: Path, stop: asyncio.Event) -> None:
    """Return when checkpoints can be written. Until then there is one event for each reason, since on a cluster somebody mends
    the volume while this process waits. Raises Stopped."""
    announced = ""

    async def try_root() -> None:
        nonlocal announced
        try:
            await asyncio.to_thread(try_to_write, root)
        except CannotWrite as error:
            if str(error) != announced:
                announced = str(error)
                await run.outbox.event("cannot_start", announced)
            raise

    await patiently(try_root, stop, lambda error: isinstance(error, CannotWrite))


def keep_cache_secret(run_dir: Path) -> None:
    """Make the secret of a release's own Redis once, on the volume that the trainers share; they sign cached values with it."""
    file = RunDirectory(run_dir).cache_secret
    if not file.exists():
        create_durably(file, secrets.token_urlsafe(32), PRIVATE)


def known_callers(settings: Settings, backend: KubernetesBackend) -> ProjectedTokens:
    """Return the accepted callers: trainers in existing pods of this run, the cache server, and the check of the release."""
    roles = {settings.trainers: WORKER, f"{settings.release}-cache-server": CONTROLLER, f"{settings.release}-check": OPERATOR}
    is_genuine = token_review(settings.audience)

    async def confirm(bearer: Bearer, token: str) -> bool:
        if not await is_genuine(token):
            return False
        if roles.get(bearer.account) != WORKER:
            return True
        return await asyncio.to_thread(backend.has_pod, bearer.pod, bearer.pod_uid)

    return ProjectedTokens(settings.audience, settings.namespace, roles, fetch_keys, confirm)


def trainer_selector(release: str) -> str:
    """The labels of a release's trainer pods, as the API server's label selector."""
    return f"app.kubernetes.io/name=frostline,app.kubernetes.io/instance={release},app.kubernetes.io/component=trainer"


def leave_at_once() -> None:
    """End this process, since its Lease has expired: another controller may lead already."""
    os._exit(SUPERSEDED)


def main() -> int:
    """Wait for the Lease, lead, and end. Returns the exit status: 2 for an invalid job, 1 for any other error."""
    logging.basicConfig(
        level="INFO", format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s", stream=sys.stderr
    )
    try:
        return run_serving(serve(Settings.from_environment()))
    except Stopped:
        return 0
    except JobError as error:
        log.error("%s", error)
        return 2
    except (ValueError, ApiError) as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
