"""The shape that a command or the job's schedule has asked for."""

from typing import Literal

from frostline_contract.plan import Plan
from frostline_contract.record import Degrees, Shaped


class PinnedShape(Shaped):
    """The shape requested by a command or the job's schedule. It holds while the freeze point is `freeze_point`.

    Attributes:
        slices: token slices of each micro-batch; None: the job's value.
        shard: how replicas share the state; None: the job's value.
        from_step: the first step that may switch to the shape.
        open_request: the request in words, until a plan with the shape runs or an event has said why not; empty: it is answered.
    """

    degrees: Degrees
    schedule: str = "1f1b"
    virtual_stages: int = 1
    slices: int | None = None
    shard: Literal["none", "step", "use"] | None = None
    from_step: int = 0
    freeze_point: int = 0
    open_request: str = ""

    @property
    def answered(self) -> "PinnedShape":
        """The same shape, of which nothing is left to do or to say."""
        return self.model_copy(update={"open_request": ""})


def pinned_under(plan: Plan, pinned: PinnedShape | None) -> PinnedShape | None:
    """Return the pinned shape once `plan` runs: where the plan has the shape, its request is answered."""
    return pinned.answered if pinned is not None and pinned.degrees == plan.placement.degrees else pinned
