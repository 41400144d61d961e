"""Writes docs/comparison/terapipe.md and its picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from frostline_controller.simulation.pictures import standalone
from tests.published.rows import Row
from tests.published.terapipe.picture import slices_chart
from tests.published.terapipe.rows import (
    PROGRAMS,
    Cut,
    Ours,
    ablation_rows,
    best_cut,
    equal,
    length_rows,
    our_runs,
    run,
    sum_factors,
    table_rows,
)
from tests.published.terapipe.setting import Setting, figures, length_settings, settings

PAGE = "terapipe.md"
PICTURE = "terapipe-slices.svg"

HEAD = """# The published tables of TeraPipe, predicted

Written by `python -m tests.published.terapipe` from [its figures and our constants](../../tests/published/terapipe/figures.yaml);
do not edit. A test writes it again and compares. Nothing here was trained. The seconds of a slice come from four constants
([below](#the-constants)); the slices from [our dynamic programme](../../controller/frostline_controller/planner/token_slices.py),
the one that plans are made with; our own rows from simulating our schedules with those seconds.

What it says. Of the {rows} published figures that constants were fitted to, {met} are met within 10 %, with one set of constants
for 44B and 175B and one for 13B. Of the {others} others, to which nothing was fitted, {others_met} are. Over the same slices
our 1F1B takes what TeraPipe's order takes and holds no more. The zero-bubble order H1 holds {held} of its
activations and takes {gain} of its predicted time if dividing a backward costs nothing, {costly} if both parts
take {split:.2f} times a whole one; of the *published* time {published} and {costly_published}. All of ours is
predicted, so beside published seconds it has the error of the prediction, too.
"""

BESIDE = """H1: ours, predicted over the same slices, with its share of the published seconds;
*divided at a cost*: both parts of a divided backward take {split:.2f} times a whole one."""

ABOUT_SETTINGS = """Why rows differ:

- **(1) to (3), 1B.** The constants are those of 13B, 2.5 times as wide. In (2) and (3) eight devices share matrices of 2,048
  columns, 256 each, and run further below their rate than the constants say. That slices gain next to nothing there comes out.
- **(4), whole, and (7).** By the formula (4) takes as long as (5), and (7) as long as (8), but for the sum over two replicas; the
  constants were fitted without replicas. For (4) to be met as (5) is, and (7) as (8), the sum would have to take longer than
  the machine's line says: in (7) {seven_whole:.1f} (whole) and {seven_sliced:.1f} times (sliced), in (4) {four_whole:.1f} and
  {four_sliced:.1f}. So what (7) misses, and about half of what (4) misses, looks like a line that gives two thirds of its rate.
  Gradients in single precision (2.0) would fit (4) whole and none of the others; what else makes it long is not known.
- **(6).** A device computes as many FLOPs a sequence as one of (9), whose width is doubled and shared by four, and tensor
  parallelism moves nothing. Yet a step without slices takes 1.33 times as long. No constants for FLOPs, bytes and calls give
  both. The sum over the four replicas, 3.5 s by the machine's network, is half of what would be missing without it.
- **(10), sliced.** One set for (8), (9) and (10) leaves one of them above 10 %: what brings this one down takes (9) beyond.
- **Best slices against equal ones.** With smooth constants the dynamic programme gains up to 2 % over the best equal slices; the
  published one gained 4 % (9) and 10 % (8). Its gain lies in steps of the measured times (a kernel's tiles), which no smooth
  formula has: plans of ours take cells as they were measured."""

ABOUT_OURS = """All are over the slices of the dynamic programme. `gpipe` over slices is TeraPipe's order, `1f1b` Seq1F1B's; H1
and H2 are `zb_h1` and `zb_h2`, V, V half and V min `zb_v`, `v_half` and `v_min`. Interleaved orders and those in a V are run
where a stage has blocks for two. Half of a backward is the gradient of inputs, half that of weights. That dividing it costs
nothing is what the orders were found with; {split:.2f} is what we measured on a CPU ([ADR 19](../adr/0019-zero-bubble.md)), and
no figure of a GPU is known. Activations: (10 + 24 / devices of a stage) bytes a token, block and unit of width (arXiv
2205.05198, section 4, without attention scores, as fused kernels have it); what a rank keeps between the two parts of a
backward is not in them.

1F1B holds at most as many slices as stages follow and a sequence has, so it saves where a step has many more slices than that,
as in (1), (4) and (5), and nothing where it has fewer, as in (6), (9) and (10). A zero-bubble order fills what is left of the
bubble with gradients of weights, for which nobody waits. V is the fastest, V min the leanest; what dividing costs
arises with every slice, so it takes most of the gain where a step has many. In (10) a step has fewer slices than a rank of any V
has room for, so that the three are one."""

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
    fitted, others, split = fitted_rows(), other_rows(), figures()["split_cost"]
    free, costly = _gains(), _gains(split)
    (four_whole, four_sliced), (seven_whole, seven_sliced) = (sum_factors()[number] for number in (4, 7))
    gains = {
        "gain": _range(free.seconds), "costly": _range(costly.seconds), "split": split, "held": _range(free.held),
        "published": _range(free.published), "costly_published": _range(costly.published),
    }  # fmt: skip
    factors = {
        "four_whole": four_whole, "four_sliced": four_sliced, "seven_whole": seven_whole, "seven_sliced": seven_sliced,
    }  # fmt: skip
    figures_met = {"rows": len(fitted), "met": _met(fitted), "others": len(others), "others_met": _met(others)}
    parts = [
        HEAD.format(**figures_met, **gains),
        "## The ten settings\n\nSeconds a step; goal 10 %.\n",
        _pairs(table_rows(), list(settings().values())),
        f"\n{ABOUT_SETTINGS.format(**factors)}\n",
        f"## By the number of slices\n\nSlices of equal length; goal 10 %. {BESIDE.format(split=split)}\n",
        *(f"{settings()[number].name}:\n\n{_ablation(number)}\n" for number in figures()["ablations"]),
        f"![Seconds a step by the number of slices]({PICTURE})\n",
        f"## By the length of a sequence\n\n13B on 40 stages of 8 devices; goal 10 %. {BESIDE.format(split=split)}\n",
        _pairs(length_rows(), ours=list(length_settings().values())),
        "\n## Our orders over the same slices\n",
        "Seconds a step, and in brackets their share of the published ones. Dividing a backward costs nothing:\n",
        _seconds(),
        f"\nBoth parts of a divided backward take {split:.2f} times a whole one:\n",
        _seconds(split),
        "\nGigabytes of activations on the fullest device:\n",
        _held(),
        "\n" + ABOUT_OURS.format(split=split) + "\n",
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


def _pairs(rows: Sequence[tuple[Row, Row]], cuts: Sequence[Setting] = (), ours: Sequence[Setting] = ()) -> str:
    """Return a line for each setting: without slices, and with the best.

    Args:
        rows: of the settings.
        cuts: settings for which the best slices are listed.
        ours: settings for which H1 over these slices is listed.
    """
    reported = (" slices of ours |" if cuts else "") + (" H1 | divided at a cost |" if ours else "")
    lines = [
        f"| | whole | predicted | | sliced | predicted | |{reported}",
        "|---|" + "---:|" * 6 + ("---|" if cuts else "") + ("---:|" * 2 if ours else ""),
    ]
    for place, (whole, sliced) in enumerate(rows):
        cells = " | ".join(f"{row.published:.3f} | {row.simulated:.3f} | {_difference(row)}" for row in (whole, sliced))
        cut = f" {_cut(best_cut(cuts[place]))} |" if cuts else ""
        own = f" {_h1(ours[place], best_cut(ours[place]), sliced.published)} |" if ours else ""
        lines.append(f"| {whole.name} | {cells} |{cut}{own}")
    return "\n".join(lines)


def _ablation(number: int) -> str:
    """Return the table of a setting by the number of slices."""
    lines = ["| | published | predicted | | H1 | divided at a cost |", "|---|" + "---:|" * 5]
    for row, slices in zip(ablation_rows(number), figures()["ablations"][number], strict=True):
        setting = settings()[number]
        own = _h1(setting, equal(setting, slices), row.published)
        lines.append(f"| {row.name} | {row.published:.3f} | {row.simulated:.3f} | {_difference(row)} | {own} |")
    return "\n".join(lines)


def _h1(setting: Setting, cut: Cut, published: float) -> str:
    """Return two cells: H1's seconds with a split that costs nothing, and with one that costs what was measured."""
    both = (run(setting, cut, "zb_h1", cost).seconds for cost in (1.0, figures()["split_cost"]))
    return " | ".join(_of_published(seconds, published) for seconds in both)


def _of_published(seconds: float, published: float) -> str:
    return f"{seconds:.3f} ({seconds / published:.0%})"


def _difference(row: Row) -> str:
    """Format the difference, in bold if the goal is missed."""
    words = f"{row.difference:+.0%}"
    return words if row.met else f"**{words}**"


def _cut(cut: Cut) -> str:
    runs = [(length, len(list(group))) for length, group in groupby(cut.lengths)]
    slices = ", ".join(f"{length} x {count}" if count > 1 else f"{length}" for length, count in runs)
    return f"{slices} tokens" + (f", {cut.sequences} sequences at once" if cut.sequences > 1 else "")


def _seconds(split_cost: float = 1.0) -> str:
    """Return the table of our orders' seconds. split_cost: both parts of a divided backward over a whole one."""
    return _programs(
        lambda setting, one: _of_published(one.seconds, setting.sliced), split_cost,
        " published |", lambda setting: f" {setting.sliced:.3f} |",
    )  # fmt: skip


def _held() -> str:
    """Return the table of the activations that our orders hold."""
    return _programs(lambda setting, one: f"{one.held * setting.sequence_bytes / 1e9:.2f}")


def _programs(
    cell: Callable[[Setting, Ours], str],
    split_cost: float = 1.0,
    head: str = "",
    first: Callable[[Setting], str] = lambda _: "",
) -> str:
    """Return a table with a line for each setting and a column for each of our orders.

    Args:
        cell: what a run says.
        split_cost: both parts of a divided backward over a whole one.
        head, first: of a column before these.
    """
    lines = [f"| |{head} {' | '.join(PROGRAMS.values())} |", "|---|" + "---:|" * (len(PROGRAMS) + bool(head))]
    for setting in settings().values():
        runs = {one.program: one for one in our_runs(setting, best_cut(setting), split_cost)}
        cells = [cell(setting, runs[name]) if name in runs else "" for name in PROGRAMS]
        lines.append(f"| {setting.name} |{first(setting)} {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Gains:
    """H1 by setting. seconds, held: over those of TeraPipe's order as predicted. published: seconds over the published ones."""

    seconds: list[float]
    held: list[float]
    published: list[float]


def _gains(split_cost: float = 1.0) -> Gains:
    gains = Gains([], [], [])
    for setting in settings().values():
        runs = {one.program: one for one in our_runs(setting, best_cut(setting), split_cost)}
        gains.seconds.append(runs["zb_h1"].seconds / runs["gpipe"].seconds)
        gains.held.append(runs["zb_h1"].held / runs["gpipe"].held)
        gains.published.append(runs["zb_h1"].seconds / setting.sliced)
    return gains


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
