"""The pictures of a simulation, over the hours of the run: shape, speed, bubble, cache, device-hours and money."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from frostline_contract.mesh import in_words
from frostline_controller.report.charts import AXIS_STYLE, TIMES, WIDE, Chart
from frostline_controller.report.svg import COLOURS, STYLE, inline_svg, mpl, new_figure
from frostline_controller.simulation.replay import SECONDS_AN_HOUR, Replay, Span
from frostline_controller.simulation.simulate import STATIC_ARM, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARM_COLOURS = (COLOURS["learn"], COLOURS["second"], COLOURS["good"], COLOURS["bad"])
VARIABLES = (
    "<style>svg{--ink:#16202c;--muted:#5a6b7d;--grid:#dde5ec;--panel:#ffffff;--learn:#e07b39;--ice:#a9d8f0;--second:#2c74b8;"
    "--good:#2b9a72;--bad:#cc3d45;background:var(--panel)}@media(prefers-color-scheme:dark){svg{--ink:#e7edf3;--muted:#9aabba;"
    "--grid:#2b3846;--panel:#18222d;--learn:#f0995c;--ice:#2f6d92;--second:#6fb4ee;--good:#4cc398;--bad:#f0717a}}</style>"
)
"""The page's colours, for a picture in a file of its own."""


def build_charts(found: Simulation) -> list[Chart]:
    """Return all pictures, in the page's order."""
    with mpl.rc_context(STYLE):
        charts = [_shapes(name, run) for name, run in found.arms.items() if name != STATIC_ARM]
        charts.append(_steps(found, "speed", "Speed", "samples / s", lambda span: span.samples_per_second))
        charts.append(_steps(found, "bubble", "Bubble", "% of a step", lambda span: 100 * span.bubble_share))
        if any(span.placement.use_cache for run in found.arms.values() for span in run.spans):
            charts.append(_steps(found, "cache", "Cache hits", "% read from cache", lambda span: 100 * span.hit_fraction))
        charts.append(_sums(found, "device-hours", "Device-hours", "device-hours", lambda span: span.device_hours))
        if any(run.money for run in found.arms.values()):
            charts.append(_sums(found, "money", "Money", found.world.cluster.currency, lambda span: span.money))
    return charts


def standalone(chart: Chart) -> str:
    """Return a picture as the text of an SVG file, light or dark by the reader's setting."""
    end = chart.svg.index(">") + 1
    return chart.svg[:end] + VARIABLES + chart.svg[end:] + "\n"


def _shapes(arm: str, run: Replay) -> Chart:
    """Return the picture of one arm's degrees and frozen units over time."""
    figure, axes = new_figure(WIDE, 2.6)
    edges = _edges(run)
    axes.stairs(
        [span.freeze_point for span in run.spans], edges, fill=True, color=COLOURS["ice"], alpha=0.6, label="frozen units"
    )
    for axis in ("dp", "pp"):
        axes.stairs([span.placement.degrees[axis] for span in run.spans], edges, baseline=None, linewidth=2.2, **AXIS_STYLE[axis])
    axes.set_xlim(right=edges[-1])
    _finish(axes, "degree, units")
    shapes = [in_words(span.placement.degrees, TIMES) for span in run.spans]
    walk = " → ".join(shape for place, shape in enumerate(shapes) if place == 0 or shape != shapes[place - 1])
    name, title = f"shape-{arm}", f"Shape over time ({arm})"
    return Chart(name, title, f"Degrees: {walk}.", inline_svg(figure, f"chart-{name}", title, walk))


def _steps(found: Simulation, name: str, title: str, label: str, value: Callable[[Span], float]) -> Chart:
    """Return the picture of one quantity of each arm's spans over time.

    Args:
        found: the simulation.
        name: of the picture's file.
        title: of the picture.
        label: the quantity with its unit, for the vertical axis.
        value: the quantity of a span.
    """
    figure, axes = new_figure(WIDE, 2.6)
    said = []
    for (arm, run), colour in zip(found.arms.items(), _colours(found), strict=True):
        values = [value(span) for span in run.spans]
        axes.stairs(values, _edges(run), baseline=None, linewidth=2.0, color=colour, label=arm)
        said.append(f"{arm} from {values[0]:,.4g} to {values[-1]:,.4g}")
    axes.set_ylim(bottom=0)
    _finish(axes, label)
    text = f"{label}: {', '.join(said)}."
    return Chart(name, title, text, inline_svg(figure, f"chart-{name}", title, text))


def _sums(found: Simulation, name: str, title: str, label: str, value: Callable[[Span], float]) -> Chart:
    """Return the picture of the sum of one quantity over each arm's spans, over time. Arguments as in `_steps`."""
    figure, axes = new_figure(WIDE, 2.6)
    said = []
    for (arm, run), colour in zip(found.arms.items(), _colours(found), strict=True):
        used = list(accumulate((value(span) for span in run.spans), initial=0.0))
        axes.plot(_edges(run), used, color=colour, label=arm)
        said.append(f"{arm} {used[-1]:,.4g}")
    axes.set_ylim(bottom=0)
    _finish(axes, label)
    text = f"{label} in all: {', '.join(said)}."
    return Chart(name, title, text, inline_svg(figure, f"chart-{name}", title, text))


def _colours(found: Simulation) -> Sequence[str]:
    """Return a colour for each arm; grey for the static arm."""
    left = iter(ARM_COLOURS * len(found.arms))
    return [COLOURS["muted"] if arm == STATIC_ARM else next(left) for arm in found.arms]


def _edges(run: Replay) -> list[float]:
    """Return the hours at which the spans begin, and the hour of the end."""
    edges = [span.start_seconds / SECONDS_AN_HOUR for span in run.spans] + [run.seconds / SECONDS_AN_HOUR]
    assert all(before <= after for before, after in pairwise(edges))
    return edges


def _finish(axes: "Axes", label: str) -> None:
    axes.set_xlim(left=0)
    axes.set_xlabel("hours")
    axes.set_ylabel(label)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, borderaxespad=0.1, handlelength=1.6, columnspacing=1.4)
