"""Service account tokens: who is let in, and every way of not being who one says one is."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from frostline_proto.v1 import cache_pb2, control_pb2
from frostline_rpc.auth import CONTROLLER, WORKER, Caller, authorise, check_speaker
from frostline_rpc.errors import PermissionDenied, Unauthenticated, Unavailable
from frostline_rpc.projected import Bearer, ProjectedTokens

AUDIENCE, NAMESPACE = "frostline/team/digits", "team"
ROLES = {"digits-trainer": WORKER, "digits-controller": CONTROLLER}


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def other_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwks(*keys: tuple[str, rsa.RSAPrivateKey]) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256)
    return {"keys": [algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": name, "alg": "RS256"} for name, key in keys]}


def token_of(key: Any, account: str = "digits-trainer", key_id: str = "one", algorithm: str = "RS256", **claims: Any) -> str:
    known = {
        "sub": f"system:serviceaccount:{NAMESPACE}:{account}",
        "aud": [AUDIENCE],
        "exp": time.time() + 600,
        "kubernetes.io": {"pod": {"name": "digits-trainer-0", "uid": "u-0"}},
        **claims,
    }
    return jwt.encode({k: v for k, v in known.items() if v is not None}, key, algorithm=algorithm, headers={"kid": key_id})


async def role_of(callers: ProjectedTokens, token: str) -> str | None:
    caller = await callers.identify(token)
    return caller.role if caller is not None else None


def role(token: str, fetch: Callable[[], dict[str, Any]], **options: Any) -> str | None:
    async def ask() -> str | None:
        return await role_of(ProjectedTokens(AUDIENCE, NAMESPACE, ROLES, fetch, **options), token)

    return asyncio.run(ask())


def test_service_accounts_have_their_roles(key: rsa.RSAPrivateKey) -> None:
    assert role(token_of(key), lambda: jwks(("one", key))) == WORKER
    assert role(token_of(key, "digits-controller"), lambda: jwks(("one", key))) == CONTROLLER


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["https://kubernetes.default.svc"]},
        {"aud": ["frostline/team/another"]},
        {"aud": None},
        {"exp": None},
        {"sub": "system:serviceaccount:team:default"},
        {"sub": "system:serviceaccount:elsewhere:digits-trainer"},
        {"sub": "digits-trainer"},
        {"kubernetes.io": {}},
        {"kubernetes.io": {"pod": {"name": "digits-trainer-0"}}},
        {"kubernetes.io": "pod"},
        {"kubernetes.io": {"pod": ["digits-trainer-0", "u-0"]}},
        {"aud": ["frostline/team/another"], "exp": time.time() - 60},
        {"sub": "system:serviceaccount:team:default", "exp": time.time() - 60},
        {"kubernetes.io": {}, "nbf": time.time() + 86400},
        {"exp": "soon"},
    ],
)
def test_another_audience_or_account_is_nobody(key: rsa.RSAPrivateKey, claims: dict[str, Any]) -> None:
    assert role(token_of(key, **claims), lambda: jwks(("one", key))) is None


@pytest.mark.parametrize(
    ("claims", "said"), [({"exp": time.time() - 60}, "has expired"), ({"nbf": time.time() + 86400}, "is not yet valid")]
)
def test_whose_token_is_genuine_at_another_time_has_to_come_again(
    key: rsa.RSAPrivateKey, other_key: rsa.RSAPrivateKey, claims: dict[str, Any], said: str
) -> None:
    """A refusal would be final: while the API server is away no kubelet renews a token, and a live worker would end."""
    with pytest.raises(Unavailable, match=f"the token of pod digits-trainer-0 {said}: its kubelet must reach"):
        role(token_of(key, **claims), lambda: jwks(("one", key)))
    assert role(token_of(other_key, **claims), lambda: jwks(("one", key))) is None


def test_another_signature_is_nobody(key: rsa.RSAPrivateKey, other_key: rsa.RSAPrivateKey) -> None:
    assert role(token_of(other_key), lambda: jwks(("one", key))) is None
    assert role(token_of(key, key_id="unknown"), lambda: jwks(("one", key))) is None
    assert role("no.token.atall", lambda: jwks(("one", key))) is None
    assert role("", lambda: jwks(("one", key))) is None


def test_a_shared_secret_or_no_signature_is_nobody(key: rsa.RSAPrivateKey) -> None:
    assert role(token_of("s" * 64, algorithm="HS256"), lambda: jwks(("one", key))) is None
    assert role(token_of(None, algorithm="none"), lambda: jwks(("one", key))) is None


def test_keys_are_fetched_when_a_new_one_is_met_and_not_for_every_wrong_token(
    key: rsa.RSAPrivateKey, other_key: rsa.RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, fetched = jwks(("one", key)), []

    def fetch() -> dict[str, Any]:
        fetched.append(1)
        return published

    async def play() -> None:
        callers = ProjectedTokens(AUDIENCE, NAMESPACE, ROLES, fetch)
        assert await role_of(callers, token_of(key)) == WORKER
        published.update(jwks(("one", key), ("two", other_key)))
        assert await role_of(callers, token_of(other_key, key_id="two")) is None
        assert len(fetched) == 1, "a second fetch came at once"
        monkeypatch.setattr("frostline_rpc.projected.FETCH_SECONDS_MIN", 0.0)
        assert await role_of(callers, token_of(other_key, key_id="two")) == WORKER
        assert len(fetched) == 2

    asyncio.run(play())


def test_while_the_api_server_is_away_unknown_callers_are_told_to_try_again(key: rsa.RSAPrivateKey) -> None:
    def away() -> dict[str, Any]:
        raise ConnectionRefusedError("away")

    with pytest.raises(Unavailable, match="keys cannot be read: away"):
        role(token_of(key), away)


def test_whose_known_token_runs_out_has_to_come_again(key: rsa.RSAPrivateKey) -> None:
    """Also while the leeway lasts, which the API server does not grant: it confirms such a token no more."""
    now = [time.time()]

    async def confirm(caller: Bearer, token: str) -> bool:
        return now[0] < caller.expires

    async def play() -> None:
        callers = ProjectedTokens(AUDIENCE, NAMESPACE, ROLES, lambda: jwks(("one", key)), confirm, now=lambda: now[0])
        token = token_of(key)
        assert await role_of(callers, token) == WORKER
        for seconds in (605, 100):
            now[0] += seconds
            with pytest.raises(Unavailable, match="has expired"):
                await role_of(callers, token)

    asyncio.run(play())


def test_whoever_is_not_confirmed_is_nobody(key: rsa.RSAPrivateKey) -> None:
    asked: list[Bearer] = []

    async def confirm(caller: Bearer, token: str) -> bool:
        asked.append(caller)
        return caller.pod_uid == "u-1"

    assert role(token_of(key), lambda: jwks(("one", key)), confirm=confirm) is None
    other = token_of(key, **{"kubernetes.io": {"pod": {"name": "digits-trainer-1", "uid": "u-1"}}})
    assert role(other, lambda: jwks(("one", key)), confirm=confirm) == WORKER
    assert [(caller.pod, caller.pod_uid) for caller in asked] == [("digits-trainer-0", "u-0"), ("digits-trainer-1", "u-1")]


def test_a_trainer_may_not_steer_and_a_stranger_may_nothing(key: rsa.RSAPrivateKey) -> None:
    async def call(method: str, token: str) -> str:
        callers = ProjectedTokens(AUDIENCE, NAMESPACE, ROLES, lambda: jwks(("one", key)))
        return (await authorise(callers, method, {"authorization": f"Bearer {token}"} if token else {})).role

    assert asyncio.run(call("Heartbeat", token_of(key))) == WORKER
    with pytest.raises(PermissionDenied, match="role worker may not call it"):
        asyncio.run(call("Command", token_of(key)))
    with pytest.raises(Unauthenticated):
        asyncio.run(call("Heartbeat", ""))


def test_a_token_of_another_family_than_its_key_is_nobody(key: rsa.RSAPrivateKey) -> None:
    signer = ec.generate_private_key(ec.SECP256R1())
    assert role(token_of(signer, algorithm="ES256"), lambda: jwks(("one", key))) is None


def test_a_worker_speaks_for_workers_of_its_own_pod_only(key: rsa.RSAPrivateKey) -> None:
    callers = ProjectedTokens(AUDIENCE, NAMESPACE, ROLES, lambda: jwks(("one", key)))
    caller = asyncio.run(callers.identify(token_of(key)))
    assert caller == Caller(WORKER, "u-0")
    for request in (control_pb2.HeartbeatRequest(worker_id="u-0/ab12"), cache_pb2.LeaseRequest(holder="u-0/ab12")):
        check_speaker(caller, "Heartbeat", request)
    check_speaker(caller, "DescribeJob", control_pb2.DescribeJobRequest())
    check_speaker(Caller(WORKER), "Heartbeat", control_pb2.HeartbeatRequest(worker_id="u-1/ab12"))
    with pytest.raises(PermissionDenied, match="worker_id is 'u-1/ab12', the caller's token is of pod 'u-0'"):
        check_speaker(caller, "Heartbeat", control_pb2.HeartbeatRequest(worker_id="u-1/ab12"))
    with pytest.raises(PermissionDenied, match="holder is 'u-1/ab12'"):
        check_speaker(caller, "Lease", cache_pb2.LeaseRequest(holder="u-1/ab12"))
