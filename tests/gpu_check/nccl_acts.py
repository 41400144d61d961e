"""Acts of two members that show the behaviour of NCCL: calls of the library, the same on real and on simulated NCCL.

An act receives a `Seat` and returns plain data. It never waits inside the driver, so that a hang is a finding.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from frostline_trainer.transport import nccl

KIB = 256
"""Elements of float32."""
SIZES_KIB = (16, 256, 1024, 4096, 16384, 65536)
STUCK_SECONDS = 4.0
"""A longer transfer is stuck: a message of any size between two processes of one machine takes less, also on a shared GPU."""
DONE_SECONDS = 30.0
ALIVE_SECONDS = 75.0
"""A survivor must live longer than this: torch's watchdog ends a process about a minute after an error of NCCL."""
COUNT = 1_000_000

Act = Callable[["Seat"], Any]


class Seat(Protocol):
    """One of two members. index: 0 or 1. device: of its tensors. real: whether the library is a real one."""

    index: int
    device: torch.device
    real: bool

    def make(self, name: str, seconds: float | None = None) -> Any:
        """Return a communicator of both members that is not connected yet. seconds: a timeout of its works."""
        ...

    def join(self, *communicators: Any, seconds: float = 60.0, messages: bool = True) -> None:
        """Connect communicators by the trainer's own code. messages: whether the first use has a message each way.

        Raises RuntimeError as `frostline_trainer.transport.nccl.connect`.
        """
        ...

    def finished(self, seconds: float) -> bool:
        """Whether the member's device finishes all its work within `seconds`."""
        ...

    def meet(self, name: str) -> None:
        """Wait until both members have come here."""
        ...

    def die(self) -> None:
        """End the member, as by SIGKILL."""
        ...

    def free_mib(self) -> float:
        """Return the free memory of the device, in MiB."""
        ...


def full(seat: Seat, value: float, length: int = 1000) -> torch.Tensor:
    return torch.full((length,), value, device=seat.device)


def joined(seat: Seat, name: str) -> Any:
    made = seat.make(name)
    seat.join(made)
    return made


def usable(seat: Seat) -> bool:
    """Whether the device still computes."""
    made = torch.ones(256, 256, device=seat.device)
    return float((made @ made)[0, 0]) == 256.0


def raised_by(call: Callable[[], Any]) -> str:
    """Return the exception of a call, in words; empty where it returns."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:400]}"
    return ""


def end(*communicators: Any) -> dict[str, Any]:
    """Abort by the trainer's own code. Returns the duration, and whether the abort ended in the time that a worker allows."""
    late: list[int] = []
    began = time.monotonic()
    nccl.abort_all(communicators, give_up=late.append).join()
    return {"ended": not late, "abort s": time.monotonic() - began}


def facts(seat: Seat) -> dict[str, Any]:
    free, began = seat.free_mib(), time.monotonic()
    joined(seat, "first")
    first, between = time.monotonic() - began, seat.free_mib()
    began = time.monotonic()
    joined(seat, "second")
    return {"first s": first, "second s": time.monotonic() - began, "first MiB": free - between,
            "second MiB": between - seat.free_mib()}  # fmt: skip


def order(seat: Seat) -> dict[str, Any]:
    """Send 1 and 2 with the tags 7 and 9 from member 0; member 1 takes them with other tags."""
    one = joined(seat, "order")
    tensors = [full(seat, float(number + 1) if seat.index == 0 else 0.0) for number in range(2)]
    works = [one.send([tensor], 1, 7 + 2 * place) if seat.index == 0 else one.recv([tensor], 0, 99 - place)
             for place, tensor in enumerate(tensors)]  # fmt: skip
    for work in works:
        work.wait()
    done = seat.finished(DONE_SECONDS)
    return {"done": done, "values": [float(tensor[0]) for tensor in tensors] if done else []}


def crossing_on_one(seat: Seat) -> dict[str, Any]:
    return _crossing(seat, "one", apart=False)


def crossing_on_two(seat: Seat) -> dict[str, Any]:
    return _crossing(seat, "two", apart=True)


def _crossing(seat: Seat, name: str, apart: bool) -> dict[str, Any]:
    """Cross as 1F1B does on two ranks; apart: one communicator for each direction. Ends with the first size that does not
    pass."""
    passed: list[int] = []
    answer: dict[str, Any] = {"passed KiB": passed, "stuck KiB": 0}
    for size in SIZES_KIB if seat.real else SIZES_KIB[:1]:
        down = joined(seat, f"{name} {size} down")
        up = joined(seat, f"{name} {size} up") if apart else down
        first, second, third = (full(seat, float(value), size * KIB) for value in range(3))
        if seat.index == 0:
            works = [down.send([first], 1, 0), down.send([second], 1, 0), up.recv([third], 1, 0)]
        else:
            works = [down.recv([first], 0, 0), up.send([third], 0, 0), down.recv([second], 0, 0)]
        for work in works:
            work.wait()
        done = seat.finished(STUCK_SECONDS)
        seat.meet(f"{name} {size} tried")
        answer |= end(*((down, up) if apart else (down,)))
        if not done:
            drained = seat.finished(DONE_SECONDS)
            return answer | {"stuck KiB": size, "drained": drained, "usable": drained and usable(seat)}
        passed.append(size)
    return answer


def early_wait(seat: Seat) -> dict[str, Any]:
    """Send from member 0 a while after member 1 has waited for the message."""
    one, tensor = joined(seat, "early"), full(seat, 5.0 * (1 - seat.index))
    if seat.index == 0:
        time.sleep(2.0 if seat.real else 1.0)
        one.send([tensor], 1, 0).wait()
        return {"done": seat.finished(DONE_SECONDS)}
    began = time.monotonic()
    one.recv([tensor], 0, 0).wait()
    waited, early = time.monotonic() - began, seat.finished(0.5)
    done = seat.finished(DONE_SECONDS)
    return {"wait s": waited, "done early": early, "done": done, "value": float(tensor[0]) if done else None}


def first_message(seat: Seat) -> dict[str, Any]:
    """Send from member 0, a while after member 1 has asked for it, where a sum alone has connected the communicator."""
    one, tensor = seat.make("first message"), full(seat, 5.0 * (1 - seat.index))
    seat.join(one, messages=False)
    if seat.index == 0:
        time.sleep(2.0)
        one.send([tensor], 1, 0).wait()
        return {"done": seat.finished(DONE_SECONDS)}
    began = time.monotonic()
    one.recv([tensor], 0, 0).wait()
    return {"wait s": time.monotonic() - began, "done": seat.finished(DONE_SECONDS)}


def silence(seat: Seat) -> dict[str, Any]:
    """Let member 0 die; member 1 waits for its message, and then aborts."""
    one, tensor = joined(seat, "silence"), full(seat, 0.0)
    seat.meet("joined")
    if seat.index == 0:
        seat.die()
        return {}
    work = one.recv([tensor], 0, 0)
    work.wait()
    done = seat.finished(8.0)
    answer: dict[str, Any] = {"done": done, "error": getattr(one.get_error(), "name", str(one.get_error()))}
    answer |= end(one)
    answer |= {"drained": seat.finished(DONE_SECONDS), "wait raised": raised_by(work.wait)}
    return answer | {"usable": answer["drained"] and usable(seat)}


def survivor(seat: Seat) -> dict[str, Any]:
    """Let member 0 die; member 1 aborts after two seconds and lives on, as the trainer's survivors do."""
    one, tensor = joined(seat, "survivor"), full(seat, 0.0)
    seat.meet("joined")
    if seat.index == 0:
        seat.die()
        return {}
    one.recv([tensor], 0, 0).wait()
    time.sleep(2.0)
    answer = end(one)
    time.sleep(ALIVE_SECONDS)
    return answer | {"alive s": ALIVE_SECONDS, "usable": usable(seat)}


def short_timeout(seat: Seat) -> dict[str, Any]:
    """Wait with a timeout of five seconds for a peer that stays away for longer than torch's watchdog allows."""
    one, tensor = seat.make("timeout", seconds=5.0), full(seat, 0.0)
    seat.join(one)
    if seat.index == 1:
        one.recv([tensor], 0, 0).wait()
    time.sleep(ALIVE_SECONDS)
    return {"alive s": ALIVE_SECONDS}


def lonely(seat: Seat) -> dict[str, Any]:
    """Connect without member 1."""
    answer: dict[str, Any] = {}
    if seat.index == 0:
        began = time.monotonic()
        answer["raised"] = raised_by(lambda: seat.join(seat.make("lonely"), seconds=2.0))
        answer |= {"after s": time.monotonic() - began, "usable": usable(seat)}
    seat.meet("lonely is over")
    return answer


def duplicate(seat: Seat) -> dict[str, Any]:
    """Put both members on one device, with no setting of the library that would hide it."""
    raised = raised_by(lambda: joined(seat, "duplicate"))
    return {"raised": raised}


def two_sum(seat: Seat) -> dict[str, Any]:
    """Compare the sum of two ranks with the same sum in one process."""
    both = [torch.randn(COUNT, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    one, mine = joined(seat, "sum"), both[seat.index].clone().to(seat.device)
    one.allreduce([mine]).wait()
    if not seat.finished(DONE_SECONDS):
        return {"equal": False}
    return {"equal": bool((mine * 1 == (both[0] + both[1]).to(seat.device)).all())}


def moved(seat: Seat) -> dict[str, Any]:
    """Check that all-to-all and all-gather deliver bit for bit the sent values."""
    both = [torch.randn(COUNT, generator=torch.Generator().manual_seed(seed)).to(seat.device) for seed in (1, 2)]
    one, half = joined(seat, "moved"), COUNT // 2
    parts, whole = torch.zeros(COUNT, device=seat.device), torch.zeros(2 * COUNT, device=seat.device)
    one.alltoall_base(parts, both[seat.index], [half, half], [half, half]).wait()
    one._allgather_base(whole, both[seat.index]).wait()
    if not seat.finished(DONE_SECONDS):
        return {"equal": False}
    mine = slice(seat.index * half, (seat.index + 1) * half)
    wanted = torch.cat([both[0][mine], both[1][mine]])
    return {"equal": bool((parts * 1 == wanted).all()) and bool((whole * 1 == torch.cat(both)).all())}


def beside(seat: Seat) -> dict[str, Any]:
    """Connect three more communicators in a thread while messages cross, which the trainer avoids (ADR 12)."""
    down, up = joined(seat, "beside down"), joined(seat, "beside up")
    done: list[str] = []

    def connect() -> None:
        made = [seat.make(f"beside {number}") for number in range(3)]
        done.append(raised_by(lambda: seat.join(*made, seconds=20.0)))

    thread = threading.Thread(target=connect, daemon=True)
    began, steps = time.monotonic(), 0
    thread.start()
    while time.monotonic() - began < 20.0:
        there, back = full(seat, 1.0, 1024 * KIB), full(seat, 2.0, 1024 * KIB)
        works = [down.send([there], 1, 0), up.recv([back], 1, 0)] if seat.index == 0 else [
            down.recv([there], 0, 0), up.send([back], 0, 0)]  # fmt: skip
        for work in works:
            work.wait()
        if not seat.finished(DONE_SECONDS):
            return {"stuck after steps": steps, "connected": done}
        steps += 1
        if steps >= 200 and done:
            break
    thread.join(20.0)
    return {"steps": steps, "connected": done, "seconds": time.monotonic() - began}


def generations(seat: Seat) -> dict[str, Any]:
    """Make, use and abort communicators again and again; measure times, and memory that is not returned."""
    base, made_seconds, abort_seconds = seat.free_mib(), [], []
    for number in range(8):
        began = time.monotonic()
        made = [joined(seat, f"generation {number} {place}") for place in range(3)]
        made_seconds.append(time.monotonic() - began)
        seat.meet(f"generation {number}")
        abort_seconds.append(end(*made)["abort s"])
        made.clear()
    return {"making three s": max(made_seconds), "aborting three s": max(abort_seconds), "kept MiB": base - seat.free_mib(),
            "usable": usable(seat)}  # fmt: skip
