"""TLS between services: with a certificate of the run's authority calls pass, with another's or without TLS they do not."""

import asyncio
import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc.auth import WORKER, Tokens
from frostline_rpc.channel import open_channel
from frostline_rpc.server import start_server
from frostline_rpc.tls import FOLDER_VARIABLE, SERVER_NAME

TOKENS = Tokens.create()


def make_certificate(folder: Path, name: str = SERVER_NAME) -> Path:
    """A certificate that signs itself, as tls.crt, tls.key and ca.crt."""
    folder.mkdir(parents=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    encoded = made.public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    (folder / "tls.crt").write_bytes(encoded)
    (folder / "ca.crt").write_bytes(encoded)
    (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return folder


class Servicer(control_pb2_grpc.ControlServicer):
    async def Heartbeat(self, request: Any, context: Any) -> control_pb2.HeartbeatResponse:
        return control_pb2.HeartbeatResponse(known=True)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of a server that speaks TLS."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(make_certificate(tmp_path / "run")))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def add(added: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(Servicer(), added)

    started, port = asyncio.run_coroutine_threadsafe(start_server(add, "127.0.0.1", 0, TOKENS), loop).result(60)
    yield port
    asyncio.run_coroutine_threadsafe(started.stop(None), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def beat(port: int, seconds: float = 3.0) -> bool:
    with open_channel(f"127.0.0.1:{port}", TOKENS.by_role[WORKER]) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        return bool(stub.Heartbeat(control_pb2.HeartbeatRequest(), timeout=seconds).known)


def test_calls_pass_where_both_sides_have_the_same_authority(server: int) -> None:
    assert beat(server, seconds=60.0)


def test_another_authority_s_server_is_not_believed(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(make_certificate(tmp_path / "other")))
    with pytest.raises(grpc.RpcError) as refused:
        beat(server)
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_plain_text_is_not_answered(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    with pytest.raises(grpc.RpcError) as refused:
        beat(server)
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(OSError, match=r"ca\.crt"):
        open_channel("127.0.0.1:1", "token")
