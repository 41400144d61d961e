"""The job of a release: the job that the chart's ConfigMap offers, and the part of it that the run follows (docs/protocols.md
8.6, 9).

The run's folder holds the job that the run follows. An upgraded release offers another job: its live fields are taken, its fixed
fields are refused by name, and the run goes on either way.
"""

import logging
import threading
from pathlib import Path

from frostline_contract.durable_files import replace_durably
from frostline_contract.job import Job, JobError, dump_job, load_job, parse_job, read_yaml
from frostline_contract.job.automatic import with_numbers_of
from frostline_contract.job.change import differences, take_changes
from frostline_controller.cluster.kubernetes.api import Api
from frostline_controller.cluster.kubernetes.object_cache import ObjectCache

JOB_KEY = "job.yaml"
log = logging.getLogger(__name__)


class JobSource:
    """The job file of a release, watched in its ConfigMap. `close` ends the watch.

    Args:
        namespace, name: of the ConfigMap.
        release: the run's name, which replaces the name in the job file.
    """

    def __init__(self, api: Api, namespace: str, name: str, release: str) -> None:
        self._api, self._release = api, release
        folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._path = f"{folder}/{name}"
        self._changed = threading.Event()
        self._watch = ObjectCache(api, folder, {"fieldSelector": f"metadata.name={name}"}, self._changed.set)
        self._watch.start()

    def changed(self) -> bool:
        return self._changed.is_set()

    def close(self) -> None:
        """End the watch of the ConfigMap."""
        self._watch.stop()

    def offered(self) -> Job:
        """Return the job that the release has now. Raises JobError for an invalid job, ApiError where the API server does not
        answer."""
        held = self._api.get(self._path).get("data") or {}
        if JOB_KEY not in held:
            raise JobError(f"ConfigMap {self._path.rsplit('/', 1)[-1]} has no {JOB_KEY}; install the chart again")
        raw = read_yaml(held[JOB_KEY])
        if not isinstance(raw, dict):
            raise JobError(f"{JOB_KEY} holds {type(raw).__name__}, expected a mapping with model, task, data and training")
        return parse_job({**raw, "name": self._release}, JOB_KEY)

    def before_leading(self, run_dir: Path) -> Job:
        """Return the job that says how this process waits for the Lease: the offered one, or where that is invalid the one that
        the run follows. Who leads then refuses the offered one by an event, and the run goes on.

        Blocking. Raises JobError where neither can be used, OSError.
        """
        try:
            return self.offered()
        except JobError as error:
            file = run_dir / JOB_KEY
            if not file.exists():
                raise
            log.warning("the release's new job is invalid, the run's own job counts job=%s error=%s", file, error)
            return load_job(file)

    def unlike(self, run_dir: Path) -> list[str]:
        """Return the fixed fields in which the job of the run's folder is not the release's, with both values; empty where one of
        the two jobs is missing or invalid, which is said elsewhere. Blocking. Raises OSError."""
        try:
            held = load_job(run_dir / JOB_KEY)
            found = differences(held, with_numbers_of(self.offered(), held))
        except ValueError:
            return []
        return [f"{one.path} {one.before!r:.60}, not {one.after!r:.60}" for one in found if not one.live]

    def accept(self, run_dir: Path) -> tuple[Job, list[str]]:
        """Return the job that the run follows from now on, written to its folder, and the messages about changes.

        Blocking. Raises JobError for an invalid first job (a later one is refused, and the run goes on), OSError.
        """
        self._changed.clear()
        try:
            return self._accept(run_dir)
        except (OSError, ValueError):
            self._changed.set()
            raise

    def _accept(self, run_dir: Path) -> tuple[Job, list[str]]:
        file = run_dir / JOB_KEY
        run_dir.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            job = self.offered()
            replace_durably(file, dump_job(job))
            return job, []
        followed = load_job(file)
        try:
            offered = self.offered()
        except JobError as error:
            return followed, [f"refused: the release's new job: {error}"]
        job, said = take_changes(followed, with_numbers_of(offered, followed))
        if job != followed:
            replace_durably(file, dump_job(job))
        return job, said
