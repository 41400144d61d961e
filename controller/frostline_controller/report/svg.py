"""matplotlib figures as inline SVG that follows the page's light or dark colours and has texts for screen readers."""

import io
import re
from html import escape
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("svg")
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ink": "#010203",
    "muted": "#020304",
    "grid": "#030405",
    "panel": "#040506",
    "learn": "#050607",
    "ice": "#060708",
    "second": "#070809",
    "good": "#08090a",
    "bad": "#090a0b",
}
"""Stand-ins that matplotlib draws with; each becomes the page's CSS variable of that name."""

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.edgecolor": COLOURS["grid"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.8,
    "xtick.color": COLOURS["grid"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.color": COLOURS["grid"],
    "ytick.labelcolor": COLOURS["muted"],
    "ytick.major.size": 0,
    "text.color": COLOURS["ink"],
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


def new_figure(width_inches: float, height_inches: float) -> tuple["Figure", "Axes"]:
    """Return one figure with one axes in the page's style. It is not registered with pyplot, so it need not be closed."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        FigureCanvasSVG(figure)
        return figure, figure.add_subplot()


def inline_svg(figure: "Figure", name: str, title: str, description: str) -> str:
    """Return the figure as an <svg> element: ids made unique by `name`, colours as CSS variables, with title and description."""
    buffer = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for variable, stand_in in COLOURS.items():
        text = text.replace(stand_in, f"var(--{variable})")
    # The font names come from the machine that drew the figure; the reader's machine has its own fonts.
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    head = re.match(r"<svg[^>]*>", text)
    assert head is not None
    opened = re.sub(r' (width|height)="[^"]*"', "", head.group(0))
    opened = opened[:-1] + f' role="img" aria-labelledby="{name}-title {name}-desc">'
    described = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    return opened + described + text[head.end() :]
