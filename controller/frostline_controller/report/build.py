"""Builds report.html: one self-contained file, readable years later without a network."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from frostline_contract.durable_files import replace_durably
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_controller.report import tables
from frostline_controller.report.data import RunData, read_run
from frostline_controller.report.occupancy import occupancy


def build_report(run_dir: str | Path) -> Path:
    """Write <run_dir>/report.html from the files of the directory, of a finished run or not, and return its path.

    Raises ValueError where `run_dir` is no run directory or a line in it is broken; OSError where it cannot be written.
    """
    run = read_run(run_dir)
    target = RunDirectory(run_dir).report
    replace_durably(target, page(run))
    return target


@cache
def _pages() -> Environment:
    """Return the environment of the templates, the style sheet and the script in the folder `page`. Values are escaped."""
    loader = PackageLoader("frostline_controller.report", "page")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _source(name: str) -> str:
    """Return the text of a file of the folder."""
    pages = _pages()
    assert pages.loader is not None
    return pages.loader.get_source(pages, name)[0]


def rendered(name: str, **values: Any) -> str:
    """Return a page of the folder `page` with its values, in the style that all pages share."""
    text = _pages().get_template(name).render(css=_source("report.css"), **values)
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair, which a JSON line may hold, cannot be encoded


def page(run: RunData) -> str:
    """Return the whole page as text. Its Content-Security-Policy makes the browser refuse any access to a network."""
    from frostline_controller.report.charts import build_charts
    from frostline_controller.report.ledger_chart import ledger_chart
    from frostline_controller.report.step_pictures import step_charts
    from frostline_controller.report.timeline import timeline_chart

    charts = {chart.name: chart for chart in build_charts(run)}
    wide = [charts.pop(name) for name in ("shape", "freeze", "gradients") if name in charts]
    status = str(run.result.get("status") or "unfinished")
    named = (run.job.get("model", {}).get("family"), run.job.get("task", {}).get("kind"), run.job.get("data", {}).get("source"))
    held = occupancy(run)
    return rendered(
        "page.html",
        run=run,
        tables=tables,
        number_columns=tables.NUMBER_COLUMNS,
        summary=tables.summary(run),
        status=status,
        look=status if status in (RunStatus.COMPLETED, RunStatus.FAILED) else "other",
        known=[str(text).replace("_", " ") for text in named if text],
        wide=wide,
        pairs=list(charts.values()),
        timeline=timeline_chart(run),
        steps=step_charts(run),
        ledger=ledger_chart(run),
        occupancy=held,
        # Any "<" of an event's reason could end the script element early ("</script>") or keep it from ending ("<!--<script>").
        data=json.dumps(held, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        javascript=_source("report.js"),
    )
