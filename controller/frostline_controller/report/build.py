"""Builds report.html: one file with everything in it, readable years later without a network."""

import json
from html import escape
from pathlib import Path

from frostline_contract.durable_files import replace_durably
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_controller.report import tables
from frostline_controller.report.data import RunData, read_run
from frostline_controller.report.occupancy import occupancy
from frostline_controller.report.script import JAVASCRIPT
from frostline_controller.report.style import CSS

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page's own Content-Security-Policy: the browser itself refuses any access to a network."""


def build_report(run_dir: str | Path) -> Path:
    """Write <run_dir>/report.html from what the directory holds, finished run or not, and return its path.

    Raises ValueError where `run_dir` is no run directory or a line in it is broken; OSError where it cannot be written.
    """
    run = read_run(run_dir)
    target = RunDirectory(run_dir).report
    replace_durably(target, page(run))
    return target


def page(run: RunData) -> str:
    """The whole page as text."""
    from frostline_controller.report.charts import Chart, build_charts
    from frostline_controller.report.timeline import timeline_chart

    charts = {chart.name: chart for chart in build_charts(run)}
    wide = [charts.pop(name) for name in ("shape", "freeze", "gradients") if name in charts]

    def section(chart: Chart) -> str:
        head = f'<h2>{escape(chart.title)}</h2><p class="caption">{escape(chart.caption)}</p>'
        return f'<section id="{chart.name}">{head}{chart.svg}</section>'

    timeline = timeline_chart(run)
    body = [
        _header(run),
        "<main>",
        _slider(run) if run.records else '<section><p class="caption">No step has been committed yet.</p></section>',
        *(section(chart) for chart in wide),
        f'<div class="pair">{"".join(section(chart) for chart in charts.values())}</div>' if charts else "",
        section(timeline) if timeline else "",
        _tables(run),
        "</main>",
        "<footer>Times are wall-clock; every other number is the same on any placement. Written by frostline report.</footer>",
    ]
    title = escape(f"Frostline run {run.name}")
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{CSS}</style></head><body>"
    )
    # Any "<" of an event's reason could end the script element early ("</script>") or keep it from ending ("<!--<script>").
    data = json.dumps(occupancy(run), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    scripts = (
        f'<script type="application/json" id="occupancy-data">{data}</script><script>{JAVASCRIPT}</script>' if run.records else ""
    )
    text = head + "\n".join(part for part in body if part) + scripts + "</body></html>\n"
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair, which a JSON line may hold, is no text


def _header(run: RunData) -> str:
    status = str(run.result.get("status") or "unfinished")
    look = status if status in (RunStatus.COMPLETED, RunStatus.FAILED) else "other"
    model, task = run.job.get("model", {}), run.job.get("task", {})
    data = run.job.get("data", {})
    known = [str(text).replace("_", " ") for text in (model.get("family"), task.get("kind"), data.get("source")) if text]
    numbers = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tables.summary(run))
    message = f"<p><b>{escape(str(run.result['message']))}</b></p>" if run.result.get("message") else ""
    return (
        f'<header><h1>{escape(run.name)}<span class="badge {look}">{escape(status)}</span></h1>'
        f'<p class="caption">{escape(" · ".join(known))}</p>{message}<dl class="numbers">{numbers}</dl></header>'
    )


def _slider(run: RunData) -> str:
    first, last = run.records[0].step, run.records[-1].step
    return (
        '<section id="who"><h2>Which worker held which units</h2>'
        '<p class="caption">Move the slider through the run. Each row is a replica, each box a unit; '
        "colours tell pipeline ranks apart.</p>"
        '<div class="controls"><button id="play" type="button">Play</button>'
        '<button id="previous" type="button">Previous change</button><button id="next" type="button">Next change</button>'
        f'<input id="step-slider" type="range" min="{first}" max="{last}" value="{first}" step="1" '
        'aria-label="Step of the run"></div>'
        '<div class="ticks" id="ticks" aria-hidden="true"></div>'
        '<div class="readout" id="readout" aria-live="off"></div>'
        '<svg id="occupancy" role="img" viewBox="0 0 1040 80" style="margin-top:10px" font-family="system-ui, sans-serif"></svg>'
        '<div class="legend"><span style="--swatch:var(--ice)">frozen: computed forward only, or read from the cache</span>'
        '<span style="--swatch:transparent">learning</span></div><p class="news" id="news"></p>'
        "<noscript>The table of generations below says the same without JavaScript.</noscript></section>"
    )


def _tables(run: RunData) -> str:
    parts = []
    if run.events:
        parts.append(f'<section id="events"><h2>Events</h2>{tables.events_table(run)}</section>')
    if run.plans:
        parts.append(f'<section id="generations"><h2>Generations</h2>{tables.generations_table(run)}</section>')
    if run.decisions:
        parts.append(_folded(f"Decisions ({len(run.decisions)})", tables.decisions_table(run)))
    workers = occupancy(run)["workers"]
    if workers:
        rows = [[escape(worker["label"]), f"<code>{escape(worker['id'])}</code>"] for worker in workers]
        parts.append(_folded(f"Workers ({len(workers)})", tables.table(["label", "worker id"], rows)))
    if run.job:
        parts.append(_folded("Settings", f"<pre>{tables.settings_text(run)}</pre>"))
    if run.result.get("digest"):
        says = "SHA-256 of the final weights and optimizer state, the same on any placement."
        code = f"<code>{escape(str(run.result['digest']))}</code>"
        parts.append(f'<section><h2>Digest</h2><p class="caption">{says}</p>{code}</section>')
    return "\n".join(parts)


def _folded(title: str, content: str) -> str:
    return f"<section><details><summary>{title}</summary>{content}</details></section>"
