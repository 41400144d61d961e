"""The pictures of a run, each a pure function of the run's data; None where the run has no data for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from frostline_contract.mesh import AXES, in_words
from frostline_contract.statistics import StepRecord
from frostline_controller.report.data import RunData
from frostline_controller.report.metrics import main_first
from frostline_controller.report.svg import COLOURS, STYLE, inline_svg, mpl, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES = "\N{MULTIPLICATION SIGN}"
AXIS_STYLE = {
    "dp": {"label": "replicas (dp degree)", "color": COLOURS["learn"]},
    "pp": {"label": "pipeline depth (pp degree)", "color": COLOURS["second"], "linestyle": (0, (4, 1.4))},
}
"""How the shape's picture draws an axis; others in the library's own colours."""
WIDE, NARROW = 11.0, 6.0
"""Inches: a picture over the whole page, and one of a pair."""

POINTS_MAX = 600
"""The largest number of points of a line: more than a screen can show would only enlarge the page."""

PARTS_MAX = 5
MARK_KINDS = ("failure", "guard")


@dataclass(frozen=True)
class Chart:
    """One picture: inline SVG with a heading and a sentence that describes it."""

    name: str
    title: str
    caption: str
    svg: str


def build_charts(run: RunData) -> list[Chart]:
    """Return all pictures that the run's data allows, in the page's order."""
    makers: list[Callable[[RunData], Chart | None]] = [
        shape_chart, freeze_chart, gradient_chart, loss_chart, metric_chart, throughput_chart, step_parts_chart, cache_chart
    ]  # fmt: skip
    with mpl.rc_context(STYLE):
        charts = [make(run) for make in makers] if run.records else []
    return [chart for chart in charts if chart is not None]


def thin(records: Sequence[StepRecord], count: int = POINTS_MAX) -> list[list[StepRecord]]:
    """Return consecutive groups of about equal size, at most `count` of them, that cover all records in order."""
    groups = min(count, len(records))
    cuts = [round(i * len(records) / groups) for i in range(groups + 1)] if groups else []
    return [list(records[low:high]) for low, high in pairwise(cuts)]


def shape_chart(run: RunData) -> Chart:
    """Draw the degrees of each axis over the steps."""
    figure, axes = new_figure(WIDE, 2.4)
    steps = _edges(run)
    named = [axis for axis in AXES if any(axis in record.degrees for record in run.records)]
    for axis in named:
        degrees = [record.degrees.get(axis, 1) for record in run.records]
        axes.stairs(degrees, steps, baseline=None, linewidth=2.4, **AXIS_STYLE.get(axis, {"label": f"{axis} degree"}))
    _whole_numbers(axes, max(degree for record in run.records for degree in record.degrees.values()))
    _finish(axes, run, "workers")
    walk = " → ".join(_runs([in_words(record.degrees, TIMES) for record in run.records]))
    return Chart("shape", "Shape over time", f"Degrees of each axis: {walk}.", _svg(figure, "shape", "Shape over time", walk))


def freeze_chart(run: RunData) -> Chart:
    """Draw the number of frozen units over the steps, below a line at the model's number of units."""
    figure, axes = new_figure(WIDE, 2.4)
    points = [record.freeze_point for record in run.records]
    units = run.num_units or max(points) + 1
    axes.stairs(points, _edges(run), fill=True, color=COLOURS["ice"], alpha=0.75)
    axes.stairs(points, _edges(run), baseline=None, color=COLOURS["second"], linewidth=2.0)
    axes.axhline(units, color=COLOURS["muted"], linewidth=0.9, linestyle=":")
    _whole_numbers(axes, units)
    _finish(axes, run, "frozen units", legend=False)
    text = f"{points[-1]} of {units} units are frozen at step {run.records[-1].step}; everything below the line no longer learns."
    return Chart("freeze", "Freeze point", text, _svg(figure, "freeze", "Freeze point", text))


def gradient_chart(run: RunData) -> Chart | None:
    """Draw each unit's gradient norm over the run, as a heat map; frozen units have none and stay empty."""
    with_norms = [record for record in run.records if record.unit_gradient_norms and not record.refused]
    if not with_norms:
        return None
    groups = thin(with_norms, 160)
    norms = np.array([np.sqrt(np.mean(np.square([record.unit_gradient_norms for record in group]), axis=0)) for group in groups])
    norms[~(norms > 0) | ~np.isfinite(norms)] = np.nan
    figure, axes = new_figure(WIDE, 3.1)
    axes.grid(visible=False)
    first, last = with_norms[0].step - 0.5, with_norms[-1].step + 0.5
    image = axes.imshow(
        np.log10(norms).T, aspect="auto", origin="lower", interpolation="nearest", cmap="inferno",
        extent=(first, last, -0.5, norms.shape[1] - 0.5),
    )  # fmt: skip
    axes.stairs([r.freeze_point - 0.5 for r in run.records], _edges(run), baseline=None, color=COLOURS["ice"], linewidth=2.2)
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=16)
    bar.set_label("log₁₀ of the norm", color=COLOURS["muted"])
    bar.outline.set_visible(False)
    _whole_numbers(axes, norms.shape[1] - 1, bottom=-0.5, top=norms.shape[1] - 0.5)
    _finish(axes, run, "unit", legend=False, marks=False)
    text = "L2 norm of each unit's gradient (unit 0 is the embedding, the last the head). Frozen units have none."
    return Chart("gradients", "Gradient norms by unit", text, _svg(figure, "gradients", "Gradient norms by unit", text))


def loss_chart(run: RunData) -> Chart:
    """Draw the training loss by step with its running mean, the guard split's readings, and refused steps."""
    figure, axes = new_figure(NARROW, 2.9)
    groups = thin([record for record in run.records if np.isfinite(record.loss)])
    steps = [group[-1].step for group in groups]
    losses = np.array([np.mean([record.loss for record in group]) for group in groups])
    axes.plot(steps, losses, color=COLOURS["learn"], linewidth=0.9, alpha=0.45, label="each step")
    window = max(1, len(losses) // 40)
    axes.plot(steps, _smooth(losses, window), color=COLOURS["learn"], linewidth=2.2, label="running mean")
    guard = [(record.step, record.evaluation["loss"]) for record in run.records if "loss" in record.evaluation]
    if guard:
        axes.plot(*zip(*guard, strict=True), color=COLOURS["second"], marker="o", markersize=3.5, label="guard split")
    refused = [record.step for record in run.records if record.refused]
    if refused:
        top = float(losses.max()) if len(losses) else 0.0
        axes.plot(refused, [top] * len(refused), "x", color=COLOURS["bad"], label="refused (not finite)")
    _finish(axes, run, "loss")
    text = f"Training loss, from {losses[0]:.4g} to {losses[-1]:.4g}." if len(losses) else "No finite loss."
    return Chart("loss", "Loss", text, _svg(figure, "loss", "Loss", text))


def metric_chart(run: RunData) -> Chart | None:
    """Draw the guard split's metrics over the run, the main one first, and the test split's final values as dashed lines."""
    seen = {name: 0.0 for record in run.records for name in record.evaluation if name != "loss"}
    if not seen:
        return None
    figure, axes = new_figure(NARROW, 2.9)
    said = []
    colours = ("good", "second", "learn", "bad")
    for place, name in enumerate(main_first(seen, run.main_metric)):
        colour = COLOURS[colours[place % len(colours)]]
        points = [(record.step, record.evaluation[name]) for record in run.records if name in record.evaluation]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, color=colour, label=name.replace("_", " "))
        final = run.final.get(name)
        if final is not None:
            axes.axhline(final, color=colour, linewidth=1.2, linestyle="--")
        if place == 0:
            said.append(f"Guard {name.replace('_', ' ')} ends at {points[-1][1]:.4g}")
            said += [f"test {name.replace('_', ' ')} (dashed) is {final:.4g}"] if final is not None else []
    _finish(axes, run, "metric")
    text = ", ".join(said) + "."
    return Chart("metric", "Guard and final metrics", text, _svg(figure, "metric", "Guard and final metrics", text))


def throughput_chart(run: RunData) -> Chart | None:
    """Draw samples per second over the steps; None where no record has them."""
    if not any(record.samples_per_second for record in run.records):
        return None
    figure, axes = new_figure(NARROW, 2.9)
    groups = thin(run.records)
    steps = [group[-1].step for group in groups]
    rates = np.array([np.median([record.samples_per_second for record in group]) for group in groups])
    axes.plot(steps, rates, color=COLOURS["good"], linewidth=0.8, alpha=0.4)
    axes.plot(steps, _smooth(rates, max(1, len(rates) // 40)), color=COLOURS["good"], linewidth=2.2)
    axes.set_ylim(bottom=0)
    _finish(axes, run, "samples / s", legend=False)
    text = f"Samples a second: median {np.median([record.samples_per_second for record in run.records]):,.0f}."
    return Chart("throughput", "Throughput", text, _svg(figure, "throughput", "Throughput", text))


def step_parts_chart(run: RunData) -> Chart | None:
    """Draw the parts of a step's time, stacked: the largest parts that the workers timed, and the rest together."""
    totals: dict[str, float] = {}
    for record in run.records:
        for name, seconds in record.step_parts.items():
            totals[name] = totals.get(name, 0.0) + seconds
    if not totals:
        return None
    names = sorted(totals, key=lambda name: -totals[name])
    shown, rest = names[:PARTS_MAX], names[PARTS_MAX:]
    groups = thin(run.records, 120)
    bands = [[np.mean([r.step_parts.get(name, 0.0) for r in group]) * 1e3 for group in groups] for name in shown]
    labels = [name.replace("_", " ") for name in shown]
    if rest:
        bands.append([np.mean([sum(r.step_parts.get(name, 0.0) for name in rest) for r in group]) * 1e3 for group in groups])
        labels.append("other")
    figure, axes = new_figure(NARROW, 2.9)
    palette = ["#3b7dd8", "#e0833f", "#3aa17e", "#b05cc6", "#d1495b", "#8d99ae"]
    axes.stackplot([group[-1].step for group in groups], bands, labels=labels, colors=palette, step="pre", alpha=0.85)
    totals_shown = np.sum(bands, axis=0)
    # One slow first step would flatten everything else.
    ceiling = 1.4 * float(np.percentile(totals_shown, 95))
    axes.set_ylim(0, ceiling)
    _finish(axes, run, "ms a step")
    means = [f"{name.replace('_', ' ')} {1e3 * totals[name] / len(run.records):.3g} ms" for name in shown]
    text = f"On average {', '.join(means)}" + (f", {len(rest)} smaller parts together." if rest else ".")
    if totals_shown.max() > ceiling:
        text += f" Steps above {ceiling:,.0f} ms (the slowest took {totals_shown.max():,.0f} ms) are cut off."
    return Chart("parts", "Where a step's time goes", text, _svg(figure, "parts", "Where a step's time goes", text))


def cache_chart(run: RunData) -> Chart | None:
    """Draw the share of boundary activations that came from the cache, in percent; None where the run requested none."""
    if not any(record.cache_hits or record.cache_misses for record in run.records):
        return None
    figure, axes = new_figure(NARROW, 2.9)
    groups = thin(run.records, 200)
    steps = [group[-1].step for group in groups]
    hits = np.array([sum(record.cache_hits for record in group) for group in groups], float)
    misses = np.array([sum(record.cache_misses for record in group) for group in groups], float)
    asked = hits + misses
    share = np.divide(100 * hits, asked, out=np.full_like(hits, np.nan), where=asked > 0)
    axes.fill_between(steps, share, color=COLOURS["ice"], alpha=0.75, step="pre", linewidth=0)
    axes.step(steps, share, color=COLOURS["second"], linewidth=1.6)
    axes.set_ylim(0, 104)
    _finish(axes, run, "% read from cache", legend=False)
    total, found = int(asked.sum()), int(hits.sum())
    text = f"{found:,} of {total:,} boundary activations came from the cache ({100 * found / total:.0f} %)."
    return Chart("cache", "Cache hits", text, _svg(figure, "cache", "Cache hits", text))


def _svg(figure: object, name: str, title: str, description: str) -> str:
    return inline_svg(figure, f"chart-{name}", title, description)  # type: ignore[arg-type]


def _edges(run: RunData) -> list[float]:
    """Return the step edges for stairs: one more than there are records, half a step beside each."""
    return [record.step - 0.5 for record in run.records] + [run.records[-1].step + 0.5]


def _finish(axes: "Axes", run: RunData, label: str, *, legend: bool = True, marks: bool = True) -> None:
    """Add the common parts of all pictures: the step axis, and thin lines where the run failed or was rolled back.

    Args:
        axes: of the picture.
        run: the run.
        label: of the vertical axis.
        legend: whether the picture has a legend, where its lines have names.
        marks: whether the thin lines are drawn.
    """
    axes.set_xlim(run.records[0].step - 0.5, run.records[-1].step + 0.5)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    if marks:
        for event in run.events:
            if event.kind in MARK_KINDS:
                axes.axvline(event.step, color=COLOURS["bad"], linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    if legend and axes.get_legend_handles_labels()[0]:
        columns = 3 if axes.figure.get_figwidth() < WIDE else 6
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.1, handlelength=1.6, columnspacing=1.4
        )


def _whole_numbers(axes: "Axes", largest: float, bottom: float = 0.0, top: float | None = None) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_ylim(bottom, top if top is not None else largest * 1.08 + 0.2)


def _smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of each value and up to window - 1 values before it; the first values have fewer."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _runs(values: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the values without immediate repetitions, and without the middle of a very long list."""
    changes = [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return changes if len(changes) <= 12 else [*changes[:6], *changes[-6:]]
