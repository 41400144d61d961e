"""The texts of a sweep: lines while it runs, and the table at its end."""

from typing import Any

from frostline_contract.run_status import RunStatus
from frostline_controller.report.tables import Table, duration
from frostline_controller.sweep.directory import SweepState, SweptRun
from frostline_controller.sweep.grid import short_names

LOSS = "loss"


def value_in_words(value: Any) -> str:
    """Return one varied value as text: numbers in their shortest form."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def values_in_words(run: SweptRun) -> str:
    """Return the run's own values: `learning_rate 3e-05, seed 1`."""
    shown = short_names(run.values)
    return ", ".join(f"{shown[field]} {value_in_words(value)}" for field, value in run.values.items())


def final_words(run: SweptRun) -> str:
    """Return the end of a run in one line."""
    if run.state != RunStatus.COMPLETED:
        said = f"{run.state}: {' '.join(run.message.split())}" if run.message else run.state
        return said if run.over else f"stopped; it goes on with the sweep ({run.state})"
    figures = run.figures
    final = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures["final"].items())
    asked = figures["cache_hits"] + figures["cache_misses"]
    hits = f"; cache hits {100 * figures['cache_hits'] / asked:.0f} %" if asked else ""
    return f"{run.state} in {duration(figures['wall_seconds'])}; {final}{hits}"


def table_of(state: SweepState) -> Table:
    """Return one row for each run: its values and its figures, which are empty where it has not completed."""
    shown = short_names(axis.field for axis in state.axes)
    metrics = list(dict.fromkeys(name for name in (state.metric, LOSS) if name))
    head = ("run", *shown.values(), "state", *(name.replace("_", " ") for name in metrics),
            "worker seconds", "wall clock", "frozen units", "cache hits", "digest")  # fmt: skip
    rows: list[list[Any]] = []
    for run in state.runs:
        row = [run.number, *(value_in_words(run.values[axis.field]) for axis in state.axes), run.state]
        rows.append([*row, *_figures(run, metrics)])
    return Table(head, rows)


def table_text(table: Table) -> str:
    """Return a table for a terminal, with columns as wide as their widest cell."""
    cells = [list(table.head), *([str(value) for value in row] for row in table.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _figures(run: SweptRun, metrics: list[str]) -> list[str]:
    figures = run.figures
    if not figures:
        return [""] * (len(metrics) + 5)
    asked = figures["cache_hits"] + figures["cache_misses"]
    return [
        *(f"{figures['final'][name]:.4f}" if name in figures["final"] else "" for name in metrics),
        f"{figures['worker_seconds']:.1f}",
        duration(figures["wall_seconds"]),
        f"{figures['freeze_point']} of {figures['num_units']}",
        f"{figures['cache_hits']:,} of {asked:,}" if asked else "none",
        figures["digest"][:12],
    ]
