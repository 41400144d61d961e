"""The tables of report.html: numbers at the top, events, generations, decisions, settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from frostline_contract.job import write_yaml
from frostline_contract.mesh import in_words
from frostline_contract.usage import Held
from frostline_controller.ledger import words
from frostline_controller.ledger.carried import WORDS, Carried, size
from frostline_controller.ledger.saved import FORMULAS
from frostline_controller.report.data import RunData

TIMES = "\N{MULTIPLICATION SIGN}"
NUMBER_COLUMNS = {"worker-seconds", "share", "cost", "time", "step", "steps", "took", "freeze point", "lineage", "interval", "#"}


def duration(seconds: float) -> str:
    """Return a length of time as people write it: 0.42 s, 12.3 s, 4:05 min, 2:10:00 h."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def summary(run: RunData) -> list[tuple[str, str]]:
    """Return the run in (name, value) pairs, without the values that are not known yet."""
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


@dataclass(frozen=True)
class Table:
    """Rows under named columns; the values are plain, and the page escapes them."""

    head: tuple[str, ...]
    rows: list[list[Any]]

    def named(self, row: list[Any]) -> Iterator[tuple[str, Any]]:
        """Return a row's values with their columns' names."""
        return zip(self.head, row, strict=True)


def events(run: RunData) -> Table:
    """Return the events of the run, in order."""
    rows = []
    for event in run.events:
        shape = in_words(event.degrees, TIMES)
        took = duration(event.seconds) if event.seconds else ""
        cells = [duration(event.time_seconds), event.step, event.generation, event.kind, event.freeze_point, shape, took]
        rows.append([*cells, event.reason])
    return Table(("time", "step", "generation", "event", "freeze point", "shape", "took", "reason"), rows)


def generations(run: RunData) -> Table:
    """Return the plans, each with the steps that it computed."""
    rows = []
    for span in run.plans:
        placement = span.plan.placement
        computed = f"{span.first_step} to {span.last_step}" if span.last_step is not None else f"from {span.first_step}"
        cuts = " ".join(f"{low}-{high - 1}" for low, high in pairwise(placement.stage_bounds))
        rows.append([
            str(span.plan.generation), span.plan.lineage, computed, in_words(placement.degrees, TIMES), cuts,
            placement.schedule, "yes" if placement.use_cache else "no", span.plan.start, span.plan.reason,
        ])  # fmt: skip
    return Table(("generation", "lineage", "steps", "shape", "stages' units", "schedule", "cache", "state from", "reason"), rows)


def memory(run: RunData) -> Table | None:
    """Return each generation's fullest worker: the planner's figure, and the measured one. None where none was reported."""
    rows = []
    for row in run.result.get("memory") or []:
        planned, peak = int(row["planned_bytes"]), int(row["peak_bytes"])
        share = f"{100 * peak / planned:.0f} %" if planned else ""
        counted = int(row.get("tensor_bytes") or 0)
        what = "" if row["device"] != "cpu" else "the whole process" + (f"; its tensors {counted:,} bytes" if counted else "")
        taken = f"{row['communicators']} ({int(row['communicator_bytes']):,} bytes)" if row["communicators"] else ""
        rows.append([row["generation"], f"{planned:,}", f"{peak:,}", share, row["worker"], row["device"], taken, what])
    head = ("generation", "planned bytes", "measured bytes", "share", "fullest worker", "device", "NCCL communicators", "note")
    return Table(head, rows) if rows else None


def traffic(run: RunData) -> Table | None:
    """Return the bytes that all workers sent over the run, and each member of the last interval in it. None where none were
    reported."""
    carried = Carried((*run.lost_records, *run.records))
    if not carried.newest:
        return None
    ways = [way for way in WORDS if carried.sent.get(way)]
    rows: list[list[Any]] = [["all, over the run", *(size(carried.sent[way]) for way in ways)]]
    rows += [[name, *(size(one.sent.get(way, 0)) for way in ways)] for name, one in carried.newest.items()]
    return Table(("sent by", *(WORDS[way] for way in ways)), rows)


def resident(run: RunData) -> Table | None:
    """Return the bytes that each member of the last interval holds. None where none were reported."""
    carried = Carried((*run.lost_records, *run.records))
    rows = [[name, *(size(one.resident.get(kind, 0)) for kind in Held)] for name, one in carried.newest.items()]
    return Table(("held by", *(kind.value for kind in Held)), rows) if rows else None


def ledger_used(run: RunData) -> Table | None:
    """Return the uses of the run's worker-seconds. None where none were reported."""
    ledger = run.ledger
    if ledger is None or not ledger.total:
        return None
    priced = ledger.price_per_worker_hour is not None
    uses = [(words.use_name(use), seconds) for use, seconds in ledger.used.items()]
    rows = [
        [name, f"{seconds:,.1f}", words.share(ledger, seconds), *([words.money(ledger.cost(seconds))] if priced else [])]
        for name, seconds in [*uses, ("together", ledger.total)]
    ]
    return Table(("use", "worker-seconds", "share", *(("cost",) if priced else ())), rows)


def ledger_saved(run: RunData) -> Table | None:
    """Return estimates of the savings, with their formulas. None where none were reported."""
    ledger = run.ledger
    if ledger is None or not ledger.saved:
        return None
    priced = ledger.price_per_worker_hour is not None
    rows = [
        [words.SAVINGS.get(by, by), f"{seconds:,.1f}", *([words.money(ledger.cost(seconds))] if priced else []),
         FORMULAS.get(by, "")]
        for by, seconds in ledger.saved.items()
    ]  # fmt: skip
    return Table(("saved", "worker-seconds", *(("cost",) if priced else ()), "estimated as"), rows)


def decisions(run: RunData) -> Table:
    """Return the decisions, one for each interval."""
    rows = [[d.number, d.effective_step, "void" if d.void else d.kind, d.freeze_point, d.policy, d.reason] for d in run.decisions]
    return Table(("#", "step", "verdict", "freeze point", "policy", "reason"), rows)


def workers(held: list[dict[str, str]]) -> Table:
    """Return the labels of the pictures, with the workers' ids."""
    return Table(("label", "worker id"), [[worker["label"], worker["id"]] for worker in held])


def settings_text(run: RunData) -> str:
    """Return the resolved job file as YAML, without `kubernetes`, which does not concern the training."""
    settings = {name: section for name, section in run.job.items() if name != "kubernetes"}
    return write_yaml(settings)
