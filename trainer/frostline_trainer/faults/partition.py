"""Simulates a network partition: while the file in FROSTLINE_CUT says so, no control message of a worker passes.

The local cluster sets FROSTLINE_CUT for its pods and writes the file when a node is cut off; a worker writes its own for a
planned `cut`. The file contains the Unix time until which the partition lasts. Peers still reach the worker; only its
connections to the control plane are cut.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from frostline_contract.durable_files import replace_durably

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
STREAM_SECONDS = 15.0
"""A stream that was held back for longer is broken, like by keepalive (frostline_rpc.channel)."""


class CutOff(grpc.RpcError):
    """The error of a call during a partition."""

    def code(self) -> grpc.StatusCode:
        """UNAVAILABLE, as for a controller that cannot be reached."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """The reason, in the form of gRPC's own errors."""
        return "cut off from the control plane by a planned fault"


def is_cut_off(path: str | None = None) -> bool:
    """Whether no control message passes now. path: another pod's FROSTLINE_CUT; "" for a pod without one."""
    path = os.environ.get("FROSTLINE_CUT", "") if path is None else path
    try:
        return bool(path) and time.time() < float(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False


def cut_off(seconds: float) -> None:
    """Cut this pod off from the control plane for so long."""
    path = os.environ.get("FROSTLINE_CUT", "")
    if not path:
        log.warning("FROSTLINE_CUT is not set, so nothing is cut off for %g s", seconds)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace_durably(Path(path), str(time.time() + seconds))


def through_partition(channel: grpc.Channel) -> grpc.Channel:
    """The channel with a simulated partition; the channel itself if FROSTLINE_CUT is not set."""
    return grpc.intercept_channel(channel, _Partition()) if os.environ.get("FROSTLINE_CUT") else channel


class _Partition(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Refuses calls while cut off, loses answers that come meanwhile, and holds a stream's messages back."""

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        if is_cut_off():
            raise CutOff
        answer = continuation(details, request)
        if is_cut_off():
            raise CutOff
        return answer

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        if is_cut_off():
            raise CutOff
        return _HeldBack(continuation(details, request))

    def intercept_stream_stream(self, continuation: Callable[..., Any], details: Any, requests: Iterator[Any]) -> Any:
        if is_cut_off():
            raise CutOff
        return _HeldBack(continuation(details, _until_cut_off(requests)))


def _until_cut_off(requests: Iterator[Any]) -> Iterator[Any]:
    """A caller's messages. Raises CutOff, with which gRPC ends the call, at the first message during a partition."""
    for request in requests:
        if is_cut_off():
            raise CutOff
        yield request


class _HeldBack:
    """A stream whose messages wait while the worker is cut off; all other attributes are the call's own."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        message = next(self._call)
        since = time.monotonic()
        while is_cut_off():
            if time.monotonic() - since > STREAM_SECONDS:
                self._call.cancel()
                raise CutOff
            time.sleep(LOOK_SECONDS)
        return message
