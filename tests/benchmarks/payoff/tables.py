"""Markdown tables and figures of the page."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float) -> str:
    """Format a value with its sign and two digits behind the point."""
    return f"{value:+.2f}"


def link(file: str) -> str:
    return f"[{file}]({file})"
