"""Two requests to the Kubernetes API server about tokens: its public keys, and TokenReview.

Any service account may fetch the keys, and may be allowed to make TokenReviews. The requests use the standard library alone, so
that the cache server needs no Kubernetes client.
"""

import asyncio
import json
import os
import ssl
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ACCOUNT_FOLDER_VARIABLE = "FROSTLINE_SERVICE_ACCOUNT"
"""Environment variable with the folder of token, ca.crt and namespace, where it is not the one that a kubelet mounts."""
REVIEW_VARIABLE = "FROSTLINE_TOKEN_REVIEW"
SECONDS = 5.0
REVIEW_HOLDS_SECONDS = 60.0


def account_folder() -> Path:
    """The folder of the pod's service account; the environment variable ACCOUNT_FOLDER_VARIABLE may name another one."""
    return Path(os.environ.get(ACCOUNT_FOLDER_VARIABLE) or ACCOUNT_FOLDER)


def fetch_keys() -> Mapping[str, Any]:
    """The JWKS that tokens are signed with. Raises OSError where the API server does not answer."""
    return _call("/openid/v1/jwks")


class TokenReviews:
    """TokenReview requests, whose answers are cached for a minute. The API server refuses tokens of deleted pods and accounts at
    once."""

    def __init__(self, audience: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._audience, self._clock = audience, clock
        self._known: dict[str, tuple[bool, float]] = {}

    def is_genuine(self, token: str) -> bool:
        """Whether the API server calls the token genuine. Blocking.

        Raises OSError where the API server does not answer, or refuses the request.
        """
        answer, until = self._known.get(token, (False, 0.0))
        now = self._clock()
        if now >= until:
            spec = {"token": token, "audiences": [self._audience]}
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
            status = _call("/apis/authentication.k8s.io/v1/tokenreviews", body).get("status", {})
            answer = bool(status.get("authenticated")) and self._audience in (status.get("audiences") or ())
            self._known = {known: held for known, held in self._known.items() if held[1] > now}
            self._known[token] = (answer, now + REVIEW_HOLDS_SECONDS)
        return answer


def token_review(audience: str) -> Callable[[str], Awaitable[bool]]:
    """The check of a token by TokenReview, where the release asks for it; else a check that every token passes."""
    if os.environ.get(REVIEW_VARIABLE, "") != "true":
        return _nobody_asks
    return partial(asyncio.to_thread, TokenReviews(audience).is_genuine)


async def _nobody_asks(token: str) -> bool:
    return True


def _call(path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    folder = account_folder()
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = (folder / "token").read_text(encoding="utf-8").strip()
    request = urllib.request.Request(
        f"https://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        data=None if body is None else json.dumps(body).encode(),
    )  # fmt: skip
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(folder / "ca.crt"))),
    )
    with opener.open(request, timeout=SECONDS) as answer:
        try:
            return dict(json.load(answer))
        except ValueError as error:
            raise OSError(f"{path}: the API server's answer is no JSON: {error}") from error
