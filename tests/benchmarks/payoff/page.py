"""docs/comparison/payoff.md and its pictures: a function of the lines alone; work without a line is listed as not run."""

from pathlib import Path

from tests.benchmarks.payoff import words
from tests.benchmarks.payoff.details import ablation, frontier, placements, shares
from tests.benchmarks.payoff.figures import MARGIN, SEEDS, agreeing_digests, apart, difference, ratio, text_median, verdict
from tests.benchmarks.payoff.lines import Lines
from tests.benchmarks.payoff.tables import link, number, table
from tests.benchmarks.payoff.tasks import CAPS, TASKS
from tests.benchmarks.picture import picture

FOLDER = Path(__file__).parents[3] / "docs" / "comparison"
SCALES = ("whole", "small")


def write_page(lines: Lines, folder: Path = FOLDER) -> list[Path]:
    """Write the page and its pictures into `folder`. Returns the files."""
    pictures = {name: drawn for name, drawn in _pictures(lines).items() if drawn is not None}
    for name, drawn in pictures.items():
        (folder / name).write_text(drawn, encoding="utf-8")
    page = folder / "payoff.md"
    page.write_text(page_text(lines, list(pictures)), encoding="utf-8")
    return [page, *(folder / name for name in pictures)]


def page_text(lines: Lines, pictures: list[str]) -> str:
    """Return the whole page."""
    parts = [words.HEAD, words.QUESTION, *_results(lines), words.METHOD]
    parts += [f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})" for name in pictures]
    for scale in SCALES:
        if scale == "whole" or lines.of(scale=scale):
            parts += [
                *_tasks(lines, scale),
                *ablation(lines, scale),
                *frontier(lines, scale),
                *placements(lines, scale),
                *shares(lines, scale),
            ]
    parts += [words.COMMANDS, *_circumstances(lines)]
    return "\n\n".join(parts) + "\n"


def _results(lines: Lines) -> list[str]:
    """Return the list of goals, each with its result so far."""
    rows = []
    for cap in CAPS:
        found = text_median(lines, "whole", cap)
        count = sum(task.text for task in TASKS.values())
        reported = f"{found[0]:.2f}x, over {found[1]} of {count} tasks" if found else "not run"
        rows.append([f"median over the text tasks, {words.CAP_WORDS[cap]}", f">= {words.goal_of(cap):g}x", reported])
    least = [
        (one.median, task.title, cap) for task in TASKS.values() for cap in CAPS if (one := ratio(lines, task.name, "whole", cap))
    ]
    reported = f"{min(least)[0]:.2f}x ({min(least)[1]}, {words.CAP_WORDS[min(least)[2]]})" if least else "not run"
    rows.append(["the least of all tasks", f">= {words.TASK_GOAL:g}x", reported])
    for task in TASKS.values():
        if task.text:
            found_difference = difference(lines, task.name, "whole")
            rows.append([f"accuracy, {task.title}", f"bound above {-100 * MARGIN:.1f} points", verdict(found_difference)])
    return ["## Result", table(["goal", "asked", "so far"], rows)]


def _tasks(lines: Lines, scale: str) -> list[str]:
    """Return a table with one row for each task and cap."""
    rows = []
    for task in TASKS.values():
        for cap in CAPS:
            wall, steps = (ratio(lines, task.name, scale, cap, name=name) for name in ("seconds", "training_seconds"))
            rows.append([
                task.title,
                words.CAP_WORDS[cap],
                f"{wall.median:.2f}x" if wall else "not run",
                f"{min(wall.values):.2f} to {max(wall.values):.2f} ({len(wall.values)})" if wall else "",
                f"{steps.median:.2f}x" if steps else "",
            ])  # fmt: skip
        same, compared = agreeing_digests(lines, task.name, scale)
        if compared:
            rows[-1].append(f"{same} of {compared}")
    accuracy = []
    for task in TASKS.values():
        found = difference(lines, task.name, scale)
        if found is None:
            accuracy.append([task.title, "0", "", "", "", "not run"])
            continue
        by, unit = (100.0, " points") if task.metric else (1.0, "")
        reported = [f"{number(by * value)}{unit}" if value is not None else "" for value in (found.mean, found.lower)]
        judged = verdict(found) if task.metric else f"{len(found.differences)} of {SEEDS} seeds; no margin is fixed for a loss"
        if count := apart(lines, task.name, scale):
            judged += f"; in {count} the arms computed on different machines"
        accuracy.append([task.title, str(len(found.differences)), "accuracy" if task.metric else "loss", *reported, judged])
    head = ["task", "memory", "static / elastic", "pairs, least to most", "steps alone", "digests that agree"]
    rows = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    return [
        words.SCALE_HEADS[scale],
        words.TIME_TEXT,
        table(head, rows),
        *([words.FROM_SCRATCH_TEXT] if scale == "whole" else []),
        words.ACCURACY_TEXT,
        table(["task", "seeds", "of", "mean difference", "lower bound, 95 %", "judged"], accuracy),
    ]


def _pictures(lines: Lines) -> dict[str, str | None]:
    """Draw the time ratios and accuracy differences of each scale that has some."""
    drawn: dict[str, str | None] = {}
    for scale in SCALES:
        suffix = "" if scale == "whole" else f"-{scale}"
        times, accuracy = [], []
        for task in TASKS.values():
            for cap in CAPS:
                found = ratio(lines, task.name, scale, cap)
                if found:
                    spread = {"low": min(found.values), "median": found.median, "high": max(found.values)}
                    at_least = words.goal_of(cap) if task.text else words.TASK_GOAL
                    case = f"{task.title}, {words.CAP_WORDS[cap]}"
                    times.append({"case": case, "unit": "x", "spread": spread, "at_most": None, "at_least": at_least})
            difference_found = difference(lines, task.name, scale) if task.metric else None
            if difference_found and difference_found.lower is not None and difference_found.upper is not None:
                low, mean, high = (
                    100 * value for value in (difference_found.lower, difference_found.mean, difference_found.upper)
                )
                spread = {"low": low, "median": mean, "high": high}
                accuracy.append(
                    {"case": task.title, "unit": "points", "spread": spread, "at_most": None, "at_least": -100 * MARGIN}
                )
        drawn[f"payoff-time{suffix}.svg"] = picture(f"Time of static over time of elastic{words.SCALE_ASIDE[scale]}", times)
        drawn[f"payoff-accuracy{suffix}.svg"] = picture(f"Accuracy, elastic minus static{words.SCALE_ASIDE[scale]}", accuracy)
    return drawn


def _circumstances(lines: Lines) -> list[str]:
    """Return machines, dates and commits of all lines."""
    every = lines.of()
    if not every:
        return []
    machines = sorted({f"{line['machine']}, torch {line['torch']}" for line in every})
    dates, commits = sorted(line["date"] for line in every), sorted({line["commit"] for line in every})
    return [
        f"{len(every)} lines in {link('payoff.jsonl')}, from {dates[0][:10]} to {dates[-1][:10]}, at "
        f"{len(commits)} commit{'s' if len(commits) > 1 else ''} ({', '.join(commits)}), on: {'; '.join(machines)}."
    ]
