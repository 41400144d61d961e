"""Errors that say: bits which this run has computed are wrong. The controller answers them: the run goes back to before them."""

from collections.abc import Mapping


class WrongBits(RuntimeError):
    """Members hold different bits where they should hold the same.

    first_step: the first step whose result is not to be used; 0: the first that has asked the cache.

    workers: ids of those whose bits differ from everybody else's, where that is known. detail: what it was, for the event.
    """

    def __init__(
        self, text: str, first_step: int, workers: tuple[str, ...] = (), detail: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.first_step, self.workers, self.detail = first_step, workers, dict(detail or {})


class CacheDiffers(WrongBits):
    """A cached value is not what its computation gives: whatever was read from the cache may be wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 0)
