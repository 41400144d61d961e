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
    """Return a number of worker-seconds in words, from an hour on as worker-hours."""
    return f"{seconds / HOUR:,.2f} worker-hours" if abs(seconds) >= HOUR else f"{seconds:,.1f} worker-seconds"


def money(cost: float | None) -> str:
    """Return an amount in the job's currency; empty without a price."""
    return "" if cost is None else f"{cost:,.2f}" if abs(cost) >= 1 else f"{cost:.4f}"


def use_name(use: str) -> str:
    """Return a use in words; the plain name for a use of a newer version."""
    return USES[Use(use)] if use in set(Use) else use


def share(ledger: Ledger, seconds: float) -> str:
    """Return the share of `seconds` in all worker-seconds, in percent; empty for an empty ledger."""
    return f"{100 * seconds / ledger.total:.1f} %" if ledger.total > 0 else ""


def lines(ledger: Ledger) -> list[str]:
    """Return the lines for the terminal: one of uses, largest first, and one of savings."""
    if not ledger.total:
        return []
    cost = money(ledger.cost(ledger.total))
    used = sorted(ledger.used.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {share(ledger, seconds)}" for name, seconds in used if seconds >= 0.0005 * ledger.total)
    found = [f"ledger: {worker_time(ledger.total)}{f' at a cost of {cost}' if cost else ''}: {parts}"]
    saved = ", ".join(f"{worker_time(seconds)} {SAVINGS.get(by, by)}" for by, seconds in ledger.saved.items() if seconds)
    return found + ([f"saved, estimated: {saved}"] if saved else [])
