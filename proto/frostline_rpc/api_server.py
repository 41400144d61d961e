"""The two questions about tokens that any service account may ask its API server, or may be allowed to: keys, and TokenReview.

By the standard library: the cache server has no client of Kubernetes, and needs none for these.
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
"""Names another folder of token, ca.crt and namespace than the one that a kubelet mounts by itself."""
REVIEW_VARIABLE = "FROSTLINE_TOKEN_REVIEW"
SECONDS = 5.0
REVIEW_HOLDS_SECONDS = 60.0


def account_folder() -> Path:
    """Where the pod's service account is mounted; an environment variable (ACCOUNT_FOLDER_VARIABLE) may name another folder."""
    return Path(os.environ.get(ACCOUNT_FOLDER_VARIABLE) or ACCOUNT_FOLDER)


def fetch_keys() -> Mapping[str, Any]:
    """The JWKS that tokens are signed with. Raises OSError where the API server does not answer."""
    return _call("/openid/v1/jwks")


class TokenReviews:
    """Asks the API server about tokens: it knows of deleted pods and accounts at once. An answer holds for a minute."""

    def __init__(self, audience: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._audience, self._clock = audience, clock
        self._known: dict[str, tuple[bool, float]] = {}

    def is_genuine(self, token: str) -> bool:
        """Blocking. Raises OSError where the API server does not answer, or refuses the question."""
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
    """Whether the API server calls a token genuine, where the release wants it to be asked; else every token passes."""
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
