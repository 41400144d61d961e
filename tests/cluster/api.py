"""A few lines of REST for tests: objects in and out as JSON, as one user of the test control plane."""

import json
from collections.abc import Iterator
from typing import Any

import requests

Json = dict[str, Any]
PATCH = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}


class Refused(RuntimeError):
    """The API server answered with an error. status: HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Rest:
    """url, token, ca_file: of the API server and the user. Safe from several threads."""

    def __init__(self, url: str, token: str, ca_file: str) -> None:
        self._url, self._ca_file = url, ca_file
        self._headers = {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: Any) -> Json:
        """Raises Refused, or requests.RequestException where nobody answers."""
        answer = requests.request(
            method, self._url + path, params=query, data=None if body is None else json.dumps(body), timeout=10,
            headers={**self._headers, "Content-Type": kind}, verify=self._ca_file,
        )  # fmt: skip
        if answer.status_code >= 400:
            raise Refused(answer.status_code, answer.text[:500])
        return answer.json() if answer.content else {}

    def get(self, path: str, **query: Any) -> Json:
        return self.call("GET", path, **query)

    def create(self, path: str, body: Json) -> Json:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Json) -> Json:
        return self.call("PATCH", path, body, PATCH["merge"])

    def delete(self, path: str, **options: Any) -> Json:
        return self.call("DELETE", path, options)

    def watch(self, path: str, seconds: int = 30, **query: Any) -> Iterator[Json]:
        """Events of a list until the server ends it."""
        query |= {"watch": "true", "timeoutSeconds": seconds}
        with requests.get(
            self._url + path, params=query, headers=self._headers, verify=self._ca_file, stream=True, timeout=(5, seconds + 10)
        ) as answer:
            if answer.status_code >= 400:
                raise Refused(answer.status_code, answer.text[:500])
            for line in answer.iter_lines():
                if line:
                    yield json.loads(line)
