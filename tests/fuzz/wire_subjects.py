"""Input over a wire: replies of Redis, cached values, messages, tokens."""

import asyncio
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import jwt
import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.message import DecodeError

from frostline_contract.cache_identity import HEADER, CacheIdentity, header_fault, pack_header
from frostline_contract.cache_tag import Tags, tags_of
from frostline_contract.device import DeviceFacts
from frostline_contract.statistics import OperationTime, SizeProfiles, StepTrace, UnitProfile, WorkerProfile
from frostline_proto.v1 import plan_pb2
from frostline_rpc.auth import Tokens, authorise
from frostline_rpc.convert import to_message, to_record
from frostline_rpc.errors import DomainError, InvalidRequest, Unavailable
from frostline_rpc.projected import ProjectedTokens
from frostline_trainer.cache.outcomes import ConnectionFault
from frostline_trainer.cache.resp import Connection
from frostline_trainer.step.packing import pack, unpack
from tests.fuzz.mutating import mutated, with_another_value
from tests.fuzz.subject import Subject, synthetic_run

SILENCE_SECONDS = 0.05
REPLIES = (
    b"$32\r\n" + b"x" * 32 + b"\r\n$5\r\nabcde\r\n", b"$-1\r\n$-1\r\n", b"+OK\r\n+OK\r\n", b"-OOM command not allowed\r\n+OK\r\n",
    b":2\r\n", b"+PONG\r\n", b"$40\r\nredis_version:7\r\nrun_id:0123456789abcdef\r\n\r\n", b"-WRONGTYPE x\r\n$5\r\nabcde\r\n",
    b"$70000\r\n" + b"y" * 70000 + b"\r\n", b"$4194305\r\n", b"*2\r\n$1\r\na\r\n", b"$99999999999999999\r\n",
)  # fmt: skip


class Replies(Subject):
    """The client of the data path, against a server with arbitrary replies."""

    name, share = "RESP replies", 0.2

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]

    def close(self) -> None:
        self._listener.close()

    def run(self, rng: random.Random) -> None:
        said = mutated(rng.choice(REPLIES), rng)
        connection = Connection("127.0.0.1", self._port, None, 0, SILENCE_SECONDS)
        server, _ = self._listener.accept()
        with server:
            server.sendall(said)
            server.shutdown(socket.SHUT_WR)
            try:
                rng.choice(COMMANDS)(connection, time.monotonic() + 1.0)
            except ConnectionFault:
                return
            finally:
                connection.close()


def _room(size: int) -> memoryview:
    return memoryview(bytearray(size))


COMMANDS: tuple[Callable[[Connection, float], object], ...] = (
    lambda c, end: c.get_many([b"k1", b"k2"], [[_room(8), _room(24)], [_room(5)]], end),
    lambda c, end: c.get_many([b"k"], [[_room(70000)]], end),
    lambda c, end: c.set_many([(b"k", (b"abc", b"def")), (b"k2", (b"x",))], end),
    lambda c, end: c.unlink([b"a", b"b"], end),
    lambda c, end: c.ping(end),
    lambda c, end: c.run_id(end),
)


class CachedValues(Subject):
    """Header and payload of a value: a changed value is never accepted as whole."""

    name, share = "cached values", 0.28
    key = CacheIdentity("revision", "data", "train", 2).key(5, 0)
    payload = bytes(range(64))

    def __init__(self) -> None:
        self._stored: list[tuple[Tags, bytes]] = []
        for tags in (tags_of(None), tags_of("a secret of sixteen")):
            self._stored.append((tags, pack_header("float32", (4, 4), self.payload, self.key, tags) + self.payload))

    def run(self, rng: random.Random) -> None:
        tags, whole = rng.choice(self._stored)
        found = mutated(whole, rng)
        fault = header_fault(found[: HEADER.size], "float32", (4, 4), found[HEADER.size :], self.key, tags)
        assert fault is not None or found == whole, f"a changed value was taken for whole: {found.hex()}"


UNITS = tuple(
    UnitProfile(
        forward_seconds=0.1,
        backward_seconds=0.2,
        parameter_bytes=64,
        optimizer_bytes=128,
        activation_bytes=32,
        output_bytes=16,
        cell_forward_seconds=(0.05, 0.05),
        cell_backward_seconds=(0.1, 0.1),
    )
    for _ in range(2)
)
PROFILE = WorkerProfile(micro_batch_size=4, units=UNITS, device="a GPU", memory_bytes=1 << 30, optimizer_seconds_per_byte=1e-9)
COMPUTED = OperationTime(kind="forward", stage=0, micro_batch=1, slice=0, start=0.1, end=0.2)
TRACE = StepTrace(lineage=0, step=5, generation="1.2", freeze_point=1, pp_rank=1, operations=(COMPUTED, COMPUTED))


class Messages(Subject):
    """Messages that are converted to records, and back."""

    name, share = "messages", 0.2

    def __init__(self) -> None:
        run = synthetic_run()
        self._kinds: list[tuple[Any, Any, bytes]] = [
            (wire, type(one), to_message(one, wire).SerializeToString())
            for one, wire in (
                (run.plans[-1].plan, plan_pb2.Plan),
                (run.statistics[0], plan_pb2.IntervalStatistics),
                (run.records[0], plan_pb2.StepRecord),
                (TRACE, plan_pb2.StepTrace),
                (PROFILE, plan_pb2.WorkerProfile),
                (SizeProfiles(profiles=(PROFILE, PROFILE), tied=True, boundary_bytes_per_sample=64), plan_pb2.SizeProfiles),
                (DeviceFacts(host="boot-1", name="a GPU", uuid="GPU-1", multiprocessors=132, cuda="12.4"), plan_pb2.DeviceFacts),
            )
        ]

    def run(self, rng: random.Random) -> None:
        wire, record_type, whole = rng.choice(self._kinds)
        try:
            message = wire.FromString(mutated(whole, rng))
            read = to_record(message, record_type)
        except (DecodeError, InvalidRequest):
            return
        to_message(read, wire)


class RoleTokens(Subject):
    """Tokens of a local run: no other token is accepted, and the only answer to one is a refusal."""

    name, share = "role tokens", 0.1

    def __init__(self) -> None:
        self._tokens = Tokens.create()

    def run(self, rng: random.Random) -> None:
        role, token = rng.choice(list(self._tokens.by_role.items()))
        said = mutated(token.encode(), rng).decode(rng.choice(("latin-1", "utf-8")), "surrogateescape")
        header = rng.choice(("Bearer ", "Bearer", "bearer ", "Basic ", "")) + said
        try:
            caller = asyncio.run(authorise(self._tokens, rng.choice(("Heartbeat", "Command", "Nope")), {"authorization": header}))
        except DomainError:
            return
        assert header == f"Bearer {token}" and caller.role == role, f"{header!r} was let in as {caller.role}"


class PodTokens(Subject):
    """Tokens of a cluster, their signatures good or broken, their claims of odd shapes."""

    name, share = "pod tokens", 0.02

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        algorithm = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256)
        published = {"keys": [algorithm.to_jwk(self._key.public_key(), as_dict=True) | {"kid": "one", "alg": "RS256"}]}
        self._claims = {"sub": "system:serviceaccount:team:run-trainer", "aud": ["run"], "exp": time.time() + 3600,
                        "kubernetes.io": {"pod": {"name": "run-trainer-0", "uid": "u-0"}}}  # fmt: skip
        self._callers = ProjectedTokens("run", "team", {"run-trainer": "worker"}, lambda: published)
        self._whole = jwt.encode(self._claims, self._key, "RS256", {"kid": "one"})

    def run(self, rng: random.Random) -> None:
        if rng.random() < 0.7:
            token = mutated(self._whole.encode(), rng).decode("latin-1")
        else:
            try:
                token = jwt.encode(with_another_value(self._claims, rng), self._key, "RS256", {"kid": "one"})
            except (TypeError, ValueError):  # claims that cannot be signed
                return
        try:
            caller = asyncio.run(self._callers.identify(token))
        except Unavailable:  # signed, of this run, and of another time
            return
        assert caller is None or caller.role == "worker"


class MovedStates(Subject):
    """A piece's state from another member: it is unpacked to tensors, or refused."""

    name, share = "moved states", 0.02

    def __init__(self) -> None:
        row = pack({"weight/a": torch.arange(12.0).reshape(3, 4), "step/a": torch.tensor(3.0)})
        self._whole = row.numpy().tobytes()

    def run(self, rng: random.Random) -> None:
        said = mutated(self._whole, rng)
        try:
            found = unpack(torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else torch.empty(0, dtype=torch.uint8))
        except RuntimeError:
            return
        assert sum(tensor.nbytes for tensor in found.values()) <= len(said)


SUBJECTS = (Replies, CachedValues, Messages, RoleTokens, PodTokens, MovedStates)
