"""The phases of a run, which decide the acts of the controller's round."""

from enum import Enum, auto


class RunPhase(Enum):
    """The run's phase: one value at any moment, computed anew from the durable state and from the work in progress.

    A worker's phases are `frostline_contract.phases.Phase`; the run's state, for people and in files, is
    `frostline_contract.run_status.RunStatus`.
    """

    STARTING = auto()
    """No generation has run: the run waits for the workers of the first plan."""
    BETWEEN = auto()
    """The last generation is over, and the next starts from a checkpoint: after a resume, or during a pause."""
    RUNNING = auto()
    """A generation trains, or its members are entering it."""
    RECOVERING = auto()
    """A failure of the running generation is being answered."""
    DRAINING = auto()
    """Members have been asked to stop at a checkpoint."""
    HELD = auto()
    """The checkpoints that the run needs are gone: nothing is planned in this round."""
    ENDED = auto()
    """The run has a result, or was suspended."""


EVERY = frozenset(RunPhase)
ENDED = frozenset({RunPhase.ENDED})
GOING_ON = EVERY - ENDED
PLANNABLE = GOING_ON - {RunPhase.HELD}
WAITING = frozenset({RunPhase.STARTING, RunPhase.BETWEEN})
NOT_BETWEEN = PLANNABLE - {RunPhase.BETWEEN}
RUNNING = frozenset({RunPhase.RUNNING})
RECOVERING = frozenset({RunPhase.RECOVERING})
UNBROKEN = RUNNING | {RunPhase.DRAINING}
IN_A_GENERATION = UNBROKEN | RECOVERING
