"""Draws the pictures of docs/concepts.md: python tools/concept_pictures.py FOLDER.

Each picture is a light card with dark text, whatever the page around it, so that it is readable in a light and in a dark theme.
The text uses the reader's own sans-serif font. The same program draws the same bytes: `make verify` compares them.
"""

import sys
from html import escape
from pathlib import Path

WIDTH = 860
INK, MUTED, LINE = "#1b2733", "#5a6b7b", "#9aa9b7"
ICE, WARM, GOOD, BAD, PALE = "#cfe6f5", "#fde0bd", "#cdebd3", "#f6c9c5", "#eceff3"
WORKERS = ("#cfe6f5", "#fde0bd", "#cdebd3", "#e4d8f3")


class Canvas:
    """Shapes and text in user units; (0, 0) is the upper left corner. title, description: for screen readers."""

    def __init__(self, height: int, title: str, description: str) -> None:
        self._height, self._title, self._description = height, title, description
        self._shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, fill: str, text: str = "", small: str = "") -> None:
        """Draw a rounded box with a line of text and a smaller one below it, centred."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{LINE}"/>'
        )
        middle = y + height / 2
        if text:
            self.text(x + width / 2, middle + (-3 if small else 5), text, anchor="middle")
        if small:
            self.text(x + width / 2, middle + 13, small, size=11, fill=MUTED, anchor="middle")

    def text(
        self, x: float, y: float, text: str, size: int = 13, fill: str = INK, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def line(self, *points: tuple[float, float], arrow: bool = False, dashed: bool = False, color: str = MUTED) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        extra = (' marker-end="url(#tip)"' if arrow else "") + (' stroke-dasharray="4 4"' if dashed else "")
        self._shapes.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.3"{extra}/>')

    def brace(self, left: float, right: float, y: float, text: str) -> None:
        """Draw a bracket from left to right, with its name below."""
        self.line((left, y), (left, y + 6), (right, y + 6), (right, y))
        self.text((left + right) / 2, y + 22, text, size=12, fill=MUTED, anchor="middle")

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" '
            f'width="{WIDTH}" height="{self._height}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">'
        )
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{MUTED}"/></marker></defs>'
        )
        card = f'<rect width="{WIDTH}" height="{self._height}" rx="8" fill="#fbfcfd" stroke="#d5dde4"/>'
        words = f"<title>{escape(self._title)}</title><desc>{escape(self._description)}</desc>"
        return "\n".join([head, words, tip, card, *self._shapes, "</svg>"]) + "\n"


def units_and_stages() -> str:
    """Draw a model of eight units, twice: four stages of one replica, then three frozen units and two replicas of two stages."""
    canvas = Canvas(
        388,
        "Model, units, stages",
        "A model is cut into units: the embedding, one for each block, the head. A stage is a run of "
        "neighbouring units on one worker. "
        "After three units are frozen, two replicas of a two-stage pipeline train the other five.",
    )
    names = ["embed", *(f"block {number}" for number in range(1, 7)), "head"]
    left, width = 130, 85
    canvas.text(20, 52, "model", bold=True)
    for unit, name in enumerate(names):
        canvas.box(left + unit * width, 30, width - 6, 40, PALE, name, f"unit {unit}")

    canvas.text(20, 122, "at the start", bold=True)
    canvas.text(20, 140, "4 stages x 1", size=12, fill=MUTED)
    for number, (low, high) in enumerate(((0, 2), (2, 3), (3, 5), (5, 8))):
        canvas.box(left + low * width, 100, (high - low) * width - 6, 52, WORKERS[number], f"stage {number}", f"worker {number}")
        if number:
            canvas.line((left + low * width - 6, 126), (left + low * width, 126), arrow=True)
    canvas.text(
        left, 176, "activations go right, their gradients come back left; a micro-batch after the other", size=12, fill=MUTED
    )

    canvas.text(20, 232, "freeze point 3", bold=True)
    canvas.text(20, 250, "2 stages x 2", size=12, fill=MUTED)
    for replica, (first, second) in enumerate(((0, 1), (2, 3))):
        y = 202 + replica * 64
        canvas.box(left, y, 3 * width - 6, 52, "#ffffff", "units 0 to 2: frozen", f"worker {first}: forward only, or the cache")
        canvas.box(left + 3 * width, y, 2 * width - 6, 52, WORKERS[first], "stage 0", f"worker {first}, replica {replica}")
        canvas.box(left + 5 * width, y, 3 * width - 6, 52, WORKERS[second], "stage 1", f"worker {second}, replica {replica}")
        canvas.line((left + 3 * width - 6, y + 26), (left + 3 * width, y + 26), arrow=True)
        canvas.line((left + 5 * width - 6, y + 26), (left + 5 * width, y + 26), arrow=True)
    canvas.brace(left, left + 3 * width - 6, 328, "frozen prefix")
    canvas.brace(left + 3 * width, left + 8 * width - 6, 328, "units that learn: gradients, optimizer state")
    canvas.text(
        left + 3 * width - 3, 374, "what crosses the boundary is what the cache stores", size=12, fill=MUTED, anchor="middle"
    )
    return canvas.svg()


def summation_tree() -> str:
    """Draw sixteen micro-batches, eight leaves, and the part of the one tree that each of one, two and three replicas
    computes."""
    canvas = Canvas(
        452,
        "Micro-batches, leaves and the summation tree",
        "A global batch is cut into micro-batches, consecutive ones form a leaf, and leaves are summed "
        "pairwise in one fixed tree. "
        "Replicas compute pieces of the tree; the additions are the same on any number of replicas.",
    )
    left, width = 150, 84
    centre = [left + number * width + (width - 8) / 2 for number in range(8)]
    canvas.text(20, 52, "sum of the step", bold=True)
    levels = [(44, [sum(centre) / 8])]
    levels += [(y, [sum(centre[low : low + size]) / size for low in range(0, 8, size)]) for y, size in ((94, 4), (144, 2))]
    for (y, nodes), (below, children) in zip(levels, [*levels[1:], (198, centre)], strict=True):
        for number, x in enumerate(nodes):
            for child in children[2 * number : 2 * number + 2]:
                canvas.line((x, y + 12), (child, below - 12))
            canvas.box(x - 15, y - 12, 30, 24, "#ffffff", "+")
    canvas.text(20, 203, "leaves", bold=True)
    canvas.text(20, 243, "micro-batches", bold=True)
    for leaf in range(8):
        canvas.box(left + leaf * width, 186, width - 8, 24, PALE, f"leaf {leaf}")
        for half in range(2):
            canvas.box(left + leaf * width + half * 38, 226, 36, 24, "#ffffff", str(2 * leaf + half))
    canvas.text(20, 280, "who computes which leaves: a matter of placement, and of nothing else", size=12, fill=MUTED)
    for row, bounds in enumerate(((0, 8), (0, 4, 8), (0, 3, 6, 8))):
        y, replicas = 296 + row * 38, len(bounds) - 1
        canvas.text(20, y + 19, f"{replicas} replica{'s' if replicas > 1 else ''}")
        for number, (low, high) in enumerate(zip(bounds, bounds[1:], strict=False)):
            canvas.box(left + low * width, y, (high - low) * width - 8, 28, WORKERS[number], f"replica {number}")
    canvas.text(
        20, 432, "With 3 replicas: replica 0 sends (0+1) and 2, replica 1 sends 3 and (4+5). "
        "The same additions in the same order: the same bits.", size=12, fill=MUTED,
    )  # fmt: skip
    return canvas.svg()


def step_and_vote() -> str:
    """Draw one step of four workers: compute, exchange, prepared, vote, commit."""
    canvas = Canvas(
        330,
        "A step and its vote",
        "Every worker computes its micro-batches, the replicas add their gradients, each worker is then "
        "prepared, all enter one small "
        "all-reduce, the vote, and only when it has returned does anybody change a weight.",
    )
    columns = ((130, 200, "schedule", "forward and backward"), (338, 132, "exchange", "sum of gradients"),
               (478, 90, "prepared", ""), (576, 120, "vote", "one all-reduce"),
               (704, 136, "commit", "optimizer step"))  # fmt: skip
    fills = (PALE, WARM, "#ffffff", ICE, GOOD)
    for x, width, name, small in columns:
        canvas.text(x + width / 2, 32, name, anchor="middle", bold=True)
        canvas.text(x + width / 2, 49, small, size=11, fill=MUTED, anchor="middle")
    for worker in range(4):
        y = 64 + worker * 40
        canvas.text(20, y + 20, f"worker {worker}")
        for (x, width, _, _), fill in zip(columns, fills, strict=True):
            if fill != ICE:
                canvas.box(x, y, width, 30, fill)
    canvas.box(576, 64, 120, 150, ICE, "loss, norms,", "who is ready, flags")
    canvas.line((572, 56), (572, 226), dashed=True, color="#c0392b")
    canvas.line((700, 56), (700, 226), dashed=True, color="#2e8b57")
    canvas.text(566, 244, "nothing has changed up to here:", size=12, fill=MUTED, anchor="end")
    canvas.text(566, 260, "a worker that dies costs this step's work only", size=12, fill=MUTED, anchor="end")
    canvas.text(706, 244, "from here on it counts:", size=12, fill=MUTED)
    canvas.text(706, 260, "all commit it", size=12, fill=MUTED)
    canvas.text(
        20, 292, "Between the two lines some may know the vote and some not. "
        "Those who know tell: the others commit the same step late,",
        size=12, fill=MUTED,
    )  # fmt: skip
    canvas.text(20, 309, "from the prepared gradients that they kept. All reach the same bits.", size=12, fill=MUTED)
    return canvas.svg()


def _time_axis(canvas: Canvas, y: float, text: str = "time") -> None:
    canvas.line((130, y), (842, y), arrow=True)
    canvas.text(842, y + 17, text, size=11, fill=MUTED, anchor="end")


def planned_switch() -> str:
    """Draw a freeze decision, the plan made from it, its preparation beside training, and the vote that switches."""
    canvas = Canvas(
        318,
        "A planned switch",
        "The controller decides on an interval's statistics, writes plan n+1, and announces it. Workers "
        "prepare it in the background "
        "while they train on. The first vote in which all are ready switches; the next step runs in the new shape.",
    )
    canvas.text(20, 60, "controller", bold=True)
    for x, width, fill, text, small in (
        (190, 92, PALE, "decision", "with its reason"),
        (288, 92, PALE, "plan n+1", "written first"),
        (480, 116, PALE, "all are ready", "ReadyNotice"),
    ):
        canvas.box(x, 36, width, 42, fill, text, small)
    canvas.text(20, 140, "training", bold=True)
    for number in range(7):
        canvas.box(130 + number * 66, 118, 62, 34, ICE, f"step {number + 40}")
    canvas.box(592, 118, 50, 34, WARM, "switch")
    for number in range(3):
        canvas.box(646 + number * 62, 118, 58, 34, GOOD, f"step {number + 47}")
    canvas.text(20, 206, "background", bold=True)
    canvas.box(384, 184, 140, 34, "#ffffff", "groups of n+1")
    canvas.line((162, 118), (205, 80), arrow=True)
    canvas.text(136, 100, "statistics", size=11, fill=MUTED)
    canvas.line((362, 78), (400, 182), arrow=True)
    canvas.line((505, 184), (527, 80), arrow=True)
    canvas.line((560, 78), (560, 116), arrow=True)
    _time_axis(canvas, 240)
    canvas.text(130, 257, "generation n", size=12, fill=MUTED)
    canvas.text(646, 257, "generation n+1", size=12, fill=MUTED)
    canvas.text(20, 288, "The vote of step 46 is the first in which every member is ready for n+1: it is the last of n. "
                         "In the switch, units whose owner changes", size=12, fill=MUTED)  # fmt: skip
    canvas.text(20, 305, "go from worker to worker; no process is restarted and nothing is read from disk.", size=12, fill=MUTED)
    return canvas.svg()


def recovery() -> str:
    """Draw a death in step 91: the other workers are fenced, report, get a plan, and go on; a replacement joins later."""
    canvas = Canvas(
        392,
        "A recovery",
        "Worker 1 is killed in step 91. The others stop at the broken collective, promise and report what "
        "they hold, the controller "
        "answers with a plan, unit states move from buddies, and training goes on at step 91. A replacement "
        "joins at a later step's end.",
    )
    canvas.text(20, 56, "controller", bold=True)
    canvas.box(352, 34, 60, 34, BAD, "fence")
    canvas.box(474, 34, 78, 34, PALE, "plan n+1")
    canvas.box(706, 34, 78, 34, PALE, "plan n+2")
    for worker in range(4):
        y = 100 + worker * 44
        canvas.text(20, y + 21, f"worker {worker}")
        canvas.box(130, y, 80, 32, ICE, "step 89")
        canvas.box(214, y, 80, 32, ICE, "step 90")
        if worker == 1:
            canvas.box(298, y, 34, 32, BAD, "†")
            canvas.box(400, y, 306, 32, "#ffffff", "a new process starts beside the others")
        else:
            canvas.box(298, y, 52, 32, PALE, "91")
            canvas.box(354, y, 116, 32, WARM, "report", "")
            canvas.box(474, y, 86, 32, WARM, "enter n+1")
            canvas.box(564, y, 70, 32, GOOD, "step 91")
            canvas.box(638, y, 66, 32, GOOD, "...")
        canvas.box(710, y, 130, 32, GOOD, "four workers again")
    canvas.line((330, 144), (366, 70), arrow=True)
    canvas.line((440, 100), (488, 70), arrow=True)
    canvas.line((512, 68), (512, 98), arrow=True)
    canvas.line((684, 144), (722, 70), arrow=True)
    _time_axis(canvas, 288)
    canvas.text(298, 305, "generation n", size=12, fill=MUTED, anchor="end")
    canvas.text(474, 305, "n+1: three workers", size=12, fill=MUTED)
    canvas.text(710, 305, "n+2", size=12, fill=MUTED)
    for row, words in enumerate((
        "report: a promise to enter nothing older, with the state of each unit held. The answer is the "
        "newest step that all of them together",
        "hold. A unit that only worker 1 owned comes from its buddy, a worker of another node that applied "
        "the same updates to a copy.",
        "Step 91 is computed again from its beginning and gives the bits that it would have given. No checkpoint is read.",
    )):  # fmt: skip
        canvas.text(20, 336 + row * 18, words, size=12, fill=MUTED)
    return canvas.svg()


PICTURES = {
    "units-and-stages": units_and_stages,
    "summation-tree": summation_tree,
    "step-and-vote": step_and_vote,
    "planned-switch": planned_switch,
    "recovery": recovery,
}


def main(arguments: list[str]) -> int:
    """Write every picture into the given folder."""
    if len(arguments) != 1:
        print("usage: concept_pictures.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
