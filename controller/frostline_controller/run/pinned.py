"""The shape that a command or the job's schedule asks for, as the durable state keeps it."""

from typing import Literal

from frostline_contract.job.cluster import ScheduledReshape
from frostline_contract.job.section import AUTO
from frostline_contract.plan import Placement
from frostline_contract.record import Degrees, Shaped


class PinnedShape(Shaped):
    """The shape requested by a command or the job's schedule. It holds while the freeze point is `freeze_point`.

    Attributes:
        slices: token slices of each micro-batch; None: the job's value.
        shard: how replicas share the state; None: the job's value.
        tensor_rows: how groups have samples; None: the job's value.
        from_step: the first step that may switch to the shape.
        open_request: the request in words, until a plan with the shape runs or an event has said why not; empty: it is answered.
    """

    degrees: Degrees
    schedule: str = "1f1b"
    virtual_stages: int = 1
    slices: int | None = None
    shard: Literal["none", "step", "use"] | None = None
    tensor_rows: Literal["whole", "split"] | None = None
    from_step: int = 0
    freeze_point: int = 0
    open_request: str = ""

    @classmethod
    def of(cls, one: ScheduledReshape, freeze_point: int, request: str, from_step: int = 0) -> "PinnedShape":
        """The shape of a reshape, whose step does not count. request: in words."""
        return cls(
            degrees=one.degrees, schedule=one.schedule, virtual_stages=one.virtual_stages, slices=one.slices,
            shard=one.shard, tensor_rows=one.tensor_rows, from_step=from_step, freeze_point=freeze_point, open_request=request,
        )  # fmt: skip

    @property
    def answered(self) -> "PinnedShape":
        """The same shape, of which nothing is left to do or to say."""
        return self.model_copy(update={"open_request": ""})

    def is_in(self, placement: Placement) -> bool:
        """Whether a placement has the shape with the schedule and all else that was asked for.

        Where the planner runs another schedule than the asked one, the request stays open until it is asked again and finds no
        better plan.
        """
        asked = {name: value for name in ("shard", "tensor_rows") if (value := getattr(self, name)) is not None}
        if self.schedule != AUTO:
            asked["schedule"] = self.schedule
        if self.slices is not None and self.slices != (len(placement.slices) or 1):
            return False
        return placement.degrees == self.degrees and all(getattr(placement, name) == value for name, value in asked.items())
