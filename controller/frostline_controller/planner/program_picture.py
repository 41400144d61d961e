"""A step as a picture: a row for each pipeline rank, a box for each of its operations over time, as one SVG file."""

from collections.abc import Sequence
from html import escape

from frostline_contract.operations import Kind
from frostline_contract.schedule_figures import Timed

WIDTH, ROW, LEFT, TOP = 1200, 26, 64, 64
MOST_BOXES = 20_000
"""More than that is no picture any more."""
NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "gradient of the input",
    Kind.WEIGHT_GRADIENT: "gradients of weights",
}
STYLE = """
text{font:11px system-ui,sans-serif;fill:#24323f}.box text{font-size:9px;text-anchor:middle;fill:#fff}.row{fill:#eef1f4}
.forward{fill:#2f6db5}.backward{fill:#c2571a}.input_gradient{fill:#b0413e}.weight_gradient{fill:#4a8a4f}
@media(prefers-color-scheme:dark){text{fill:#d5dde5}.row{fill:#26303a}}
"""


def program_picture(timed: Sequence[Timed], title: str) -> str:
    """The SVG of a step. Boxes carry the number of their micro-batch, and of the slice where there are several.

    Raises:
        ValueError: the step has more operations than a picture can show.
    """
    if len(timed) > MOST_BOXES:
        raise ValueError(f"the step has {len(timed):,} operations and a picture shows at most {MOST_BOXES:,}; plan fewer devices")
    end, ranks = max(one.end for one in timed), 1 + max(one.pp_rank for one in timed)
    sliced = any(one.operation.slice for one in timed)
    bottom = TOP + ranks * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 28}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text x="8" y="18" font-weight="bold">{escape(title)}</text>',
        *_legend(timed),
    ]
    for pp_rank in range(ranks):
        top, busy = TOP + pp_rank * ROW, sum(one.end - one.start for one in timed if one.pp_rank == pp_rank)
        lines += [
            f'<text x="8" y="{top + 16}">rank {pp_rank}</text>',
            f'<rect class="row" x="{LEFT}" y="{top + 2}" width="{WIDTH - LEFT - 60}" height="{ROW - 4}"/>',
            f'<text x="{WIDTH - 54}" y="{top + 16}">{busy / end:.0%} busy</text>',
        ]
    scale = (WIDTH - LEFT - 60) / end
    lines += [_box(one, scale, sliced) for one in timed]
    lines += [
        f'<text x="{LEFT + share * end * scale:.1f}" y="{bottom + 18}" text-anchor="middle">{_seconds(share * end)}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    return "\n".join([*lines, "</svg>", ""])


def _legend(timed: Sequence[Timed]) -> list[str]:
    lines, left = [], 8
    for kind in [kind for kind in NAMES if any(one.operation.kind is kind for one in timed)]:
        lines.append(f'<rect class="{kind}" x="{left}" y="32" width="12" height="12"/>')
        lines.append(f'<text x="{left + 17}" y="42">{NAMES[kind]}</text>')
        left += 40 + 7 * len(NAMES[kind])
    return lines


def _box(one: Timed, scale: float, sliced: bool) -> str:
    """An operation, with a tooltip; its number where there is room for it."""
    operation = one.operation
    number = f"{operation.micro_batch}.{operation.slice}" if sliced else f"{operation.micro_batch}"
    left, top, width = LEFT + one.start * scale, TOP + one.pp_rank * ROW + 3, (one.end - one.start) * scale
    between = f"{_seconds(one.start)} to {_seconds(one.end)}"
    words = f"{NAMES[operation.kind]}, stage {operation.stage}, micro-batch {number}, {between}"
    label = f'<text x="{left + width / 2:.1f}" y="{top + 14}">{number}</text>' if width > 6 * len(number) + 2 else ""
    return (
        f'<g class="box"><title>{words}</title><rect class="{operation.kind}" x="{left:.2f}" y="{top}" '
        f'width="{max(width - 0.6, 0.3):.2f}" height="{ROW - 6}" rx="1.5"/>{label}</g>'
    )


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
