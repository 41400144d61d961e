"""Writes docs/comparison/terapipe.md and its picture."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from frostline_controller.simulation.pictures import standalone
from tests.published.rows import Row
from tests.published.terapipe.picture import slices_chart
from tests.published.terapipe.rows import PROGRAMS, Cut, ablation_rows, best_cut, length_rows, our_runs, table_rows
from tests.published.terapipe.setting import Setting, figures, settings

PAGE = "terapipe.md"
PICTURE = "terapipe-slices.svg"

HEAD = """# The published tables of TeraPipe, predicted

Written by `python -m tests.published.terapipe` from [its figures and our constants](../../tests/published/terapipe/figures.yaml);
do not edit. A test writes it again and compares. Nothing here was trained. The seconds of a slice come from four constants
([below](#the-constants)); the slices from [our dynamic programme](../../controller/frostline_controller/planner/token_slices.py),
the one that plans are made with; our own rows from simulating our schedules with those seconds.

What it says. Of the {rows} published figures that constants were fitted to, {met} are met within 10 %, with one set of constants
for 44B and 175B and one for 13B. Of the {others} others, to which nothing was fitted, {others_met} are. Over the same slices
our 1F1B takes what TeraPipe's order takes and holds no more; the zero-bubble order H1 takes {gain} of TeraPipe's
predicted time and holds {held} of its activations.
"""

ABOUT_SETTINGS = """Why rows differ:

- **(1) to (3), 1B.** The constants are those of 13B, 2.5 times as wide. In (2) and (3) eight devices share matrices of 2,048
  columns, 256 each, and run further below their rate than the constants say. That slices gain next to nothing there comes out.
- **(6).** A device computes as many FLOPs a sequence as one of (9), whose width is doubled and shared by four, and tensor
  parallelism moves nothing. Yet a step without slices takes 1.33 times as long. No constants for FLOPs, bytes and calls give
  both. The sum over the four replicas, 3.5 s by the machine's network, is half of what would be missing without it.
- **(7).** The constants were fitted to one and two blocks a stage without replicas; four blocks and two replicas take longer.
- **(10), sliced.** One set for (8), (9) and (10) leaves one of them above 10 %: what brings this one down takes (9) beyond.
- **Best slices against equal ones.** With smooth constants the dynamic programme gains up to 2 % over the best equal slices; the
  published one gained 4 % (9) and 10 % (8). Its gain lies in steps of the measured times (a kernel's tiles), which no smooth
  formula has: plans of ours take cells as they were measured."""

ABOUT_OURS = """Seconds a step, and gigabytes of activations on the fullest device, over the slices of the dynamic programme.
`gpipe` over slices is TeraPipe's order, `1f1b` Seq1F1B's. Activations: (10 + 24 / devices of a stage) bytes a token, block and
unit of width (arXiv 2205.05198, section 4, without attention scores, as fused kernels have it). Splitting a backward is taken
to cost nothing: half of it is the gradient of inputs, half that of weights. Interleaved where a stage has blocks for two.

1F1B holds at most as many slices as stages follow and a sequence has, so it saves where a step has many more slices than that,
as in (1), (4) and (5), and nothing where it has fewer, as in (6), (9) and (10). A zero-bubble order fills what is left of the
bubble with gradients of weights, for which nobody waits."""

ABOUT_CONSTANTS = """A slice of l tokens behind j others takes, forward and backward, for each block of width h on t devices

    call + (72 h^2 (l + tokens) + 12 h l (j + l / 2)) / (t * FLOP/s) + 8 h l / (bytes/s)        (the last only where t > 1)

and a step of M micro-batches on K stages `M * sum + (K - 1) * longest`, as TeraPipe has it. The sum over replicas is added:
gradients in half precision in a ring, the {devices} devices of a machine over its {gigabits:.0f} Gbit/s."""


def write_page(folder: Path) -> list[Path]:
    """Write the page and its picture to `folder`; returns their paths, the page first."""
    written = [folder / PAGE, folder / PICTURE]
    written[0].write_text(text(), encoding="utf-8")
    written[1].write_text(standalone(slices_chart()), encoding="utf-8")
    return written


def fitted_rows() -> list[Row]:
    """Return the rows to which constants were fitted: settings 8 to 10 with the ablations, and the lengths."""
    both = [row for pair in [*table_rows()[7:], *length_rows()] for row in pair]
    return both + [row for number in figures()["ablations"] for row in ablation_rows(number)[1:]]


def other_rows() -> list[Row]:
    """Return the rows of settings to which no constants were fitted; setting 5 is the first of the lengths."""
    return [row for number, pair in zip(settings(), table_rows(), strict=True) if number in (1, 2, 3, 4, 6, 7) for row in pair]


def text() -> str:
    """Return the page's text."""
    fitted, others, (gains, held) = fitted_rows(), other_rows(), _gains()
    figures_met = {"rows": len(fitted), "met": _met(fitted), "others": len(others), "others_met": _met(others)}
    parts = [
        HEAD.format(**figures_met, gain=_range(gains), held=_range(held)),
        "## The ten settings\n\nSeconds a step; goal 10 %.\n",
        _pairs(table_rows(), list(settings().values())),
        f"\n{ABOUT_SETTINGS}\n",
        "## By the number of slices\n\nSlices of equal length; goal 10 %.\n",
        *(f"{settings()[number].name}:\n\n{_table(ablation_rows(number))}\n" for number in figures()["ablations"]),
        f"![Seconds a step by the number of slices]({PICTURE})\n",
        "## By the length of a sequence\n\n13B on 40 stages of 8 devices; goal 10 %.\n",
        _pairs(length_rows()),
        "\n## Our orders over the same slices\n",
        _ours(),
        f"\n{ABOUT_OURS}\n",
        "## The constants\n",
        _constants(),
        "\n" + ABOUT_CONSTANTS.format(devices=_machine("devices"), gigabits=_machine("network_bytes_per_second") * 8e-9),
    ]
    return "\n".join(parts) + "\n"


def _machine(name: str) -> float:
    """Return a figure of the published machines."""
    return figures()["machine"][name]  # type: ignore[no-any-return]


def _met(rows: Sequence[Row]) -> int:
    return sum(row.met for row in rows)


def _pairs(rows: Sequence[tuple[Row, Row]], cuts: Sequence[Setting] = ()) -> str:
    """Return a line for each setting: without slices, and with the best. cuts: settings for which the best slices are listed."""
    reported = " slices of ours |" if cuts else ""
    lines = [f"| | whole | predicted | | sliced | predicted | |{reported}", "|---|" + "---:|" * 6 + ("---|" if cuts else "")]
    for place, (whole, sliced) in enumerate(rows):
        cells = " | ".join(f"{row.published:.3f} | {row.simulated:.3f} | {_difference(row)}" for row in (whole, sliced))
        cut = f" {_cut(best_cut(cuts[place]))} |" if cuts else ""
        lines.append(f"| {whole.name} | {cells} |{cut}")
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> str:
    lines = ["| | published | predicted | |", "|---|---:|---:|---:|"]
    return "\n".join(
        [*lines, *(f"| {row.name} | {row.published:.3f} | {row.simulated:.3f} | {_difference(row)} |" for row in rows)]
    )


def _difference(row: Row) -> str:
    """Format the difference, in bold if the goal is missed."""
    words = f"{row.difference:+.0%}"
    return words if row.met else f"**{words}**"


def _cut(cut: Cut) -> str:
    runs = [(length, len(list(group))) for length, group in groupby(cut.lengths)]
    slices = ", ".join(f"{length} x {count}" if count > 1 else f"{length}" for length, count in runs)
    return f"{slices} tokens" + (f", {cut.sequences} sequences at once" if cut.sequences > 1 else "")


def _ours() -> str:
    lines = [f"| | {' | '.join(PROGRAMS.values())} |", "|---|" + "---:|" * len(PROGRAMS)]
    for setting in settings().values():
        runs = {run.program: run for run in our_runs(setting, best_cut(setting))}
        reported = [
            f"{runs[name].seconds:.3f} s, {runs[name].held * setting.sequence_bytes / 1e9:.2f} GB" if name in runs else ""
            for name in PROGRAMS
        ]
        lines.append(f"| {setting.name} | {' | '.join(reported)} |")
    return "\n".join(lines)


def _gains() -> tuple[list[float], list[float]]:
    """Return H1's seconds and held activations over those of TeraPipe's order, by setting."""
    seconds, held = [], []
    for setting in settings().values():
        runs = {run.program: run for run in our_runs(setting, best_cut(setting))}
        seconds.append(runs["zb_h1"].seconds / runs["gpipe"].seconds)
        held.append(runs["zb_h1"].held / runs["gpipe"].held)
    return seconds, held


def _constants() -> str:
    lines = [
        "| | a block's call | FLOP/s a device | bytes/s of tensor parallelism | tokens' worth a call |",
        "|---|" + "---:|" * 4,
    ]
    names = {"large": "44B, 175B", "small": "1B, 13B"}
    for name, one in figures()["constants"].items():
        lines.append(
            f"| {names[name]} | {one['call_seconds'] * 1e3:.2f} ms | {one['flops_per_second'] / 1e12:.1f} T "
            f"| {one['traffic_bytes_per_second'] / 1e9:.0f} G | {one['call_tokens']} |"
        )
    return "\n".join(lines)


def _range(shares: Sequence[float]) -> str:
    return f"{min(shares):.0%} to {max(shares):.0%}"
