"""The verdict on hanging workers, from the last heartbeats of all members of a generation (docs/protocols.md 7). Pure.

There are two signals. Liveness: a heartbeat has arrived. Progress: the training thread's step and phase, the phase's age, and
whether the thread waits for other members.

Which member is blamed. A step is synchronous, so all members soon wait for the one that hangs, and it is the earliest of all.
"Earliest" compares generation, then step, then the phase's place in a step. Of several members at the earliest place:

- one that computes is blamed, not those that wait;
- where all of them wait, a member is blamed that has fallen silent at or before that place;
- where all members of the generation are at this one place, nobody is blamed; after EQUAL_FACTOR deadlines all are fenced.

Devices. Where a member's device is behind its thread, the device's place counts: work that was given to a device is not done
yet. So a member whose device is stuck is the earliest that computes, even where all threads have come equally far.

When a member is late. Its phase must be older than the deadline: max(floor, DEADLINE_FACTOR x the largest 99th percentile of
this phase among the members of this generation). In a long phase the age is that of its last part (a tile of an evaluation, a
piece of a file). A phase that no member has finished yet (the first step, load, compile, a first checkpoint) has the deadline
FIRST_FACTOR x max(floor, predicted step). A participant that is ready to enter a plan, and has not entered, has no more to do
than to read that the others have switched: its deadline is the floor. Ages are taken as reported and never extrapolated, since a
late heartbeat says nothing about the training thread. While any member still moves, nobody hangs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from frostline_contract.phases import AT_REST, WAITING, place_of

DEADLINE_FACTOR = 5.0
FIRST_FACTOR = 10.0
"""For a phase without history. A first step allocates, compiles and warms caches, which may take a minute for each of several
stages; with the default floor this deadline is ten minutes."""
EQUAL_FACTOR = 3.0


@dataclass(frozen=True)
class DevicePlace:
    """Where a device is: its phase, the seconds since it last made progress, and whether it waits for other members."""

    phase: str
    seconds: float
    waiting: bool


@dataclass(frozen=True)
class MemberProgress:
    """The last heartbeat of a participant of the running generation.

    Attributes:
        entered: whether the member runs the generation already.
        ready: whether the member has formed the plan's groups but has not entered: nothing is left to do before it enters.
        step: the member's last committed step; one value for all members that have not yet entered a plan that starts anew.
        phase: the phase of the member's training thread.
        phase_seconds: the phase's age when the heartbeat was sent.
        waiting: whether the training thread was blocked on other members.
        p99: 99th percentile of each phase that the member has finished in this generation, seconds.
        heartbeat_age: seconds since the heartbeat arrived.
        name: the member's name in messages; empty: its id.
        device: place of the member's device, where the device is behind the thread; None where it is not.
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
    ready: bool = False

    @property
    def at(self) -> "MemberProgress":
        """This progress with the device's phase, age and waiting, where the device is behind the thread."""
        device = self.device
        if device is None:
            return self
        return replace(self, phase=device.phase, phase_seconds=device.seconds, waiting=device.waiting)

    @property
    def place(self) -> tuple[bool, int, int]:
        """How far the member has come. Comparable between the members of one generation; smaller is earlier."""
        return self.entered, self.step, place_of(self.phase)


@dataclass(frozen=True)
class Verdict:
    """A hang, and the worker that is blamed for it.

    Attributes:
        worker_id: the worker to exclude; "" where all members are at the same place and all are fenced.
        reason: the verdict in words.
        phase: the phase in which that worker, or the oldest of all members, was last seen.
        step: the last committed step of that worker.
        seconds: the age of the phase that is late.
        deadline: the deadline of that phase, in seconds.
    """

    worker_id: str
    reason: str
    phase: str
    step: int
    seconds: float
    deadline: float


def judge(
    members: list[MemberProgress], floor_seconds: float, silent_after_seconds: float, predicted_step_seconds: float = 0.0
) -> Verdict | None:
    """The verdict on the participants of one generation, or None while nobody hangs.

    Args:
        members: the participants.
        floor_seconds: the least deadline of any phase.
        silent_after_seconds: a member is silent where its heartbeat is older, and moves where its phase is younger.
        predicted_step_seconds: the planner's prediction; 0.0: there is none.
    """
    answering = [member for member in members if member.phase not in WAITING and member.heartbeat_age <= silent_after_seconds]
    if not answering or any(min(member.phase_seconds, member.at.phase_seconds) < silent_after_seconds for member in answering):
        return None  # all are silent (dead_after_seconds is for that), or a thread or device still moves
    members, answering = [member.at for member in members], [member.at for member in answering]
    deadlines = _Deadlines(members, floor_seconds, predicted_step_seconds)
    first = min(member.place for member in answering)
    earliest = [member for member in answering if member.place == first]
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
    """The deadline of each phase, from the measurements of all members."""

    def __init__(self, members: list[MemberProgress], floor_seconds: float, predicted_step_seconds: float) -> None:
        self._floor = floor_seconds
        self._first = FIRST_FACTOR * max(floor_seconds, predicted_step_seconds)
        self._p99: dict[str, float] = {}
        for member in members:
            for phase, seconds in member.p99.items():
                self._p99[phase] = max(self._p99.get(phase, 0.0), seconds)

    def of(self, member: MemberProgress) -> float:
        if member.ready and member.phase in AT_REST:
            return self._floor
        known = self._p99.get(member.phase)
        return self._first if known is None else max(self._floor, DEADLINE_FACTOR * known)

    def verdict(self, late: MemberProgress, suspect: MemberProgress) -> Verdict | None:
        """Blame `suspect` (`late` itself, or a silent member that `late` waits for) where `late` is over its deadline."""
        deadline = self.of(late)
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

    def all_alike(self, oldest: MemberProgress, count: int) -> Verdict | None:
        deadline = EQUAL_FACTOR * self.of(oldest)
        if oldest.phase_seconds <= deadline:
            return None
        reason = (
            f"all {count} members stand in {oldest.phase} after step {oldest.step}, for {oldest.phase_seconds:.1f} s; "
            f"the deadline for that is {deadline:.1f} s, and nobody is behind another"
        )
        return Verdict("", reason, oldest.phase, oldest.step, oldest.phase_seconds, deadline)


def _age(member: MemberProgress) -> float:
    return member.phase_seconds


def _name(member: MemberProgress) -> str:
    return member.name or member.worker_id
