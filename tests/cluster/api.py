"""A few lines of REST for tests and test nodes: objects in and out as JSON, as one user of the API server."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import requests

log = logging.getLogger(__name__)

Json = dict[str, Any]
MERGE, JSON_PATCH, STRATEGIC = (f"application/{kind}-patch+json" for kind in ("merge", "json", "strategic-merge"))
WATCH_SECONDS = 30
AGAIN_SECONDS = 0.5


class Refused(RuntimeError):
    """The API server answered with an error. status: HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


TROUBLE = (Refused, requests.RequestException)
"""The exceptions that every call may raise."""


class Rest:
    """A REST client of one user. url, token, ca_file: of the API server and the user. seconds: limit of a call.

    certificate: files of the client's own certificate and key, instead of a token. Safe from several threads.
    """

    def __init__(self, url: str, token: str, ca_file: str, seconds: float = 10.0, *,
                 certificate: tuple[str, str] | None = None) -> None:  # fmt: skip
        self.url, self.token, self.ca_file = url, token, ca_file
        self._seconds = seconds
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy from the environment stands before loopback
        self._session.verify, self._session.cert = ca_file or True, certificate
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"
        self._session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=32))

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: Any) -> Json:
        """Send a request. Raises Refused, or requests.RequestException where the server does not answer."""
        answer = self._session.request(
            method, self.url + path, params=query, data=None if body is None else json.dumps(body), timeout=self._seconds,
            headers={"Content-Type": kind},
        )  # fmt: skip
        if answer.status_code >= 400:
            raise Refused(answer.status_code, answer.text[:500])
        return answer.json() if answer.content else {}

    def text(self, path: str, **query: Any) -> str:
        """Return a text that is not JSON, such as a log."""
        answer = self._session.get(self.url + path, params=query, timeout=self._seconds)
        if answer.status_code >= 400:
            raise Refused(answer.status_code, answer.text[:500])
        return answer.text

    def get(self, path: str, **query: Any) -> Json:
        return self.call("GET", path, **query)

    def create(self, path: str, body: Json) -> Json:
        return self.call("POST", path, body)

    def create_missing(self, path: str, body: Json) -> None:
        """Create an object; an existing one is left unchanged."""
        try:
            self.create(path, body)
        except Refused as error:
            if error.status != 409:
                raise

    def merge(self, path: str, body: Json) -> Json:
        return self.call("PATCH", path, body, MERGE)

    def strategic(self, path: str, body: Json) -> Json:
        """Send a patch that merges lists by their keys: conditions by type."""
        return self.call("PATCH", path, body, STRATEGIC)

    def delete(self, path: str, **options: Any) -> Json:
        return self.call("DELETE", path, options)

    def watch(self, path: str, seconds: int = WATCH_SECONDS, **query: Any) -> Iterator[Json]:
        """Yield the events of a list until the server ends the watch."""
        query |= {"watch": "true", "timeoutSeconds": seconds}
        with self._session.get(self.url + path, params=query, stream=True, timeout=(5, seconds + 10)) as answer:
            if answer.status_code >= 400:
                raise Refused(answer.status_code, answer.text[:500])
            for line in answer.iter_lines(chunk_size=None):
                if line:
                    yield json.loads(line)


class Follower(threading.Thread):
    """Reports every object of a list, by list and watch, for as long as the process lives or until `stop`.

    take(object, gone): called from this thread. Where it raises one of TROUBLE, all objects are listed and reported again a
    little later.
    """

    def __init__(self, rest: Rest, path: str, take: Callable[[Json, bool], None], **query: str) -> None:
        super().__init__(name=f"follow {path}", daemon=True)
        self._rest, self._path, self._take, self._query = rest, path, take, query
        self._known: dict[str, Json] = {}
        self._stopped = threading.Event()
        self.listed = threading.Event()

    def stop(self) -> None:
        """Report nothing any more; the thread ends with its watch."""
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._watch(self._list())
            except TROUBLE as error:
                log.info("list and watch begin again path=%s error=%s", self._path, error)
                self._stopped.wait(AGAIN_SECONDS)

    def _list(self) -> str:
        found = self._rest.get(self._path, **self._query)
        there = {one["metadata"]["uid"]: one for one in found["items"]}
        for uid in self._known.keys() - there.keys():
            self._publish(self._known[uid], True)
        for one in there.values():
            self._publish(one, False)
        self.listed.set()
        return found["metadata"]["resourceVersion"]

    def _watch(self, version: str) -> None:
        while not self._stopped.is_set():
            for event in self._rest.watch(self._path, resourceVersion=version, **self._query):
                if self._stopped.is_set():
                    return
                if event["type"] == "ERROR":
                    raise Refused(int(event["object"].get("code", 0)), str(event["object"].get("message")))
                version = event["object"]["metadata"]["resourceVersion"]
                self._publish(event["object"], event["type"] == "DELETED")

    def _publish(self, found: Json, gone: bool) -> None:
        if self._stopped.is_set():
            return
        uid = found["metadata"]["uid"]
        if gone:
            self._known.pop(uid, None)
        else:
            self._known[uid] = found
        self._take(found, gone)
