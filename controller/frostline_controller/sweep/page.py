"""Builds sweep.html: one file with the table and the pictures of a sweep, readable without a network."""

from pathlib import Path

from frostline_contract.durable_files import replace_durably
from frostline_contract.run_status import RunStatus
from frostline_controller.report.build import rendered
from frostline_controller.report.tables import duration
from frostline_controller.sweep.charts import sweep_charts
from frostline_controller.sweep.directory import SweepDirectory, SweepState
from frostline_controller.sweep.wording import table_of, values_in_words


def write_page(places: SweepDirectory, state: SweepState) -> Path:
    """Write sweep.html from the given state, and return its path. Raises OSError."""
    replace_durably(places.page, page(places, state))
    return places.page


def page(places: SweepDirectory, state: SweepState) -> str:
    """Return the page as text. A run's number is a link to the run's report, where it exists."""
    charts = sweep_charts(state)
    wide = [chart for chart in charts if chart.name in ("cost", "cache")]
    reports = {
        run.number: f"{places.runs.name}/{run.name}/{report.name}"
        for run in state.runs
        if (report := places.run_of(run).report).exists()
    }
    return rendered(
        "sweep.html",
        state=state,
        table=table_of(state),
        reports=reports,
        troubles=[(values_in_words(run), run.message) for run in state.runs if run.message],
        summary=_summary(state),
        look=state.state if state.state in (RunStatus.COMPLETED, RunStatus.FAILED) else "other",
        wide=wide,
        pairs=[chart for chart in charts if chart not in wide],
    )


def _summary(state: SweepState) -> list[tuple[str, str]]:
    done = [run.figures for run in state.runs if run.figures]
    hits = sum(figures["cache_hits"] for figures in done)
    asked = hits + sum(figures["cache_misses"] for figures in done)
    pairs = [
        ("runs", f"{len(done)} of {len(state.runs)} completed"),
        ("wall-clock time", duration(state.wall_seconds)),
        ("worker-seconds of steps", f"{sum(figures['worker_seconds'] for figures in done):,.1f}"),
    ]
    return [*pairs, ("cache hits", f"{100 * hits / asked:.0f} %")] if asked else pairs
