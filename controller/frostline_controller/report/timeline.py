"""The run over wall-clock time: one lane for each kind of event, with the time that was lost to cut lineages apart."""

from frostline_controller.report.charts import WIDE, Chart
from frostline_controller.report.data import Event, RunData
from frostline_controller.report.svg import COLOURS, STYLE, inline_svg, mpl, new_figure

LANES = (
    ("freeze", ("freeze", "unfreeze"), "second"),
    ("reshape", ("reshape",), "learn"),
    ("join, leave", ("join", "leave"), "good"),
    ("failure", ("failure",), "bad"),
    ("guard", ("guard",), "bad"),
    ("cache", ("cache",), "ice"),
    ("checkpoint", ("checkpoint",), "muted"),
    ("command", ("command", "decision_void"), "ink"),
)


def timeline_chart(run: RunData) -> Chart | None:
    """Draw the events by kind over wall-clock time; None where the run has no event of any lane."""
    lanes = [(label, kinds, colour) for label, kinds, colour in LANES if any(event.kind in kinds for event in run.events)]
    if not lanes:
        return None
    seconds_a_unit, unit = time_unit(max(run.wall_seconds(), *(event.time_seconds for event in run.events)))
    with mpl.rc_context(STYLE):
        figure, axes = new_figure(WIDE, max(1.8, 0.75 + 0.32 * len(lanes)))
        for row, (_, kinds, colour) in enumerate(reversed(lanes)):
            shown = [event for event in run.events if event.kind in kinds]
            for event in shown:
                start = event.time_seconds / seconds_a_unit
                axes.plot(
                    [start, start + event.seconds / seconds_a_unit], [row, row], color=COLOURS[colour], linewidth=5, alpha=0.35
                )
            axes.plot(
                [event.time_seconds / seconds_a_unit for event in shown],
                [row] * len(shown),
                "o",
                color=COLOURS[colour],
                markersize=6,
            )
        axes.set_yticks(range(len(lanes)), [label for label, _, _ in reversed(lanes)])
        axes.set_ylim(-0.6, len(lanes) - 0.4)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{unit} since the start")
        text = f"{len(run.events)} events: {_counts(run.events)}."
        svg = inline_svg(figure, "chart-timeline", "Events over time", text)
    return Chart("timeline", "Events over time", text, svg)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds of a unit of time and its name, so that a run of this length has small numbers."""
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 10800 else (3600.0, "hours")


def _counts(events: tuple[Event, ...]) -> str:
    counts: dict[str, int] = {}
    for event in events:
        counts[event.kind] = counts.get(event.kind, 0) + 1
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items())
