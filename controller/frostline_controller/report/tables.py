"""The tables of report.html: numbers at the top, events, generations, decisions, settings."""

from html import escape
from itertools import pairwise
from typing import Any

import yaml

from frostline_contract.mesh import in_words
from frostline_controller.report.data import RunData

TIMES = "\N{MULTIPLICATION SIGN}"
NUMBER_COLUMNS = {"time", "step", "steps", "took", "freeze point", "lineage", "interval", "#"}


def duration(seconds: float) -> str:
    """A length of time as people write it: 0.42 s, 12.3 s, 4:05 min, 2:10:00 h."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def summary(run: RunData) -> list[tuple[str, str]]:
    """The run in (name, value) pairs; what it does not know yet is left out."""
    pairs = [("wall-clock time", duration(run.wall_seconds()))]
    for name, value in run.final.items():
        shown = f"{100 * value:.2f} %" if name in ("accuracy", "f1", "exact_match") and 0 <= value <= 1 else f"{value:.4g}"
        pairs.append((f"test {name.replace('_', ' ')}", shown))
    if run.records:
        last = run.records[-1]
        shapes = len({in_words(record.degrees) for record in run.records})
        pairs += [
            ("steps", f"{last.step:,}"),
            ("frozen units", f"{last.freeze_point} of {run.num_units}"),
            ("last shape", in_words(last.degrees, TIMES)),
            ("shapes seen", str(shapes)),
        ]
        hits = sum(record.cache_hits for record in run.records)
        asked = hits + sum(record.cache_misses for record in run.records)
        if asked:
            pairs.append(("cache hits", f"{100 * hits / asked:.0f} %"))
    failures = sum(event.kind == "failure" for event in run.events)
    if failures:
        pairs.append(("failures survived", str(failures)))
    if run.lost_records:
        pairs.append(("steps computed again", str(len(run.lost_records))))
    return pairs


def events_table(run: RunData) -> str:
    rows = []
    for event in run.events:
        kind = f'<span class="kind {escape(event.kind)}">{escape(event.kind.replace("_", " "))}</span>'
        shape = in_words(event.degrees, TIMES)
        took = duration(event.seconds) if event.seconds else ""
        told = [duration(event.time_seconds), event.step, event.generation, kind, event.freeze_point, shape, took]
        rows.append([*told, escape(event.reason)])
    return table(["time", "step", "generation", "event", "freeze point", "shape", "took", "reason"], rows)


def generations_table(run: RunData) -> str:
    rows = []
    for span in run.plans:
        placement = span.plan.placement
        computed = f"{span.first_step} to {span.last_step}" if span.last_step is not None else f"from {span.first_step}"
        cuts = " ".join(f"{low}-{high - 1}" for low, high in pairwise(placement.stage_bounds))
        rows.append([
            str(span.plan.generation), span.plan.lineage, computed, in_words(placement.degrees, TIMES), cuts,
            escape(placement.schedule), "yes" if placement.use_cache else "no", escape(span.plan.start), escape(span.plan.reason),
        ])  # fmt: skip
    return table(["generation", "lineage", "steps", "shape", "stages' units", "schedule", "cache", "state from", "reason"], rows)


def decisions_table(run: RunData) -> str:
    rows = [
        [d.number, d.effective_step, "void" if d.void else d.kind, d.freeze_point, escape(d.policy), escape(d.reason)]
        for d in run.decisions
    ]  # fmt: skip
    return table(["#", "step", "verdict", "freeze point", "policy", "reason"], rows)


def settings_text(run: RunData) -> str:
    """The resolved job file as YAML, escaped. Without `kubernetes`, which says nothing of the training."""
    settings = {name: section for name, section in run.job.items() if name != "kubernetes"}
    return escape(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def table(head: list[str], rows: list[list[Any]]) -> str:
    """An HTML table; cells are markup already (escape what came from elsewhere). Numbers stand to the right."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = []
    for row in rows:
        parts = []
        for name, value in zip(head, row, strict=True):
            kind = ' class="number"' if name in NUMBER_COLUMNS else ' class="reason"' if name == "reason" else ""
            parts.append(f"<td{kind}>{value}</td>")
        lines.append(f"<tr>{''.join(parts)}</tr>")
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
