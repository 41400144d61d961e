"""Markdown tables and figures of the page."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float) -> str:
    """With its sign, to the second digit behind the point."""
    return f"{value:+.2f}"


def link(file: str) -> str:
    return f"[{file}]({file})"
