"""Pings of idle connections, which keep them and show when the other end has gone."""

import time
from typing import Any

import grpc
import pytest

from frostline_proto.v1 import control_pb2_grpc
from frostline_rpc import channel, server
from frostline_rpc.auth import WORKER
from frostline_rpc.channel import open_channel
from tests.unit.test_rpc_server import Running, heartbeat


def test_an_idle_channel_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes an idle client's pings for an attack closes the connection at the third."""
    # Without the last option the client itself holds pings back after two, for a minute each.
    pings = [*quicker(channel.OPTIONS, "grpc.keepalive_time_ms", 1_000), ("grpc.http2.max_pings_without_data", 0)]
    monkeypatch.setattr(channel, "OPTIONS", pings)
    monkeypatch.setattr(server, "OPTIONS", quicker(server.OPTIONS, "grpc.http2.min_ping_interval_without_data_ms", 50))
    running, states = Running(), list[grpc.ChannelConnectivity]()
    running.start()
    try:
        with open_channel(f"127.0.0.1:{running.port}", running.tokens.by_role[WORKER]) as idle:
            control_pb2_grpc.ControlStub(idle).Heartbeat(heartbeat(), timeout=10)
            idle.subscribe(states.append)
            time.sleep(4.0)
            assert set(states) == {grpc.ChannelConnectivity.READY}
    finally:
        running.stop()


def quicker(options: list[tuple[str, Any]], name: str, milliseconds: int) -> list[tuple[str, Any]]:
    """The options with one of their times changed."""
    assert name in dict(options)
    return [(one, milliseconds if one == name else value) for one, value in options]
