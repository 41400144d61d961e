"""Authentication on a cluster: callers are service accounts, with tokens that the API server signs and a kubelet projects.

A token is checked without a request to anybody: its signature by the API server's published keys (JWKS), audience (this run's
alone), expiry, service account, and the pod that it is bound to. The keys are fetched when a token names an unknown key.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jwt

from frostline_rpc.auth import Caller
from frostline_rpc.errors import Unavailable

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
"""Accepted signature algorithms, all asymmetric: with others a public key could be used as a shared secret."""
LEEWAY_SECONDS = 10.0
FETCH_SECONDS_MIN = 5.0
"""Least time between two fetches, so that wrong tokens do not become requests to the API server."""
REMEMBERED_MAX = 4096


@dataclass(frozen=True)
class Bearer:
    """The account and pod that a token names.

    Attributes:
        account: name of the service account.
        pod, pod_uid: name and uid of the pod that the token is bound to.
        expires: Unix seconds.
    """

    account: str
    pod: str
    pod_uid: str
    expires: float


class ProjectedTokens:
    """Callers (`auth.Callers`) of one run.

    Args:
        audience: the audience for which tokens must be made.
        namespace: namespace of the service accounts.
        roles: role by service account's name.
        fetch_keys: returns the API server's JWKS as JSON; blocking; raises OSError.
        confirm: called with (bearer, token): a further check, for example that the pod still exists, or TokenReview.
    """

    def __init__(self, audience: str, namespace: str, roles: Mapping[str, str], fetch_keys: Callable[[], Mapping[str, Any]],
                 confirm: Callable[[Bearer, str], Awaitable[bool]] | None = None,
                 now: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._audience, self._namespace, self._roles = audience, namespace, dict(roles)
        self._fetch_keys, self._confirm, self._now = fetch_keys, confirm, now
        self._keys: dict[str, Any] = {}
        self._fetched_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._remembered: dict[str, Bearer] = {}

    async def identify(self, token: str) -> Caller | None:
        """The caller that a token stands for; None where it is refused.

        Raises Unavailable where the signer's key is not known and cannot be fetched, and for a token that has expired or is not
        yet valid: the caller tries again with the token that its file holds by then.
        """
        bearer = self._remembered.get(token)
        if bearer is None:
            bearer = await self._read(token)
            if bearer is None:
                return None
            self._remember(token, bearer)
        if (role := self._roles.get(bearer.account)) is None:
            return None
        if bearer.expires + LEEWAY_SECONDS < self._now():
            self._remembered.pop(token, None)
            raise _untimely(bearer, "has expired")
        try:
            if self._confirm is not None and not await self._confirm(bearer, token):
                if bearer.expires < self._now():  # the API server grants no leeway
                    raise _untimely(bearer, "has expired")
                return None
        except OSError as error:
            raise Unavailable(f"the caller cannot be confirmed: {error}") from error
        return Caller(role, bearer.pod_uid)

    async def _read(self, token: str) -> Bearer | None:
        """The bearer of a genuine token; None for any other text, whatever error its parsing causes.

        Raises Unavailable for one that has expired or is not yet valid.
        """
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")))
            if key is None:
                return None
            algorithm = str(header.get("alg"))
            if algorithm not in ALGORITHMS or algorithm[:2] != key.algorithm_name[:2]:
                raise jwt.InvalidAlgorithmError(f"algorithm {algorithm!r} does not go with a key of {key.algorithm_name}")
            options: Any = {"require": ["exp", "sub", "aud"], "verify_iat": False}
            decode = partial(jwt.decode, token, key.key, [algorithm], audience=self._audience, leeway=LEEWAY_SECONDS)
            try:
                return self._bearer(decode(options=options))
            except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError) as error:
                bearer = self._bearer(decode(options={**options, "verify_exp": False, "verify_nbf": False}))
                if bearer is None or bearer.account not in self._roles:
                    return None
                is_over = isinstance(error, jwt.ExpiredSignatureError)
                raise _untimely(bearer, "has expired" if is_over else "is not yet valid") from error
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            log.info("a caller's token was refused reason=%s", error)
            return None

    def _bearer(self, claims: Mapping[str, Any]) -> Bearer | None:
        """The bearer that signed claims name; None where it is not a pod's account in this namespace."""
        prefix, account = f"system:serviceaccount:{self._namespace}:", str(claims["sub"])
        bound = claims.get("kubernetes.io")
        pod = bound.get("pod") if isinstance(bound, dict) else None
        if not account.startswith(prefix) or not isinstance(pod, dict) or not pod.get("uid"):
            log.info("a caller's token was refused subject=%s bound=%s", account, bound)
            return None
        return Bearer(account.removeprefix(prefix), str(pod.get("name", "")), str(pod["uid"]), float(claims["exp"]))

    async def _key(self, key_id: str) -> Any:
        """The API server's key with this id; None where it publishes no such key."""
        if key_id in self._keys:
            return self._keys[key_id]
        async with self._fetching:
            if key_id not in self._keys and time.monotonic() - self._fetched_at >= FETCH_SECONDS_MIN:
                self._fetched_at = time.monotonic()
                try:
                    published = await asyncio.to_thread(self._fetch_keys)
                    self._keys = {str(key.key_id): key for key in jwt.PyJWKSet.from_dict(dict(published)).keys}
                except (OSError, jwt.PyJWTError) as error:
                    self._fetched_at = float("-inf")
                    raise Unavailable(f"the API server's keys cannot be read: {error}") from error
        return self._keys.get(key_id)

    def _remember(self, token: str, bearer: Bearer) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[token] = bearer


def _untimely(bearer: Bearer, what: str) -> Unavailable:
    """The answer to a token that is genuine at another time: the caller comes again with the file's next token."""
    remedy = "its kubelet must reach the API server to renew it, and the nodes' clocks must agree"
    text = f"the token of pod {bearer.pod} {what}: {remedy}"
    log.info("a caller's token was put off reason=%s", text)
    return Unavailable(text)
