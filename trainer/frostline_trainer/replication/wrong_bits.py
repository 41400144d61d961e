"""Errors after which a run cannot use what it has computed: the controller answers them with a restore of an earlier state."""

from collections.abc import Mapping
from pathlib import Path


class WrongBits(RuntimeError):
    """Members hold different bits of the same data.

    Attributes:
        first_step: The first step whose result must not be used; 0: the first step that has read the cache.
        workers: Ids of the workers whose bits differ from all others', if known.
        detail: The difference, for the event.
    """

    def __init__(
        self, text: str, first_step: int, workers: tuple[str, ...] = (), detail: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.first_step, self.workers, self.detail = first_step, workers, dict(detail or {})


class CacheDiffers(WrongBits):
    """A cached value differs from its recomputation, so all values read from the cache may be wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 0)


class CheckpointMissing(WrongBits):
    """The checkpoint of a rollback is not there: its disk was full at the freeze, or has lost it. The run goes back further, and
    computes all again from there, the checkpoint included.

    step: The checkpoint's step, before the freeze that is to be rolled back.
    """

    def __init__(self, step: int, root: Path) -> None:
        text = f"there is no complete checkpoint of step {step} under {root} to roll back to: it was not written, or is lost"
        super().__init__(text, step + 1, detail={"missing_checkpoint": str(step)})
