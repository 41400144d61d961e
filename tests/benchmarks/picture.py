"""One picture for each benchmark: each case's range from smallest to largest with its median, and the goal if there is one.

Written by hand as SVG, so that the same figures give the same bytes on every machine.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, TOP, ROW_HEIGHT = 860, 330, 90, 46, 30
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.quiet{fill:#57606a}.grid{stroke:#d0d7de}.span{stroke:#0969da;opacity:.35}"
    ".dot{fill:#0969da}.goal{stroke:#1a7f37;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#8b949e}.grid{stroke:#30363d}.span{stroke:#58a6ff}"
    ".dot{fill:#58a6ff}.goal{stroke:#3fb950}}"
)


def picture(title: str, rows: Sequence[dict[str, Any]]) -> str | None:
    """Return the SVG text; None if there is nothing to draw."""
    if not rows:
        return None
    unit, axis = rows[0]["unit"], _Axis(rows)
    height = TOP + ROW_HEIGHT * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text x="12" y="22" font-weight="600">{escape(title)}</text>',
    ]
    for tick in axis.ticks():
        x = axis.place(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 26}"/>')
        parts.append(f'<text class="quiet" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tick:g} {unit}</text>')
    for place, row in enumerate(rows):
        parts += _row(row, axis, TOP + ROW_HEIGHT * place + ROW_HEIGHT / 2)
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """A linear axis over all values and goals; logarithmic where ratios span more than a factor of 20."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        spreads = [row["spread"] for row in rows]
        values = [spread[name] for spread in spreads for name in ("low", "median", "high")]
        values += [goal for row in rows if (goal := _goal(row)) is not None]
        self.logarithmic = min(values) > 0 and max(values) / min(values) > 20
        low, high = self._scaled(min(values)), self._scaled(max(values))
        margin = 0.06 * (high - low) or 0.5
        self.low, self.high = low - margin, high + margin

    def place(self, value: float) -> float:
        """Return a value's x coordinate."""
        return LEFT + (self._scaled(value) - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[float]:
        """Return four to eight round values."""
        if self.logarithmic:
            steps = [base * 10.0**power for power in range(-4, 6) for base in (1, 2, 5)]
            return [step for step in steps if self.low <= math.log10(step) <= self.high]
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
        first = math.ceil(self.low / step)
        return [round(number * step, 10) for number in range(first, math.floor(self.high / step) + 1)]

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


def _row(row: dict[str, Any], axis: _Axis, y: float) -> list[str]:
    spread = row["spread"]
    low, middle, high = (axis.place(spread[name]) for name in ("low", "median", "high"))
    parts = [
        f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(row["case"])}</text>',
        f'<line class="span" x1="{low:.1f}" y1="{y:.1f}" x2="{high:.1f}" y2="{y:.1f}" stroke-width="8" stroke-linecap="round"/>',
        f'<circle class="dot" cx="{middle:.1f}" cy="{y:.1f}" r="5"/>',
        f'<text class="quiet" x="{WIDTH - RIGHT + 12}" y="{y + 4:.1f}">{spread["median"]:.3g} {row["unit"]}</text>',
    ]
    goal = _goal(row)
    if goal is not None:
        x = axis.place(goal)
        parts.append(f'<line class="goal" x1="{x:.1f}" y1="{y - 12:.1f}" x2="{x:.1f}" y2="{y + 12:.1f}" stroke-width="2"/>')
    return parts


def _goal(row: dict[str, Any]) -> float | None:
    return row["at_most"] if row["at_most"] is not None else row["at_least"]
