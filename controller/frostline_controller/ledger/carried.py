"""The bytes that the run's workers sent, received and hold, added up from records; steps that are taken back count too."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from frostline_contract.lineage import Place
from frostline_contract.statistics import StepRecord
from frostline_contract.usage import Held, WorkerUsage

WORDS = {
    "dp_gradients": "gradients of replicas", "dp_weights": "weights of replicas", "pp": "between stages",
    "tp": "within tensor groups", "buddies": "to buddies", "moves": "state moved", "cache": "cache",
    "other": "votes and the rest",
}  # fmt: skip
"""The uses of traffic in words, by the names of usage records."""


class Carried:
    """Sums over a run. sent, received: bytes of all workers by use. newest: the members' usage of the last interval, by id."""

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        self.sent, self.received = Counter[str](), Counter[str]()
        self.newest: dict[str, WorkerUsage] = {}
        self._of = Place(0, 0)
        for record in records:
            self.add(record)

    def add(self, record: StepRecord) -> None:
        """Add a record, which must not be added twice; most records have no usage."""
        for one in record.usage:
            self.sent.update(one.sent)
            self.received.update(one.received)
        if record.usage and record.place >= self._of:
            self._of = record.place
            self.newest = {one.worker_id: one for one in record.usage}

    def most_resident(self) -> dict[str, int]:
        """Return by kind the most bytes that any of the last interval's members holds."""
        return most_resident(one.resident for one in self.newest.values())

    def as_json(self) -> dict[str, Any]:
        """Return the sums in the form of result.json."""
        workers = {name: one.model_dump(exclude={"worker_id"}) for name, one in self.newest.items()}
        return {"sent": dict(self.sent), "received": dict(self.received), "last_interval": workers}


def most_resident(reports: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return by kind the most bytes that any worker holds. reports: each worker's bytes by kind."""
    workers = list(reports)
    return {kind.value: max((one.get(kind, 0) for one in workers), default=0) for kind in Held}


def usage_lines(carried: Mapping[str, int], resident: Mapping[str, int]) -> list[str]:
    """Return the lines for the terminal: one of traffic, largest first, and one of memory; none without figures."""
    ways = [f"{WORDS.get(way, way)} {size(count)}" for way, count in sorted(carried.items(), key=lambda one: -one[1]) if count]
    kinds = [f"{kind} {size(count)}" for kind, count in resident.items() if count]
    found = [f"sent by all workers: {', '.join(ways)}"] if ways else []
    return found + ([f"held by a worker at most: {', '.join(kinds)}"] if kinds else [])


def size(count: int) -> str:
    """Return a number of bytes in words, such as "1.5 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count} bytes"
