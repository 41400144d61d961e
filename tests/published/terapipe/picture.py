"""Seconds a step by the number of slices: published, predicted, and by our orders."""

from frostline_controller.report.charts import WIDE, Chart
from frostline_controller.report.svg import COLOURS, STYLE, inline_svg, mpl, new_figure
from tests.published.terapipe.rows import ablation_rows, equal, run
from tests.published.terapipe.setting import figures, settings

NUMBER = 9
"""The setting with the longest ablation."""


def slices_chart() -> Chart:
    """Return the chart of setting 9 by the number of slices of equal length."""
    setting, rows = settings()[NUMBER], ablation_rows(NUMBER)
    counts = list(figures()["ablations"][NUMBER])
    with mpl.rc_context(STYLE):
        figure, axes = new_figure(WIDE, 3.2)
        axes.plot(counts, [row.published for row in rows], "o", color=COLOURS["ink"], label="published")
        axes.plot(counts, [row.simulated for row in rows], color=COLOURS["second"], label="predicted")
        ours = [run(setting, equal(setting, count), "zb_h1").seconds for count in counts]
        axes.plot(counts, ours, color=COLOURS["good"], label="zero bubble H1, predicted")
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("slices")
        axes.set_ylabel("seconds a step")
        axes.legend(loc="upper center")
        title = f"Seconds a step by the number of slices: {setting.name}"
        said = ", ".join(f"{row.name}: {row.published:.3g} s published, {row.simulated:.3g} s predicted" for row in rows)
        return Chart("terapipe-slices", title, said, inline_svg(figure, "terapipe-slices", title, said))
