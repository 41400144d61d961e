"""A cache of the objects of one list, kept up to date by list and watch in a separate thread.

A list gives all objects and a resource version. A watch from that version streams each later change, and at intervals a bookmark,
so that the version stays recent. The server ends every watch after a while (`api.WATCH_SECONDS`) and keeps versions for some
minutes only: a watch from an older version is answered 410 Gone, which is no fault, and the cache lists again. It also lists
again after a watch that breaks off or falls silent. After failures it waits longer each time, with jitter, so that a thousand
runs do not all reconnect at the moment when an API server is back.

No reader acts on events: they only report that something changed, and readers judge by the objects. The result of this process's
own write is put into the cache at once (`ObjectCache.put`), so that the writer reads it before its event arrives.
"""

import logging
import threading
import time
from collections.abc import Callable

from frostline_contract.backoff import Backoff
from frostline_controller.cluster.kubernetes.api import Api, ApiError, Expired, Json

log = logging.getLogger(__name__)

WAIT_SECONDS_FIRST, WAIT_SECONDS_MAX = 0.5, 15.0


class ObjectCache:
    """The objects of one list of the API server, kept up to date by a thread that lists and watches.

    Args:
        path, query: of the list's URL.
        on_change: called, from the cache's thread, after every change.
    """

    def __init__(self, api: Api, path: str, query: dict[str, str], on_change: Callable[[], None]) -> None:
        self._api, self._path, self._query, self._on_change = api, path, query, on_change
        self._lock = threading.Lock()
        self._objects: dict[str, Json] = {}
        self._newest_version = 0
        self._put: dict[str, Json] = {}
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._error: ApiError | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path.rsplit('/', 1)[-1]}", daemon=True)

    def start(self) -> None:
        """List and watch from now on, until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end with its present watch."""
        self._stopped.set()

    def objects(self, seconds: float) -> dict[str, Json]:
        """Return the objects by name, as last received. Raises ApiError where no list has arrived within `seconds`."""
        if not self._listed.wait(seconds):
            raise self._error or ApiError(0, f"{self._path}: no answer within {seconds:g} s")
        with self._lock:
            return dict(self._objects)

    def put(self, changed: Json) -> None:
        """Store the answer to an own write, so that the writer reads it; an answer older than the known object is ignored."""
        name, version = changed["metadata"]["name"], _version(changed)
        with self._lock:
            known = self._objects.get(name)
            if version > (_version(known) if known is not None else self._newest_version):
                self._objects[name] = self._put[name] = changed

    def _run(self) -> None:
        backoff = Backoff(WAIT_SECONDS_FIRST, WAIT_SECONDS_MAX, spread=0.5, healthy_seconds=WAIT_SECONDS_MAX)
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self._follow(self._list())
            except Expired as error:
                log.info("list again path=%s reason=%s", self._path, error)
            except ApiError as error:
                self._error = error
                log.warning("watch failed path=%s error=%s", self._path, error)
            except Exception:  # an unforeseen answer: without this thread the controller would never see another change
                log.exception("watch failed path=%s", self._path)
            self._stopped.wait(backoff.failed(time.monotonic() - started))

    def _list(self) -> str:
        """Take the whole list. Return the version from which a watch goes on."""
        with self._lock:
            self._put.clear()
        found = self._api.get(self._path, **self._query)
        with self._lock:
            self._newest_version = _version(found)
            newer = {name: one for name, one in self._put.items() if _version(one) > self._newest_version}
            self._objects = {one["metadata"]["name"]: one for one in found["items"]} | newer
        self._listed.set()
        self._on_change()
        return found["metadata"]["resourceVersion"]

    def _follow(self, version: str) -> None:
        """Watch, and watch again from the end of the last watch, until one fails."""
        while not self._stopped.is_set():
            for event in self._api.watch(self._path, resourceVersion=version, **self._query):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._take(event)
                if self._stopped.is_set():
                    return

    def _take(self, event: Json) -> None:
        changed = event["object"]
        name = changed["metadata"]["name"]
        with self._lock:
            self._newest_version = max(self._newest_version, _version(changed))
            known = self._objects.get(name)
            if known is not None and _version(known) > _version(changed):
                return
            if event["type"] == "DELETED":
                self._objects.pop(name, None)
            else:
                self._objects[name] = changed
        self._on_change()


def _version(found: Json) -> int:
    """Return the resource version. Versions of one kind can be compared (a promise since Kubernetes 1.35; always true of etcd's
    revisions)."""
    return int(found["metadata"]["resourceVersion"])
