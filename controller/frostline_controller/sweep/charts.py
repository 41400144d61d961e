"""The pictures of a sweep: metric and loss over each varied field, and each run's cost and cache hits."""

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from frostline_controller.report.charts import NARROW, WIDE, Chart
from frostline_controller.report.svg import COLOURS, STYLE, inline_svg, mpl, new_figure
from frostline_controller.sweep.directory import SweepState, SweptRun
from frostline_controller.sweep.grid import Axis, short_names
from frostline_controller.sweep.wording import LOSS, value_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOGARITHMIC_FROM = 20.0
"""The ratio of largest to smallest varied number from which the axis is logarithmic."""


def sweep_charts(state: SweepState) -> list[Chart]:
    """Draw metric and loss over each varied field, then cost and cache hits by run; none before a run has completed."""
    done = [run for run in state.runs if run.figures]
    if not done:
        return []
    metrics = list(dict.fromkeys(name for name in (state.metric, LOSS) if name))
    with mpl.rc_context(STYLE):
        charts = [value_chart(axis, name, done, shown) for axis, shown in _named(state) for name in metrics]
        return [*(chart for chart in charts if chart is not None), cost_chart(done), cache_chart(done)]


def value_chart(axis: Axis, metric: str, runs: Sequence[SweptRun], shown: str) -> Chart | None:
    """Draw one final number of each run over one varied field, and its mean for each value. None where no run has the number.

    Args:
        axis: the varied field.
        metric: name of the number.
        runs: the sweep's runs.
        shown: the field's name in the picture.
    """
    found = {}
    for run in runs:
        if metric in run.figures["final"]:
            found.setdefault(value_in_words(run.values[axis.field]), []).append((run, run.figures["final"][metric]))
    if not found:
        return None
    figure, axes = new_figure(NARROW, 2.9)
    places = _places(axes, [numbers[0][0].values[axis.field] for numbers in found.values()])
    for place, numbers in zip(places, found.values(), strict=True):
        axes.plot([place] * len(numbers), [value for _, value in numbers], "o", color=COLOURS["second"], alpha=0.6, markersize=5)
    means = [fmean(value for _, value in numbers) for numbers in found.values()]
    along = sorted(zip(places, means, strict=True))
    axes.plot(*zip(*along, strict=True), color=COLOURS["learn"], linewidth=2.0)
    axes.set_xlabel(shown.replace("_", " "))
    axes.set_ylabel(metric.replace("_", " "))
    said = ", ".join(f"{value}: {mean:.4g}" for value, mean in zip(found, means, strict=True))
    title = f"{metric.replace('_', ' ')} over {shown.replace('_', ' ')}"
    return _chart(figure, f"{axis.field}-{metric}".replace(".", "-"), title, f"A point is a run, the line the mean: {said}.")


def cost_chart(runs: Sequence[SweptRun]) -> Chart:
    """Draw the worker-seconds of each run's steps."""
    figure, axes = new_figure(WIDE, 2.6)
    spent = [run.figures["worker_seconds"] for run in runs]
    axes.bar([str(run.number) for run in runs], spent, color=COLOURS["learn"], width=0.7)
    axes.set_xlabel("run")
    axes.set_ylabel("worker-seconds")
    return _chart(figure, "cost", "Worker-seconds a run", f"Of the steps; {sum(spent):,.1f} in all, {max(spent):,.1f} at most.")


def cache_chart(runs: Sequence[SweptRun]) -> Chart:
    """Draw each run's boundary activations: read from the cache, and computed because they were not in it."""
    figure, axes = new_figure(WIDE, 2.6)
    names, hits = [str(run.number) for run in runs], [run.figures["cache_hits"] for run in runs]
    misses = [run.figures["cache_misses"] for run in runs]
    axes.bar(names, hits, color=COLOURS["ice"], width=0.7, label="read from the cache")
    axes.bar(names, misses, bottom=hits, color=COLOURS["learn"], width=0.7, label="computed")
    axes.set_xlabel("run")
    axes.set_ylabel("boundary activations")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1)
    asked = sum(hits) + sum(misses)
    text = f"{sum(hits):,} of {asked:,} came from the cache that the runs share." if asked else "No run has asked the cache."
    return _chart(figure, "cache", "Cache hits a run", text)


def _named(state: SweepState) -> list[tuple[Axis, str]]:
    shown = short_names(axis.field for axis in state.axes)
    return [(axis, shown[axis.field]) for axis in state.axes]


def _places(axes: "Axes", values: Sequence[Any]) -> list[float]:
    """Return the positions of the values on the x axis: numbers to scale, other values side by side."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers or len(values) < 2:
        axes.set_xticks(range(len(values)), [value_in_words(value) for value in values])
        axes.margins(x=0.25)
        return [float(place) for place in range(len(values))]
    if min(values) > 0 and max(values) / min(values) >= LOGARITHMIC_FROM:
        axes.set_xscale("log")
    axes.set_xticks(values, [value_in_words(value) for value in values])
    axes.minorticks_off()
    return [float(value) for value in values]


def _chart(figure: "Figure", name: str, title: str, text: str) -> Chart:
    return Chart(name, title, text, inline_svg(figure, f"chart-{name}", title, text))
