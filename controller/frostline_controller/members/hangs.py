"""Who hangs, if anybody does: a verdict on what all members of a generation last said of themselves (docs/protocols.md 7). Pure.

Two signals. Liveness: a heartbeat came. Progress: the training thread's (step, phase), since when, and whether it waits for
other members. A step is synchronous, so whoever hangs is soon waited for by all others, and nobody is behind it:

- the earliest member is to blame, and only the earliest: by generation, then step, then the phase's place in a step;
- of several at the earliest place, one that computes is, not those that wait;
- where all of them wait, the one that they cannot wait for: a member that has fallen silent at or before that place;
- where everybody stands at one place, alike, nobody is blamed; after EQUAL_FACTOR deadlines all are fenced.

Where a member's device is behind its thread, the device's place counts and not the thread's: work that was handed over is not
done, and a thread that stands behind the fence of a step waits for its own device as well as for others. So the member whose own
device is stuck is the earliest that computes, though every thread has gone on as far as all others.

A member is late when it says that its phase, or the part of a long phase that it was at last (a tile of an evaluation, a piece of
a file), is older than the phase's deadline: max(floor, DEADLINE_FACTOR x the largest 99th
percentile that any member measured in this generation). A phase that nobody has finished in it (the first step, load, compile,
a first checkpoint) has FIRST_FACTOR x max(floor, predicted step). Ages are taken as they were told and never extrapolated: a
heartbeat that is late says nothing about the training thread. And while anybody still moves, nobody hangs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from frostline_contract.phases import WAITING, place_of

DEADLINE_FACTOR = 5.0
FIRST_FACTOR = 10.0
"""For a phase without history: a first step allocates, compiles and warms caches, a minute for each of several stages; with
the default floor these are ten minutes."""
EQUAL_FACTOR = 3.0


@dataclass(frozen=True)
class DevicePlace:
    """The phase that a device has come to, seconds since it was last seen to come on, and whether others must act first."""

    phase: str
    seconds: float
    waiting: bool


@dataclass(frozen=True)
class Progress:
    """What a participant of the running generation last said.

    entered: it runs the generation already. step: last committed; the same for all who have not entered a plan that starts anew.
    phase_seconds: age of its phase when it said so. waiting: its training thread was blocked on other members. p99: of each phase
    that it finished in this generation, seconds. heartbeat_age: seconds since it was heard. name: for people.
    device: its device's place, where that is behind the thread; None where it is not.
    """

    worker_id: str
    entered: bool
    step: int
    phase: str
    phase_seconds: float
    waiting: bool = False
    p99: Mapping[str, float] = field(default_factory=dict)
    heartbeat_age: float = 0.0
    name: str = ""
    device: DevicePlace | None = None

    @property
    def at(self) -> "Progress":
        """With the phase, the age and the waiting that count: the device's, where that is behind."""
        device = self.device
        if device is None:
            return self
        return replace(self, phase=device.phase, phase_seconds=device.seconds, waiting=device.waiting)

    @property
    def place(self) -> tuple[bool, int, int]:
        """How far it has come: comparable between the members of one generation, the smaller the earlier."""
        return self.entered, self.step, place_of(self.phase)


@dataclass(frozen=True)
class Verdict:
    """A hang, and the worker that is blamed for it.

    worker_id: to be excluded; "" where everybody stands at the same place and all are fenced. reason: for people.
    """

    worker_id: str
    reason: str
    phase: str
    step: int
    seconds: float
    deadline: float


def judge(
    members: list[Progress], floor_seconds: float, silent_after_seconds: float, predicted_step_seconds: float = 0.0
) -> Verdict | None:
    """The verdict on the participants of one generation, or None while nobody hangs.

    floor_seconds: least deadline of any phase. silent_after_seconds: a heartbeat older than this is missing; somebody who has
    entered a phase within that time before its heartbeat still moves. predicted_step_seconds: the planner's, 0.0 for none.
    """
    heard = [member for member in members if member.phase not in WAITING and member.heartbeat_age <= silent_after_seconds]
    if not heard or any(min(member.phase_seconds, member.at.phase_seconds) < silent_after_seconds for member in heard):
        return None  # nobody speaks (which dead_after_seconds is for), or somebody moves, thread or device
    members, heard = [member.at for member in members], [member.at for member in heard]
    deadlines = _Deadlines(members, floor_seconds, predicted_step_seconds)
    first = min(member.place for member in heard)
    earliest = [member for member in heard if member.place == first]
    oldest = max(earliest, key=_age)
    computing = [member for member in earliest if not member.waiting]
    silent = [member for member in members if member.heartbeat_age > silent_after_seconds and member.place <= first]
    if computing and (len(computing) < len(members) or len(members) == 1):
        suspect = max(computing, key=_age)
        return deadlines.verdict(suspect, suspect)
    if silent and not computing:
        return deadlines.verdict(oldest, max(silent, key=lambda member: member.heartbeat_age))
    if len(earliest) < len(members):
        return deadlines.verdict(oldest, oldest)
    return deadlines.all_alike(oldest, len(earliest))


class _Deadlines:
    """Seconds that each phase may take, from what all members measured."""

    def __init__(self, members: list[Progress], floor_seconds: float, predicted_step_seconds: float) -> None:
        self._floor = floor_seconds
        self._first = FIRST_FACTOR * max(floor_seconds, predicted_step_seconds)
        self._p99: dict[str, float] = {}
        for member in members:
            for phase, seconds in member.p99.items():
                self._p99[phase] = max(self._p99.get(phase, 0.0), seconds)

    def of(self, phase: str) -> float:
        known = self._p99.get(phase)
        return self._first if known is None else max(self._floor, DEADLINE_FACTOR * known)

    def verdict(self, late: Progress, suspect: Progress) -> Verdict | None:
        """Where `late` is over its deadline, `suspect` is to blame: itself, or a silent member that it waits for."""
        deadline = self.of(late.phase)
        if late.phase_seconds <= deadline:
            return None
        where = f"{late.phase} after step {late.step}, for {late.phase_seconds:.1f} s; the deadline is {deadline:.1f} s"
        if suspect is late:
            reason = f"{_name(late)}{' (its device)' if late.device is not None else ''} hangs in {where}"
        else:
            reason = (
                f"{_name(suspect)} is silent for {suspect.heartbeat_age:.1f} s (last heard in {suspect.phase} after step "
                f"{suspect.step}), and {_name(late)} waits in {where}"
            )
        return Verdict(suspect.worker_id, reason, suspect.phase, suspect.step, late.phase_seconds, deadline)

    def all_alike(self, oldest: Progress, count: int) -> Verdict | None:
        deadline = EQUAL_FACTOR * self.of(oldest.phase)
        if oldest.phase_seconds <= deadline:
            return None
        reason = (
            f"all {count} members stand in {oldest.phase} after step {oldest.step}, for {oldest.phase_seconds:.1f} s; "
            f"the deadline for that is {deadline:.1f} s, and nobody is behind another"
        )
        return Verdict("", reason, oldest.phase, oldest.step, oldest.phase_seconds, deadline)


def _age(member: Progress) -> float:
    return member.phase_seconds


def _name(member: Progress) -> str:
    return member.name or member.worker_id
