"""The picture of a step as one SVG file: a row for each pipeline rank, and a box over time for each of its operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from frostline_contract.operations import Kind
from frostline_contract.schedule_figures import Timed
from frostline_controller.planner.in_words import seconds_in_words

WIDTH, ROW, LEFT, TOP = 1200, 26, 64, 64
MOST_BOXES = 20_000
"""Most operations in a picture; more of them would be illegible."""
NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "gradient of the input",
    Kind.WEIGHT_GRADIENT: "gradients of weights",
}
STYLE = """
.step text{font:11px system-ui,sans-serif;fill:#24323f}.step .box text{font-size:9px;text-anchor:middle;fill:#fff}
.step .row{fill:#eef1f4}.step .forward{fill:#2f6db5}.step .backward{fill:#c2571a}.step .input_gradient{fill:#b0413e}
.step .weight_gradient{fill:#4a8a4f}
@media(prefers-color-scheme:dark){.step text{fill:#d5dde5}.step .row{fill:#26303a}}
"""


@dataclass(frozen=True)
class Panel:
    """One step of a picture, as a block of rows.

    Attributes:
        timed: the step's operations.
        name: written above the rows; empty: no name.
    """

    timed: Sequence[Timed]
    name: str = ""

    @property
    def seconds(self) -> float:
        """Seconds from the step's begin to the end of its last operation."""
        return max(one.end for one in self.timed)

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks, which is that of rows."""
        return 1 + max(one.pp_rank for one in self.timed)

    def busy(self, pp_rank: int) -> float:
        """Return the seconds in which a rank computes."""
        return sum(one.end - one.start for one in self.timed if one.pp_rank == pp_rank)


def program_picture(timed: Sequence[Timed], title: str) -> str:
    """Return the SVG of a step. Raises ValueError where it has more operations than a picture can show."""
    return step_picture([Panel(timed)], title)


def step_picture(panels: Sequence[Panel], title: str) -> str:
    """Return the SVG of one or several steps on one axis of time.

    Boxes have the number of their micro-batch, and of the slice where there are several.

    Raises:
        ValueError: the steps have more operations than a picture can show.
    """
    every = [one for panel in panels for one in panel.timed]
    if len(every) > MOST_BOXES:
        raise ValueError(f"the step has {len(every):,} operations and a picture shows at most {MOST_BOXES:,}; plan fewer devices")
    end, top = max(panel.seconds for panel in panels), TOP
    scale, sliced = (WIDTH - LEFT - 60) / end, any(one.operation.slice for one in every)
    lines = list[str]()
    for panel in panels:
        if panel.name:
            lines.append(f'<text x="8" y="{top + 14}" font-weight="bold">{escape(panel.name)}</text>')
            top += ROW
        lines += _panel(panel, top, scale, sliced)
        top += panel.ranks * ROW
    lines += [
        f'<text x="{LEFT + share * end * scale:.1f}" y="{top + 18}" text-anchor="middle">{seconds_in_words(share * end)}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    size = f'viewBox="0 0 {WIDTH} {top + 28}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="step" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text x="8" y="18" font-weight="bold">{escape(title)}</text>',
        *_legend(every),
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


def _panel(panel: Panel, top: int, scale: float, sliced: bool) -> list[str]:
    lines = []
    for pp_rank in range(panel.ranks):
        row = top + pp_rank * ROW
        lines += [
            f'<text x="8" y="{row + 16}">rank {pp_rank}</text>',
            f'<rect class="row" x="{LEFT}" y="{row + 2}" width="{WIDTH - LEFT - 60}" height="{ROW - 4}"/>',
            f'<text x="{WIDTH - 54}" y="{row + 16}">{panel.busy(pp_rank) / panel.seconds:.0%} busy</text>',
        ]
    return lines + [_box(one, top, scale, sliced) for one in panel.timed]


def _legend(timed: Sequence[Timed]) -> list[str]:
    lines, left = [], 8
    for kind in [kind for kind in NAMES if any(one.operation.kind is kind for one in timed)]:
        lines.append(f'<rect class="{kind}" x="{left}" y="32" width="12" height="12"/>')
        lines.append(f'<text x="{left + 17}" y="42">{NAMES[kind]}</text>')
        left += 40 + 7 * len(NAMES[kind])
    return lines


def _box(one: Timed, top: int, scale: float, sliced: bool) -> str:
    """Return the box of an operation, with a tooltip, and with its number where that fits.

    Args:
        one: the operation.
        top: upper edge of its panel, in pixels.
        scale: pixels of a second.
        sliced: whether micro-batches have slices, so that the number names the slice too.
    """
    operation = one.operation
    number = f"{operation.micro_batch}.{operation.slice}" if sliced else f"{operation.micro_batch}"
    left, row, width = LEFT + one.start * scale, top + one.pp_rank * ROW + 3, (one.end - one.start) * scale
    between = f"{seconds_in_words(one.start)} to {seconds_in_words(one.end)}"
    words = f"{NAMES[operation.kind]}, stage {operation.stage}, micro-batch {number}, {between}"
    label = f'<text x="{left + width / 2:.1f}" y="{row + 14}">{number}</text>' if width > 6 * len(number) + 2 else ""
    return (
        f'<g class="box"><title>{words}</title><rect class="{operation.kind}" x="{left:.2f}" y="{row}" '
        f'width="{max(width - 0.6, 0.3):.2f}" height="{ROW - 6}" rx="1.5"/>{label}</g>'
    )
