"""`python -m frostline_controller.check_release`: the check of `helm test`. It only calls and reads; it changes no run.

The controller answers and accepts this pod's token, the cache server answers, a value goes through each Redis shard and back, and
a caller without a token is refused. Environment, set by the chart: FROSTLINE_CONTROLLER, FROSTLINE_CACHE (unset: no cache),
FROSTLINE_TOKEN (a file), FROSTLINE_REDIS_PASSWORD. Exit codes: 0 all checks passed, 1 one has failed.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable

import grpc
import redis

from frostline_proto.v1 import cache_pb2, cache_pb2_grpc, control_pb2, control_pb2_grpc
from frostline_rpc.channel import error_text, open_channel

CALL_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""Seconds for which a failed check is repeated, since a release that was just installed may still be starting."""
LIVES_SECONDS = 30


def controller_answers(address: str, token: str) -> str:
    """Return the controller's status of the run in words. Raises grpc.RpcError."""
    with open_channel(address, token) as channel:
        status = control_pb2_grpc.ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=CALL_SECONDS)
    return f"run {status.name} is {status.state or 'waiting'}, step {status.step}"


def strangers_are_refused(address: str) -> str:
    """Check that a call without a token is refused; return that in words.

    Raises RuntimeError where the call is answered, grpc.RpcError.
    """
    with open_channel(address, "") as channel:
        try:
            control_pb2_grpc.ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return "a call without a valid token is refused"
            raise
    raise RuntimeError("a call without a valid token was answered")


def cache_answers(address: str, token: str) -> str:
    """Check the cache server's shards by a round trip through each; return the result in words."""
    with open_channel(address, token) as channel:
        stub = cache_pb2_grpc.CacheControlStub(channel)
        shards = stub.DescribeShards(cache_pb2.DescribeShardsRequest(), timeout=CALL_SECONDS).shards
    key, value = f"frostline-check:{secrets.token_hex(8)}", secrets.token_bytes(64)
    for shard in shards:
        client = redis.Redis(
            shard.host, shard.port, password=os.environ.get("FROSTLINE_REDIS_PASSWORD") or None, socket_timeout=CALL_SECONDS
        )
        with client:
            client.set(key, value, ex=LIVES_SECONDS)
            found = client.get(key)
            client.delete(key)
        if found != value:
            raise RuntimeError(f"shard {shard.host}:{shard.port} returned {found!r} for what was written")
    return f"a value went through each of {len(shards)} shard(s) and back"


def try_until_well(name: str, check: Callable[[], str], deadline: float) -> bool:
    """Repeat a check until it passes or the deadline is over, and print the result. True where it has passed."""
    while True:
        try:
            print(f"ok      {name}: {check()}", flush=True)
            return True
        except (grpc.RpcError, redis.RedisError, RuntimeError, OSError) as error:
            if time.monotonic() > deadline:
                text = error_text(error) if isinstance(error, grpc.RpcError) else str(error)
                print(f"FAILED  {name}: {text}", flush=True)
                return False
            time.sleep(1.0)


def main() -> int:
    """Carry out all checks of the release, repeating failed ones for PATIENCE_SECONDS. Returns the exit status."""
    controller, token = os.environ.get("FROSTLINE_CONTROLLER", ""), os.environ.get("FROSTLINE_TOKEN", "")
    cache = os.environ.get("FROSTLINE_CACHE", "")
    if not controller or not token:
        print("FROSTLINE_CONTROLLER and FROSTLINE_TOKEN are not set; `helm test` sets them", file=sys.stderr)
        return 1
    checks: list[tuple[str, Callable[[], str]]] = [
        ("controller", lambda: controller_answers(controller, token)),
        ("authentication", lambda: strangers_are_refused(controller)),
    ]
    if cache:
        checks.append(("cache", lambda: cache_answers(cache, token)))
    deadline = time.monotonic() + PATIENCE_SECONDS
    results = [try_until_well(name, check, deadline) for name, check in checks]  # all of them, also after a failure
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
