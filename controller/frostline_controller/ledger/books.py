"""The accounts of a run's workers: the newest word of each, and what has passed since. Facts and sums; times are given.

A worker tells sums over its life, so that the newest word replaces the one before: nothing is counted twice, also where a new
controller hears it again. What a predecessor knew of workers comes from its file (`dump`, `load`); time that nobody saw, between
that file and a worker that never came back, is not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frostline_controller.ledger.saved import UnitTimes
from frostline_controller.ledger.uses import Use, by_use, use_of

CLOSED_KEPT = 256
"""Accounts of so many workers that left are kept apart, since one that was given up may come back; older ones are added up."""


@dataclass
class Account:
    """One worker's. used: seconds by use, as it told last, at `at`. going_on: what it was doing then, and has done since.

    until: the last moment that counts, where it has left or was not heard of by this controller; None: it is there.
    tail: what the time since its last word went to, where that is settled.
    """

    used: dict[Use, float]
    at: float
    going_on: Use
    until: float | None = None
    tail: Use | None = None

    def sums(self, now: float) -> dict[Use, float]:
        """Seconds by use up to `now`, or up to its end."""
        sums = dict(self.used)
        sums[self.tail or self.going_on] += max(0.0, (now if self.until is None else self.until) - self.at)
        return sums


@dataclass
class Books:
    """All accounts of a run.

    closed: sums over workers whose accounts are not kept any more. start_workers: of the pods that the run began with; 0: it has
    not begun. given_back: worker-seconds that it held fewer, up to `held_at`; since then it holds `held`. fetch_seconds: so
    long a step was kept waiting for one cached sample, as workers told last; None: none has. times: of the units, once measured.
    over: the run has ended, and what workers say while they exit is not the run's.
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
        """A worker is there; it has told nothing yet. One that is known goes on."""
        if worker_id not in self.accounts:
            self.accounts[worker_id] = Account(dict.fromkeys(Use, 0.0), at, Use.RESHAPING)

    def hear(self, worker_id: str, seconds: Mapping[str, float], waiting: Mapping[str, float], phase: str, at: float) -> None:
        """A worker's newest word, also of one that was given up before: what it says covers its whole life."""
        known = self.accounts.get(worker_id)
        if self.over:
            return
        if known is not None and known.tail is not None and known.until is not None and at <= known.until:
            return
        self.accounts[worker_id] = Account(by_use(seconds, waiting), at, use_of(phase))

    def leave(self, worker_id: str, at: float, died: bool) -> None:
        """A worker is gone. died: nobody had asked it to go, so what came after its last word is lost."""
        account = self.accounts.get(worker_id)
        if account is None or account.tail is not None:
            return
        account.until = at if account.until is None else account.until
        account.tail = Use.LOST if died else account.going_on
        self._add_up_oldest()

    def leave_all(self, at: float) -> None:
        """The run has ended."""
        self.over = True
        for worker_id in list(self.accounts):
            self.leave(worker_id, at, died=False)

    def open(self) -> list[str]:
        """Workers that have not left."""
        return [worker_id for worker_id, account in self.accounts.items() if account.tail is None]

    def hold(self, workers: int, at: float) -> None:
        """The run holds pods for so many workers from now on; the first number is what it began with."""
        self.start_workers = self.start_workers or workers
        self.given_back = self.given_back_by(at)
        self.held, self.held_at = workers, at

    def rest(self, at: float) -> None:
        """The run holds no pods for a while: it is suspended, or has ended."""
        self.given_back, self.held_at = self.given_back_by(at), None

    def given_back_by(self, now: float) -> float:
        """Worker-seconds of pods that were handed back."""
        since = 0.0 if self.held_at is None else max(0.0, now - self.held_at)
        return self.given_back + max(0, self.start_workers - self.held) * since

    def used(self, now: float) -> dict[Use, float]:
        """Worker-seconds by use: of all workers that the run has had."""
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
        """As JSON values; times as ages at `now`."""
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
        """What `dump` made, taken over by another controller at `now`. Workers that were there have yet to be heard of again.

        Raises ValueError, KeyError or TypeError for values that are no such thing.
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
