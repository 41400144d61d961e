"""Phases: where a worker's training thread is, in a step or beside one (docs/protocols.md 7). Their order and their traits.

The trainer enters phases and measures them; the controller compares how far members have come and sets deadlines by phase;
planned faults name the phase in which they happen. On the wire and in files a phase is its word, so an unknown word of another
version can come in: `place_of` takes it for a step's beginning.
"""

from enum import Flag, StrEnum, auto


class Trait(Flag):
    """What a phase means to whoever compares members.

    OWN_WORK: a member computes for itself; the time that it waits for others in the phase is not its own work. IN_STEP: of a step
    that has no record yet. OUTSIDE: the worker computes in no generation, or only what others do not wait for. WAITING: the
    worker has nothing left to do and waits for the controller. ONCE_A_STEP, AT_TIMES: a planned fault may name the phase; it is
    entered in every step, or only when something happens.
    """

    NONE = 0
    OWN_WORK = auto()
    IN_STEP = auto()
    OUTSIDE = auto()
    WAITING = auto()
    ONCE_A_STEP = auto()
    AT_TIMES = auto()


_STEP = Trait.IN_STEP | Trait.ONCE_A_STEP
_COMPUTE = _STEP | Trait.OWN_WORK


class Phase(StrEnum):
    """The phases in the order in which a member goes through them, from one commit to the next, or to the run's end.

    START, SPARE and RECOVERY come before the first RESHAPE into a generation. TALLY: a vote has returned and is not stored yet.
    """

    traits: Trait

    def __new__(cls, word: str, traits: Trait = Trait.NONE) -> "Phase":
        phase = str.__new__(cls, word)
        phase._value_, phase.traits = word, traits
        return phase

    COMMITTED = "committed", Trait.OWN_WORK | Trait.ONCE_A_STEP
    BETWEEN = "between", Trait.ONCE_A_STEP
    DECISION = "decision", Trait.AT_TIMES
    EVALUATE = "evaluate", Trait.AT_TIMES
    CHECKPOINT = "checkpoint", Trait.AT_TIMES
    FREEZE = "freeze", Trait.AT_TIMES
    ROLLBACK = "rollback", Trait.AT_TIMES
    START = "start", Trait.OUTSIDE
    SPARE = "spare", Trait.OUTSIDE
    RECOVERY = "recovery", Trait.OUTSIDE | Trait.AT_TIMES
    RESHAPE = "reshape", Trait.OUTSIDE | Trait.AT_TIMES
    LOAD = "load", _COMPUTE
    SCHEDULE = "schedule", _COMPUTE
    AUDIT = "audit", Trait.IN_STEP | Trait.OWN_WORK | Trait.AT_TIMES
    EXCHANGE = "exchange", _COMPUTE
    NORMS = "norms", _COMPUTE
    PREPARED = "prepared", _COMPUTE
    VOTE = "vote", _STEP
    TALLY = "tally", Trait.IN_STEP
    SEEN = "seen", _STEP
    COMMIT = "commit", _COMPUTE
    UPDATE = "update", Trait.IN_STEP | Trait.OWN_WORK
    FINISH = "finish", Trait.OUTSIDE | Trait.AT_TIMES
    PUBLISH = "publish", Trait.OUTSIDE | Trait.AT_TIMES
    DONE = "done", Trait.OUTSIDE | Trait.WAITING


class ControllerPhase(StrEnum):
    """Where a planned fault may end the controller: at a step, between writing a plan and announcing it, right after that, or
    while it answers a failure.
    """

    STEP = "step"
    PLANNED = "planned"
    ANNOUNCED = "announced"
    RECOVERING = "recovering"


def _with(trait: Trait) -> frozenset[Phase]:
    return frozenset(phase for phase in Phase if trait in phase.traits)


OWN_WORK = _with(Trait.OWN_WORK)
IN_STEP = _with(Trait.IN_STEP)
OUTSIDE = _with(Trait.OUTSIDE)
WAITING = _with(Trait.WAITING)
_PLACES: dict[str, int] = {phase: place for place, phase in enumerate(Phase)}
FAULT_PHASES = tuple(
    sorted(
        _with(Trait.ONCE_A_STEP) | _with(Trait.AT_TIMES),
        key=lambda phase: (phase in _with(Trait.AT_TIMES), phase not in IN_STEP, _PLACES[phase]),
    )
)
"""Where a planned fault may hit a worker: the phases of a whole step, from its first on, then those that are entered at times."""


def place_of(phase: str) -> int:
    """A phase's place in the order, from 0; of an unknown word, LOAD's."""
    return _PLACES.get(phase, _PLACES[Phase.LOAD])
