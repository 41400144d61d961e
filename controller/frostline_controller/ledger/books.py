"""The accounts of a run's workers: the newest report of each, and the time since. Facts and sums; times are arguments.

A worker reports sums over its life, so that its newest report replaces the one before: nothing is counted twice, also where a new
controller receives a report again. The accounts of a predecessor come from its file (`dump`, `load`); the time of a worker that
never comes back, from that file on, is not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frostline_controller.ledger.saved import UnitTimes
from frostline_controller.ledger.uses import Use, by_use, use_of

CLOSED_KEPT = 256
"""Accounts of workers that left which are kept apart, since a worker that was given up may come back; older ones are added up."""


@dataclass
class Account:
    """The account of one worker.

    Attributes:
        used: seconds by use, by the worker's newest report.
        at: time of that report.
        going_on: the worker's use of time at that report, and since.
        until: the last moment that counts, where the worker has left or not reported to this controller; None: it is there.
        tail: the use of the time since that report; None: it is not settled.
    """

    used: dict[Use, float]
    at: float
    going_on: Use
    until: float | None = None
    tail: Use | None = None

    def sums(self, now: float) -> dict[Use, float]:
        """Return the seconds by use up to `now`, or up to the account's end."""
        sums = dict(self.used)
        sums[self.tail or self.going_on] += max(0.0, (now if self.until is None else self.until) - self.at)
        return sums


@dataclass
class Books:
    """All accounts of a run.

    Attributes:
        accounts: by worker id.
        closed: sums over workers whose accounts are no longer kept.
        start_workers: workers of the pods that the run began with; 0: the run has not begun.
        held: workers of the pods that the run holds since `held_at`.
        held_at: begin of that time; None: the run holds no pods.
        given_back: worker-seconds of pods handed back, up to `held_at`.
        fetch_seconds: cost of one cached sample to a step, by the newest reports; None: none has any.
        times: of the units, once measured.
        over: the run has ended; reports of workers that exit no longer count.
    """

    accounts: dict[str, Account] = field(default_factory=dict)
    closed: dict[Use, float] = field(default_factory=lambda: dict.fromkeys(Use, 0.0))
    start_workers: int = 0
    held: int = 0
    held_at: float | None = None
    given_back: float = 0.0
    fetch_seconds: float | None = None
    times: UnitTimes | None = None
    over: bool = False

    def admit(self, worker_id: str, at: float) -> None:
        """Open an account for a worker that has reported nothing yet; the account of a known worker goes on."""
        if worker_id not in self.accounts:
            self.accounts[worker_id] = Account(dict.fromkeys(Use, 0.0), at, Use.RESHAPING)

    def receive(self, worker_id: str, seconds: Mapping[str, float], waiting: Mapping[str, float], phase: str, at: float) -> None:
        """Take a worker's newest report, also of a worker that was given up before: a report covers the worker's whole life.

        Args:
            worker_id: the worker.
            seconds: by phase, since the worker's start.
            waiting: the part of these seconds that was spent blocked on other members, by phase.
            phase: the phase at the time of the report.
            at: time of the report, by the clock of the books.
        """
        known = self.accounts.get(worker_id)
        if self.over:
            return
        if known is not None and known.tail is not None and known.until is not None and at <= known.until:
            return
        self.accounts[worker_id] = Account(by_use(seconds, waiting), at, use_of(phase))

    def leave(self, worker_id: str, at: float, died: bool) -> None:
        """Close the account of a worker that is gone.

        Args:
            worker_id: the worker.
            at: when the worker left, by the clock of the books.
            died: whether the worker was not asked to go, so that the time since its last report is lost.
        """
        account = self.accounts.get(worker_id)
        if account is None or account.tail is not None:
            return
        account.until = at if account.until is None else account.until
        account.tail = Use.LOST if died else account.going_on
        self._add_up_oldest()

    def leave_all(self, at: float) -> None:
        """Close all accounts, since the run has ended."""
        self.over = True
        for worker_id in list(self.accounts):
            self.leave(worker_id, at, died=False)

    def open(self) -> list[str]:
        """Return the workers that have not left."""
        return [worker_id for worker_id, account in self.accounts.items() if account.tail is None]

    def hold(self, workers: int, at: float) -> None:
        """Note that the run holds pods for so many workers from now on; the first number is that of the run's start."""
        self.start_workers = self.start_workers or workers
        self.given_back = self.given_back_by(at)
        self.held, self.held_at = workers, at

    def rest(self, at: float) -> None:
        """Note that the run holds no pods for a while: it is suspended, or has ended."""
        self.given_back, self.held_at = self.given_back_by(at), None

    def given_back_by(self, now: float) -> float:
        """Return the worker-seconds of pods that were handed back, up to `now`."""
        since = 0.0 if self.held_at is None else max(0.0, now - self.held_at)
        return self.given_back + max(0, self.start_workers - self.held) * since

    def used(self, now: float) -> dict[Use, float]:
        """Return the worker-seconds by use of all workers that the run has had, up to `now`."""
        sums = dict(self.closed)
        for account in self.accounts.values():
            for use, seconds in account.sums(now).items():
                sums[use] += seconds
        return sums

    def _add_up_oldest(self) -> None:
        left = [worker_id for worker_id, account in self.accounts.items() if account.tail is not None]
        for worker_id in left[: max(0, len(left) - CLOSED_KEPT)]:
            for use, seconds in self.accounts.pop(worker_id).sums(0.0).items():
                self.closed[use] += seconds

    # ---- durable

    def dump(self, now: float) -> dict[str, Any]:
        """Return the books as JSON values, with times as ages at `now`."""
        return {
            "closed": dict(self.closed),
            "accounts": {
                worker_id: {
                    "used": dict(account.used), "age": now - account.at, "going_on": account.going_on,
                    "until": None if account.until is None else now - account.until, "tail": account.tail,
                }
                for worker_id, account in self.accounts.items()
            },
            "start_workers": self.start_workers, "given_back": self.given_back_by(now), "fetch_seconds": self.fetch_seconds,
        }  # fmt: skip

    @staticmethod
    def load(values: Mapping[str, Any], now: float) -> "Books":
        """Return the books from a predecessor's `dump`, taken over at `now`.

        An account that was open counts only up to the dump until its worker reports again.

        Raises:
            ValueError, KeyError, TypeError: the values are not those of a dump.
        """
        books = Books(closed=_seconds(values["closed"]), start_workers=int(values["start_workers"]))
        books.given_back, books.fetch_seconds = float(values["given_back"]), values["fetch_seconds"]
        for worker_id, one in values["accounts"].items():
            until = one["until"]
            books.accounts[worker_id] = Account(
                _seconds(one["used"]), now - float(one["age"]), Use(one["going_on"]), now - float(until or 0.0),
                Use(one["tail"]) if one["tail"] is not None else None,
            )  # fmt: skip
        return books


def _seconds(values: Mapping[str, float]) -> dict[Use, float]:
    return dict.fromkeys(Use, 0.0) | {Use(name): float(seconds) for name, seconds in values.items()}
