"""The page's further tables: the four switches, the static placements, and the use of worker-seconds."""

import statistics

from frostline_controller.ledger import words as ledger_words
from frostline_controller.ledger.uses import Use
from tests.benchmarks.payoff import words
from tests.benchmarks.payoff.figures import difference, ratio
from tests.benchmarks.payoff.lines import Line, Lines
from tests.benchmarks.payoff.static_search import worth_measuring
from tests.benchmarks.payoff.tables import number, table
from tests.benchmarks.payoff.tasks import ABLATION, CAPS, TASKS
from tests.benchmarks.payoff.work import candidates_of


def ablation(lines: Lines, scale: str) -> list[str]:
    """Return the table of the four switches, one by one: each row's arm over static, and the number of pairs."""
    rows = []
    for task in TASKS.values():
        for cap in CAPS:
            found = [ratio(lines, task.name, scale, cap, arm) for arm in ABLATION]
            if any(one is not None for one in found[:-1]):
                reported = [f"{one.median:.2f}x ({len(one.values)})" if one else "not run" for one in found]
                rows.append([task.title, words.CAP_WORDS[cap], *reported])
    if not rows:
        return [words.ABLATION_HEAD, "Not run yet."]
    head = ["task", "memory", "freeze only", "+ the pipeline shrinks", "+ replicas", "+ cache"]
    return [words.ABLATION_HEAD, words.ABLATION_TEXT, table(head, rows)]


def frontier(lines: Lines, scale: str) -> list[str]:
    """Return the table of time against accuracy: by what a task freezes, and when. Settings of which nothing is known are left
    out."""
    rows = []
    for task in TASKS.values():
        for arm in ("elastic", *task.frontier):
            times = [ratio(lines, task.name, scale, cap, arm) for cap in CAPS]
            lost = difference(lines, task.name, scale, arm=arm)
            if any(times) or lost is not None:
                by, unit = (100.0, " points") if task.metric else (1.0, " of the loss")
                rows.append([
                    task.title, words.setting(task, arm),
                    *(f"{one.median:.2f}x ({len(one.values)})" if one else "not run" for one in times),
                    f"{number(by * lost.mean)}{unit} ({len(lost.differences)})" if lost else "not run",
                    number(by * lost.lower) if lost and lost.lower is not None else "",
                ])  # fmt: skip
    if not rows:
        return [words.FRONTIER_HEAD, "Not run yet."]
    head = ["task", "frozen", *words.CAP_WORDS.values(), "elastic minus static (seeds)", "lower bound, 95 %"]
    return [words.FRONTIER_HEAD, words.FRONTIER_TEXT, table(head, rows)]


def placements(lines: Lines, scale: str) -> list[str]:
    """Return the table of the measured static placements, with the error of the planner's prediction of each."""
    parts = []
    for prepared in lines.of(kind="prepared", scale=scale):
        every = candidates_of(prepared)
        measured = {
            line["arm"]: line for line in lines.of(kind="candidate", scale=scale, task=prepared["task"], cap=prepared["cap"])
        }
        taken = sorted((line for line in measured.values() if line["seconds"]), key=lambda line: line["seconds"])
        chosen = f"{prepared['micro_batch']} samples a micro-batch and {prepared['leaves']} leaves"
        cap = f"the cap is {prepared['cap_bytes'] / 1e6:,.1f} MB; " if prepared["cap_bytes"] else ""
        refused = sum(line["seconds"] is None for line in measured.values())
        parts.append(
            f"- {TASKS[prepared['task']].title}, {words.CAP_WORDS[prepared['cap']]}: {cap}`auto` became {chosen}; "
            f"{len(every)} static placements fit, {len(worth_measuring(every))} were worth measuring, {len(taken)} are measured"
            f"{f', {refused} were refused by their run' if refused else ''}{_quickest(taken)}."
        )
    return [words.PLACEMENTS_HEAD, words.PLACEMENTS_TEXT, "\n".join(parts)] if parts else []


def _quickest(taken: list[Line]) -> str:
    if not taken:
        return ""
    reported = ", ".join(
        f"{line['arm']} {line['seconds']:.3g} s (predicted {line['predicted_seconds']:.3g})" for line in taken[:3]
    )
    return f"; the quickest, a step: {reported}"


def shares(lines: Lines, scale: str) -> list[str]:
    """Return the table of the uses of the timed runs' worker-seconds, static beside elastic."""
    rows = []
    for task in TASKS.values():
        for cap in CAPS:
            for arm in ("static", "elastic"):
                timed = lines.of(kind="time", task=task.name, scale=scale, cap=cap, arm=arm)
                if timed:
                    rows.append(
                        [task.title, words.CAP_WORDS[cap], arm, _shapes(timed), *_shares(timed), _hits(timed), _seconds(timed)]
                    )
    if not rows:
        return []
    uses = [ledger_words.use_name(use) for use in Use]
    head = ["task", "memory", "arm", "shapes, pp x dp", *uses, "samples from the cache", "seconds, median"]
    return [words.SHARES_HEAD, table(head, rows), _over_cap(lines.of(kind="time", scale=scale, cap="capped"))]


def _over_cap(timed: list[Line]) -> str:
    """Compare the measured memory of tensors with the cap, in words."""
    over = [f"- {TASKS[line['task']].title}, {line['arm']}: {line['over_cap'][0]}" for line in timed if line.get("over_cap")]
    reported = f"Of {len(timed)} timed runs with the cap {len(over)} held more than it"
    return f"{reported}:\n\n" + "\n".join(over) if over else f"{reported}."


def _shares(timed: list[Line]) -> list[str]:
    return [f"{100 * statistics.fmean(line['shares'].get(use, 0.0) for line in timed):.0f} %" for use in Use]


def _shapes(timed: list[Line]) -> str:
    walks = dict.fromkeys(", ".join(f"{shape['pp']}x{shape['dp']}" for shape in line["shapes"]) for line in timed)
    return " or ".join(walks)


def _hits(timed: list[Line]) -> str:
    return f"{statistics.median(line['cache_hits'] for line in timed):,.0f}"


def _seconds(timed: list[Line]) -> str:
    return f"{statistics.median(line['seconds'] for line in timed):.1f}"
