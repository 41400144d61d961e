"""The ledger in words, for the status, the report and comparisons."""

from frostline_controller.ledger.sums import HOUR, Ledger
from frostline_controller.ledger.uses import Use

USES = {
    Use.COMPUTING: "computing",
    Use.BUBBLE: "pipeline bubble, slower members",
    Use.EXCHANGE: "exchanging gradients",
    Use.DATA: "loading data",
    Use.CHECKPOINTS: "checkpoints",
    Use.LOST: "lost to failures and rollbacks",
    Use.RESHAPING: "starting and reshaping",
    Use.IDLE: "idle",
}
SAVINGS = {"freezing": "by freezing", "cache": "by the cache", "pods": "by pods handed back"}


def worker_time(seconds: float) -> str:
    """Worker-seconds as people write them: worker-hours where there are many."""
    return f"{seconds / HOUR:,.2f} worker-hours" if abs(seconds) >= HOUR else f"{seconds:,.1f} worker-seconds"


def money(cost: float | None) -> str:
    """An amount in the job's currency; empty without a price."""
    return "" if cost is None else f"{cost:,.2f}" if abs(cost) >= 1 else f"{cost:.4f}"


def use_name(use: str) -> str:
    """A use in words; one of a newer version as it is called."""
    return USES[Use(use)] if use in set(Use) else use


def share(ledger: Ledger, seconds: float) -> str:
    """Of all that was used."""
    return f"{100 * seconds / ledger.total:.1f} %" if ledger.total > 0 else ""


def lines(ledger: Ledger) -> list[str]:
    """For the terminal: one line of uses, largest first, and one of savings."""
    if not ledger.total:
        return []
    cost = money(ledger.cost(ledger.total))
    used = sorted(ledger.used.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {share(ledger, seconds)}" for name, seconds in used if seconds >= 0.0005 * ledger.total)
    found = [f"ledger: {worker_time(ledger.total)}{f' at a cost of {cost}' if cost else ''}: {parts}"]
    saved = ", ".join(f"{worker_time(seconds)} {SAVINGS.get(by, by)}" for by, seconds in ledger.saved.items() if seconds)
    return found + ([f"saved, estimated: {saved}"] if saved else [])
