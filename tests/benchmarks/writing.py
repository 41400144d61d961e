"""docs/benchmarks.md and its pictures: a function of docs/benchmarks.json alone, so that any drift can be detected."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.picture import picture

JSON_NAME, PAGE_NAME, PICTURES = "benchmarks.json", "benchmarks.md", "benchmarks"
FORMAT_VERSION = 1
PER_CASE = ("x", "%")
"""Units of measure whose rows are drawn; seconds and megabytes of different things share no axis."""


def write_pages(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the page and the pictures below `folder`. Returns the files. Raises ValueError for another format version."""
    if document.get("version") != FORMAT_VERSION:
        raise ValueError(f"{JSON_NAME} has version {document.get('version')}; this program writes pages from {FORMAT_VERSION}")
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    written = []
    for name, entry in document["benchmarks"].items():
        drawn = picture(entry["report"]["title"], picture_rows(entry["report"]["rows"]))
        if drawn is not None:
            written.append(folder / PICTURES / f"{name}.svg")
            written[-1].write_text(drawn, encoding="utf-8")
    page = folder / PAGE_NAME
    page.write_text(page_text(document), encoding="utf-8")
    return [page, *written]


def picture_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the first unit of measure that can be drawn on one axis."""
    unit = next((row["unit"] for row in rows if row["unit"] in PER_CASE), None)
    return [row for row in rows if row["unit"] == unit] if unit else []


def page_text(document: Mapping[str, Any]) -> str:
    """Return the whole page."""
    entries = document["benchmarks"]
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench` from [benchmarks.json](benchmarks.json); do not edit. Ratios come from one interleaved run: "
        "both sides take turns in the same minutes on the same machine, every turn gives one ratio, and the smallest, the median "
        "and the largest are shown. A goal is judged by the median.",
        "",
        *_overview(entries),
        "",
    ]
    for name, entry in entries.items():
        lines += _section(name, entry)
    return "\n".join(lines).rstrip() + "\n"


def verdict(row: Mapping[str, Any]) -> str:
    """Return "met", "missed", or "" if there is no goal."""
    median = row["spread"]["median"]
    if row["at_most"] is not None:
        return "met" if median <= row["at_most"] else "missed"
    if row["at_least"] is not None:
        return "met" if median >= row["at_least"] else "missed"
    return ""


def goal(row: Mapping[str, Any]) -> str:
    if row["at_most"] is not None:
        return f"≤ {number(row['at_most'])} {row['unit']}"
    return f"≥ {number(row['at_least'])} {row['unit']}" if row["at_least"] is not None else ""


def number(value: float) -> str:
    """Format three significant digits, without an exponent in the ranges that occur; whole numbers from a thousand on."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def _overview(entries: Mapping[str, Any]) -> list[str]:
    rows = [(name, entry, row) for name, entry in entries.items() for row in entry["report"]["rows"] if verdict(row)]
    met = sum(verdict(row) == "met" for _, _, row in rows)
    lines = [f"{met} of {len(rows)} goals are met.", "", "| Benchmark | Case | Median | Goal | |", "|---|---|---:|---:|---|"]
    for name, entry, row in rows:
        median = f"{number(row['spread']['median'])} {row['unit']}"
        link = f"[{entry['report']['title']}](#{name.replace('_', '-')})"
        lines.append(f"| {link} | {row['case']}, {row['figure']} | {median} | {goal(row)} | {verdict(row)} |")
    return lines


def _section(name: str, entry: Mapping[str, Any]) -> list[str]:
    report, taken = entry["report"], entry["taken"]
    lines = [f'<a id="{name.replace("_", "-")}"></a>', "", f"## {report['title']}", "", report["text"], ""]
    if entry["quick"]:
        lines += ["**A smoke test (`--quick`): these figures mean nothing.**", ""]
    if picture_rows(report["rows"]):
        lines += [f"![{report['title']}: smallest, median and largest]({PICTURES}/{name}.svg)", ""]
    lines += ["| Case | Figure | Median | Smallest to largest | Goal | Sides |", "|---|---|---:|---:|---|---|"]
    lines += [_table_row(row) for row in report["rows"]]
    notes = [f"- {row['case']}: {row['note']}." for row in report["rows"] if row["note"]]
    versions = ", ".join(f"{package} {text}" for package, text in taken["versions"].items())
    lines += ["", *notes, *([""] if notes else [])]
    where = f"{taken['device']}, load before it {taken['load']}; Python {taken['python']}, {versions}"
    lines += [f"`{entry['command']}`, {entry['date']}, {entry['seconds']:.0f} s; {where}.", ""]
    return lines


def _table_row(row: Mapping[str, Any]) -> str:
    spread, unit = row["spread"], row["unit"]
    median = f"{number(spread['median'])} {unit}"
    between = f"{number(spread['low'])} to {number(spread['high'])} ({spread['count']})" if spread["count"] > 1 else "one reading"
    sides = ", ".join(f"{label} {number(value)}" for label, value in row["sides"].items())
    judged = f"{goal(row)}: {verdict(row)}" if verdict(row) else ""
    return f"| {row['case']} | {row['figure']} | {median} | {between} | {judged} | {sides} |"
