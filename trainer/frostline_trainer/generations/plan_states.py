"""The states of a plan in a worker, and the transitions that each state allows.

    RECEIVED -> FORMING -> PREPARED -> READY -> SWITCHED -> ENTERING -> CURRENT -> OVER

A plan that continues a running generation may become WITHDRAWN or EXPIRED until it is SWITCHED. Any other plan is entered when it
is PREPARED, or becomes FAILED. Transitions that are not in `TRANSITIONS` are refused, so a late message changes nothing.
"""

from enum import Enum


class PlanState(Enum):
    """The state of a plan, as far as this worker knows."""

    OTHERS = "it does not name this worker"
    RECEIVED = "received, its groups are not being formed yet"
    FORMING = "its groups are being formed"
    PREPARED = "its groups stand, and the controller is told so"
    READY = "all participants are prepared: members may vote for it"
    WITHDRAWN = "taken back, by the controller or by this worker: only a vote that is under way may still switch to it"
    FAILED = "its groups were not formed, and it cannot wait: a report is due"
    SWITCHED = "a vote has switched to it"
    ENTERING = "this worker brings its state in place"
    CURRENT = "this worker is a member of its generation"
    EXPIRED = "no vote has switched to it, and none will (docs/protocols.md 3.3): told in reports as its fate"
    OVER = "left, replaced by a later one, or promised never to be entered"


FORMED = frozenset({PlanState.PREPARED, PlanState.READY, PlanState.SWITCHED, PlanState.ENTERING})
"""States in which this worker reports to a controller that it is prepared."""
REFUSED = frozenset({PlanState.WITHDRAWN, PlanState.FAILED})
"""States in which this worker reports that it is not prepared, and why."""

_ENDS = (PlanState.EXPIRED, PlanState.OVER)
TRANSITIONS: dict[PlanState, tuple[PlanState, ...]] = {
    PlanState.OTHERS: (),
    PlanState.RECEIVED: (PlanState.FORMING, PlanState.WITHDRAWN, *_ENDS),
    PlanState.FORMING: (PlanState.PREPARED, PlanState.WITHDRAWN, PlanState.FAILED, *_ENDS),
    # To SWITCHED: a joiner holds no vote, and the notice that all are ready may reach it after the switch.
    PlanState.PREPARED: (PlanState.READY, PlanState.WITHDRAWN, PlanState.SWITCHED, PlanState.ENTERING, *_ENDS),
    PlanState.READY: (PlanState.WITHDRAWN, PlanState.SWITCHED, *_ENDS),
    PlanState.WITHDRAWN: (PlanState.SWITCHED, *_ENDS),
    PlanState.FAILED: (PlanState.OVER,),
    PlanState.SWITCHED: (PlanState.ENTERING, PlanState.OVER),
    PlanState.ENTERING: (PlanState.CURRENT, PlanState.OVER),
    PlanState.CURRENT: (PlanState.OVER,),
    PlanState.EXPIRED: (),
    PlanState.OVER: (),
}
