"""The ledger in the form of the status, result.json, ledger.json, the report and the metrics."""

from collections.abc import Mapping
from typing import Any

from frostline_contract.record import Frozen
from frostline_controller.ledger.saved import FORMULAS
from frostline_controller.ledger.uses import OF_STEPS, Use
from frostline_proto.v1 import control_pb2 as pb

HOUR = 3600.0


class Ledger(Frozen):
    """The ledger of one run at one moment.

    Attributes:
        used: worker-seconds by use; each worker-second of the run has exactly one use.
        saved: estimates of savings by their cause; unknown ones are left out.
        price_per_worker_hour: of the job; None: not given.
    """

    used: dict[str, float]
    saved: dict[str, float]
    price_per_worker_hour: float | None = None

    @property
    def total(self) -> float:
        """Worker-seconds of the run so far."""
        return sum(self.used.values())

    def cost(self, seconds: float) -> float | None:
        """Return the cost of so many worker-seconds; None without a price."""
        return None if self.price_per_worker_hour is None else seconds / HOUR * self.price_per_worker_hour

    def as_json(self) -> dict[str, Any]:
        """Return the ledger in its documented JSON form."""
        price = self.price_per_worker_hour
        cost = None if price is None else {
            "total": self.cost(self.total),
            "used": {name: self.cost(seconds) for name, seconds in self.used.items()},
            "saved": {name: self.cost(seconds) for name, seconds in self.saved.items()},
        }  # fmt: skip
        return {
            "worker_seconds": self.total, "used": self.used, "saved_estimates": self.saved,
            "formulas": {name: FORMULAS[name] for name in self.saved}, "price_per_worker_hour": price, "cost": cost,
        }  # fmt: skip

    @staticmethod
    def of_json(values: Mapping[str, Any]) -> "Ledger":
        """Return the ledger from the values of `as_json`; fields of later versions are ignored."""
        return Ledger(
            used=values["used"], saved=values["saved_estimates"], price_per_worker_hour=values.get("price_per_worker_hour")
        )

    def message(self) -> pb.Ledger:
        """Return the ledger as a message of the Status RPC."""
        return pb.Ledger(used_seconds=self.used, saved_seconds=self.saved, price_per_worker_hour=self.price_per_worker_hour)

    @staticmethod
    def of_message(sent: pb.Ledger) -> "Ledger":
        """Return the ledger from a message of the Status RPC."""
        price = sent.price_per_worker_hour if sent.HasField("price_per_worker_hour") else None
        return Ledger(used=dict(sent.used_seconds), saved=dict(sent.saved_seconds), price_per_worker_hour=price)


def with_taken_back(used: Mapping[Use, float], taken_back: float) -> dict[str, float]:
    """Return the uses with the time of steps that were taken back counted as lost; the sum stays the same.

    That time is subtracted from the uses of steps in proportion, since only one member reports the uses of a step's seconds.
    """
    of_steps = sum(used[use] for use in OF_STEPS)
    moved = min(taken_back, of_steps)
    keep = 1.0 - moved / of_steps if of_steps > 0 else 1.0
    rest = {use.value: used[use] * (keep if use in OF_STEPS else 1.0) for use in Use}
    rest[Use.LOST.value] += of_steps * (1.0 - keep)
    return rest
