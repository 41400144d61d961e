"""Phases: the parts of a worker's time inside and outside a step, with their order and traits (docs/protocols.md 7).

The trainer enters phases and measures them. The controller compares how far members have come and sets a deadline for each phase.
Planned faults name the phase in which they happen. On the wire and in files a phase is its word, so another version may send an
unknown word: `place_of` treats it as the beginning of a step.
"""

from enum import Flag, StrEnum, auto


class Trait(Flag):
    """Properties of phases, by which members are compared.

    Attributes:
        OWN_WORK: the member computes; the time in the phase that it waits for other members is not counted as its work.
        IN_STEP: the phase belongs to a step that has no record yet.
        OUTSIDE: the worker is in no generation, or no other member waits for what it computes.
        WAITING: the worker has nothing left to do and waits for the controller.
        AT_REST: a registered worker waits for a plan, outside all generations.
        ONCE_A_STEP: a planned fault may name the phase, which is entered in every step.
        AT_TIMES: a planned fault may name the phase, which is entered only on occasion.
    """

    NONE = 0
    OWN_WORK = auto()
    IN_STEP = auto()
    OUTSIDE = auto()
    WAITING = auto()
    AT_REST = auto()
    ONCE_A_STEP = auto()
    AT_TIMES = auto()


_STEP = Trait.IN_STEP | Trait.ONCE_A_STEP
_COMPUTE = _STEP | Trait.OWN_WORK


class Phase(StrEnum):
    """The phases, in the order in which a member passes them from one commit to the next, or to the run's end.

    START, SPARE and RECOVERY come before the first RESHAPE into a generation. TALLY: a vote's result has arrived and is not
    stored yet.
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
    START = "start", Trait.OUTSIDE | Trait.AT_REST
    SPARE = "spare", Trait.OUTSIDE | Trait.AT_REST
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
    """The moments at which a planned fault may end the controller.

    These are: at a step, between writing a plan and announcing it, right after the announcement, or during a recovery.
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
AT_REST = _with(Trait.AT_REST)
_PLACES: dict[str, int] = {phase: place for place, phase in enumerate(Phase)}
FAULT_PHASES = tuple(
    sorted(
        _with(Trait.ONCE_A_STEP) | _with(Trait.AT_TIMES),
        key=lambda phase: (phase in _with(Trait.AT_TIMES), phase not in IN_STEP, _PLACES[phase]),
    )
)
"""Phases in which a planned fault may hit a worker: first those of every step, in order, then those entered on occasion."""


def place_of(phase: str) -> int:
    """A phase's place in the order, from 0; LOAD's place for an unknown word."""
    return _PLACES.get(phase, _PLACES[Phase.LOAD])
