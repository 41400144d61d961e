"""The ledger as a picture: the use of each worker-second, and estimates of the worker-seconds saved."""

from frostline_controller.ledger import words
from frostline_controller.ledger.sums import HOUR
from frostline_controller.report.charts import WIDE, Chart
from frostline_controller.report.data import RunData
from frostline_controller.report.svg import COLOURS, STYLE, inline_svg, mpl, new_figure

PALETTE = ("#3b7dd8", "#8d99ae", "#e0833f", "#b05cc6", "#c9a227", "#d1495b", "#3aa17e", "#c3c9d4")
"""The colours of the uses, in their order."""
SAVED = ("#7fb3e8", "#9fd8c4", "#e6c99a")


def ledger_chart(run: RunData) -> Chart | None:
    """Draw two bars of one scale; None where the run has no ledger."""
    ledger = run.ledger
    if ledger is None or not ledger.total:
        return None
    unit, name = (HOUR, "worker-hours") if ledger.total >= HOUR else (1.0, "worker-seconds")
    saved = {by: seconds for by, seconds in ledger.saved.items() if seconds > 0}
    bars = [("used", [(words.use_name(use), seconds) for use, seconds in ledger.used.items()], PALETTE)]
    if saved:
        bars.append(("saved\n(estimates)", [(f"saved {words.SAVINGS.get(by, by)}", one) for by, one in saved.items()], SAVED))
    with mpl.rc_context(STYLE):
        figure, axes = new_figure(WIDE, 1.5 + 0.55 * len(bars))
        for row, (_, parts, palette) in enumerate(reversed(bars)):
            left = 0.0
            for place, (label, seconds) in enumerate(parts):
                if seconds > 0:
                    axes.barh(row, seconds / unit, left=left, height=0.62, color=palette[place % len(palette)], label=label)
                left += seconds / unit
        axes.set_yticks(range(len(bars)), [label for label, _, _ in reversed(bars)])
        axes.set_ylim(-0.5, len(bars) - 0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel(name, color=COLOURS["muted"])
        axes.grid(visible=False)
        handles, labels = axes.get_legend_handles_labels()
        ordered = sorted(zip(labels, handles, strict=True), key=lambda one: one[0].startswith("saved "))
        axes.legend(
            [handle for _, handle in ordered], [label for label, _ in ordered], loc="lower left", bbox_to_anchor=(0, 1.0),
            ncols=4, borderaxespad=0.1, handlelength=1.2, columnspacing=1.4,
        )  # fmt: skip
        text = " ".join(f"{line}." for line in words.lines(ledger)).removeprefix("ledger: ")
        svg = inline_svg(figure, "chart-ledger", "Where worker-time went", text)
    return Chart("ledger", "Where worker-time went", text, svg)
