"""The only module that imports `kubernetes`: objects of an API server as plain JSON, with a deadline for every call.

The client does what is hard to get right (kubeconfig, in-cluster tokens and their rotation, TLS). Its typed models and its watch
are not used: models cost memory for every existing kind of object, and a watch without a read timeout waits for ever on a
connection that is half open.
"""

import copy
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.config.incluster_config import InClusterConfigLoader

from frostline_controller.cluster.backend import ClusterError
from frostline_rpc.api_server import account_folder

log = logging.getLogger(__name__)

CONNECT_SECONDS, READ_SECONDS = 3.0, 10.0
WATCH_SECONDS = 60
"""The length of a watch, in seconds, after which the server ends it; a longer silence means that the connection is dead."""
WATCH_SILENCE_SECONDS = 70.0
TOKEN_SECONDS = 60.0
TOKEN_KEY = "BearerToken"
POLICY_REMEDY = "does the NetworkPolicy (kubernetes.network_policy.api_ports) let the API server's own port through?"
"""What to look at where a pod does not reach the API server. Most networks judge the port behind the API server's Service."""

Json = dict[str, Any]
JSON, JSON_PATCH, MERGE_PATCH = "application/json", "application/json-patch+json", "application/merge-patch+json"


class ApiError(ClusterError):
    """The API server refused a request, or could not be reached. `status` is the HTTP status; 0 where there was no answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NotFound(ApiError):
    """There is no such object."""


class Changed(ApiError):
    """The object is not in the state that the request expected (409, or a JSON patch that does not apply)."""


class Expired(ApiError):
    """The resource version from which a watch was to go on is too old (410): list again."""


class Api:
    """Calls of one API server, from any thread. They raise ApiError (an OSError) or a subclass."""

    def __init__(self, configuration: client.Configuration, remedy: str = "") -> None:
        """Make the client; remedy: what may help where the API server cannot be reached."""
        configuration.retries = False
        self._client = client.ApiClient(configuration)
        self._call_seconds = (CONNECT_SECONDS, READ_SECONDS)
        self._remedy = remedy

    @staticmethod
    def in_cluster() -> "Api":
        """Return an Api with the pod's service account; its token is read again every minute."""
        folder = account_folder()
        configuration = client.Configuration()
        loader = InClusterConfigLoader(str(folder / "token"), str(folder / "ca.crt"), try_refresh_token=False)
        try:
            loader.load_and_set(configuration)
        except (config.ConfigException, OSError) as error:
            raise ApiError(0, f"no service account below {folder}: {error}") from error
        configuration.refresh_api_key_hook = _RenewedToken(folder / "token")
        return Api(configuration, POLICY_REMEDY)

    @staticmethod
    def from_kubeconfig(path: str | None = None, context: str | None = None) -> "Api":
        """Return an Api with a person's account: $KUBECONFIG or ~/.kube/config where no path is given."""
        configuration = client.Configuration()
        try:
            config.load_kube_config(config_file=path, context=context, client_configuration=configuration)
        except config.ConfigException as error:
            raise ApiError(0, f"no kubeconfig: {error}; set KUBECONFIG or --kubeconfig") from error
        return Api(configuration)

    @staticmethod
    def namespace_of_kubeconfig(path: str | None = None, context: str | None = None) -> str:
        """Return the namespace of the context that `from_kubeconfig` uses; "default" where the context names none."""
        try:
            known, active = config.list_kube_config_contexts(config_file=path)
        except config.ConfigException as error:
            raise ApiError(0, f"no kubeconfig: {error}; set KUBECONFIG or --kubeconfig") from error
        chosen = next((one for one in known if one["name"] == context), active)
        return str(chosen["context"].get("namespace") or "default")

    def within(self, seconds: float) -> "Api":
        """Return the same API server for callers with less patience: each call may take `seconds` to connect, and the same for
        the answer. Token and connections are shared."""
        hasty = copy.copy(self)
        hasty._call_seconds = (min(CONNECT_SECONDS, seconds), min(READ_SECONDS, seconds))
        return hasty

    def get(self, path: str, **query: Any) -> Json:
        """Read the object or list at a path."""
        return self._call("GET", path, query)

    def text(self, path: str, seconds: float = READ_SECONDS, **query: Any) -> str:
        """Return a text that is not JSON: a log, or a page through the API server's proxy.

        Args:
            path: of the URL, from its first "/".
            seconds: the longest silence before the request fails.
            query: the URL's query.
        """
        response = self._send("GET", path, query, None, JSON, (CONNECT_SECONDS, seconds), accept="*/*")
        return bytes(response.data).decode("utf-8", errors="replace")

    def create(self, path: str, body: Json, **query: Any) -> Json:
        """Make an object in the list at a path, and return the server's version of it."""
        return self._call("POST", path, query, body)

    def replace(self, path: str, body: Json, **query: Any) -> Json:
        """Replace the object at a path. Raises Changed where `body` has an outdated resourceVersion."""
        return self._call("PUT", path, query, body)

    def patch(self, path: str, body: list[Json] | Json, **query: Any) -> Json:
        """Patch an object: a list is a JSON patch, an object a merge patch."""
        return self._call("PATCH", path, query, body, JSON_PATCH if isinstance(body, list) else MERGE_PATCH)

    def delete(self, path: str, body: Json) -> Json:
        """Delete an object; return the server's answer.

        Args:
            path: of the object's URL, from its first "/".
            body: DeleteOptions.
        """
        return self._call("DELETE", path, {}, body)

    def watch(self, path: str, **query: Any) -> Iterator[Json]:
        """Yield the events of a list, with bookmarks, until the server or a silence ends the watch.

        Raises Expired, whether the server reports it as a status or as an event.
        """
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_SECONDS}
        response = self._send("GET", path, query, None, JSON, (CONNECT_SECONDS, WATCH_SILENCE_SECONDS), stream=True)
        try:
            rest = b""
            for piece in response.stream(amt=None, decode_content=True):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield _checked(json.loads(line))
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise ApiError(0, f"watch of {path} broke off: {error}") from error
        finally:
            response.close()

    def close(self) -> None:
        """Drop the unused connections; a watch in another thread ends when its time is over."""
        self._client.rest_client.pool_manager.clear()

    def _call(self, method: str, path: str, query: Json, body: Any = None, content_type: str = JSON) -> Json:
        """Send one request and return the JSON of the answer. Raises ApiError. Arguments as in `_send`."""
        response = self._send(method, path, query, body, content_type, self._call_seconds)
        try:
            return json.loads(response.data)
        except ValueError as error:
            raise ApiError(response.status, f"{method} {path}: no JSON in the answer: {error}") from error

    def _send(self, method: str, path: str, query: Json, body: Any, content_type: str, timeout: tuple[float, float],
              stream: bool = False, accept: str = JSON) -> Any:  # fmt: skip
        """Send one request and return the answer. Raises ApiError.

        Args:
            path: of the URL, from its first "/".
            query: the URL's query; fields that are None are left out.
            body: the request's body; None: it has none.
            content_type: media type of the body.
            timeout: seconds until the connection must stand, and of silence after that.
            stream: leave the answer's body to be read by the caller.
            accept: media type of the answer.
        """
        headers = {"Content-Type": content_type, "Accept": accept}
        try:
            self._client.update_params_for_auth(headers, [], [TOKEN_KEY])
        except (config.ConfigException, OSError) as error:  # a kubeconfig may name a program that fetches the token
            raise ApiError(0, f"{method} {path}: no token: {error}") from error
        url = self._client.configuration.host + path
        parameters = [(name, value) for name, value in query.items() if value is not None]
        try:
            return self._client.rest_client.request(
                method, url, query_params=parameters, headers=headers, body=body, _preload_content=not stream,
                _request_timeout=timeout,
            )  # fmt: skip
        except client.ApiException as error:
            raise _refusal(method, path, error) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            unreachable = ApiError(0, f"{method} {path}: the API server cannot be reached: {error}")
            unreachable.remedy = self._remedy
            raise unreachable from error


class _RenewedToken:
    """Reads the token file again at intervals; if it cannot be read, the old token stays in use (the loader would raise)."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_at = path, time.monotonic()

    def __call__(self, configuration: client.Configuration) -> None:
        if time.monotonic() - self._read_at < TOKEN_SECONDS:
            return
        self._read_at = time.monotonic()
        try:
            if token := self._path.read_text().strip():
                configuration.api_key[TOKEN_KEY] = f"Bearer {token}"
        except OSError as error:
            log.warning("token not read again, the old one is used error=%s", error)


def _refusal(method: str, path: str, error: client.ApiException) -> ApiError:
    """Return the ApiError for a refused request.

    A 422 for a JSON patch that does not apply (a test that fails, an absent element to remove) names no kind of object; a 422 for
    a patch that makes an invalid object names it. The reason itself is not in the answer.
    """
    try:
        body = json.loads(error.body)
        said, names_a_kind = body["message"], bool((body.get("details") or {}).get("kind"))
    except (ValueError, KeyError, TypeError):
        said, names_a_kind = error.reason, True
    status = int(error.status or 0)
    kinds = {404: NotFound, 409: Changed, 410: Expired, 422: ApiError if names_a_kind else Changed}
    return kinds.get(status, ApiError)(status, f"{method} {path}: {status} {said}")


def _checked(event: Json) -> Json:
    """Return an event of a watch; an ERROR event is raised."""
    if event.get("type") != "ERROR":
        return event
    status = event.get("object", {})
    code, text = int(status.get("code", 0)), f"watch: {status.get('message', 'an error without a message')}"
    raise (Expired if code == 410 else ApiError)(code, text)
