"""The map of the quickest layout of a block, over tokens and width, for each number of ranks."""

from matplotlib.ticker import FixedLocator, NullLocator

from frostline_controller.report.charts import WIDE, Chart
from frostline_controller.report.svg import COLOURS, STYLE, inline_svg, mpl, new_figure
from tests.published.tensor.rows import MAP_RANKS, MAP_TOKENS, MAP_WIDTHS, map_places

NAME = "tensor-map"
OF_LAYOUT = {"1-D": COLOURS["learn"], "2-D": COLOURS["second"], "3-D": COLOURS["good"], "plane": COLOURS["ice"]}
TICKS = (4096, 32768, 262144, 2097152)


def map_chart() -> Chart:
    """Return the chart: a panel for each number of ranks: a square for each place, a dot if ours is quicker than all layouts."""
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure, first = new_figure(WIDE, 3.9)
        first.remove()
        said = []
        for axes, ranks in zip(figure.subplots(1, len(MAP_RANKS), sharey=True), MAP_RANKS, strict=True):
            places = map_places(ranks)
            for layout, colour in OF_LAYOUT.items():
                own = [place for place in places if place.best == layout]
                axes.plot([one.tokens for one in own], [one.hidden for one in own], "s", ms=14, color=colour, label=layout)
            won = [place for place in places if place.ours_wins]
            axes.plot(
                [one.tokens for one in won],
                [one.hidden for one in won],
                "o",
                ms=3.5,
                color=COLOURS["ink"],
                label="ours is quicker",
            )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_xlim(MAP_TOKENS[0] / 1.5, MAP_TOKENS[-1] * 1.5)
            axes.set_ylim(MAP_WIDTHS[0] / 1.25, MAP_WIDTHS[-1] * 1.25)
            axes.xaxis.set_major_locator(FixedLocator(TICKS))
            axes.set_xticklabels([f"{tick // 1024} K" for tick in TICKS])
            axes.yaxis.set_major_locator(FixedLocator(MAP_WIDTHS[::2]))
            axes.set_yticklabels([f"{width:,}" for width in MAP_WIDTHS[::2]])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_title(f"{ranks} ranks")
            axes.set_xlabel("tokens of a step")
            counts = ", ".join(f"{name} {sum(place.best == name for place in places)}" for name in OF_LAYOUT)
            said.append(f"{ranks} ranks: {counts} of {len(places)} places, ours quicker in {len(won)}")
        figure.axes[0].set_ylabel("hidden width")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=5)
        for handle in legend.legend_handles[:-1]:
            handle.set_markersize(8)
        title, text = "The quickest layout of a block, by tokens and width", "; ".join(said)
        return Chart(NAME, title, text, inline_svg(figure, NAME, title, text))
