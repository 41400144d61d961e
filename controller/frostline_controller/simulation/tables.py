"""A simulation as text: one line an arm, one line a span, and the notes."""

from collections.abc import Sequence

from frostline_controller.simulation.replay import Replay, Span
from frostline_controller.simulation.simulate import Simulation, shape_words

SPANS_MAX = 40
"""Most lines of one arm's table; a longer table has a count of lines in place of its middle."""

ARM_HEAD = ("arm", "time", "speed-up", "steps", "samples/s", "reshapes", "device-hours", "money")
SPAN_HEAD = ("steps", "from", "frozen", "shape", "workers", "cache", "step", "samples/s", "bubble", "memory")


def arm_rows(found: Simulation) -> list[tuple[str, ...]]:
    """Return a row for each arm, with the columns of ARM_HEAD."""
    currency = found.world.cluster.currency
    rows = []
    for name, run in found.arms.items():
        speedup = found.speedup(name)
        rows.append(
            (
                name,
                seconds_words(run.seconds),
                f"{speedup:.2f}x" if speedup else "-",
                f"{run.steps:,}",
                f"{run.samples / run.seconds:,.1f}",
                str(run.reshapes),
                f"{run.device_hours:,.2f}",
                f"{run.money:,.2f} {currency}" if run.money else "-",
            )
        )
    return rows


def span_rows(run: Replay, limit: int = SPANS_MAX) -> list[tuple[str, ...]]:
    """Return a row for each span, with the columns of SPAN_HEAD; of a very long run the first and the last rows."""
    rows = [_span_row(span) for span in run.spans]
    if len(rows) <= limit:
        return rows
    half = limit // 2
    return [*rows[:half], (f"... {len(rows) - 2 * half} more", *[""] * (len(SPAN_HEAD) - 1)), *rows[-half:]]


def _span_row(span: Span) -> tuple[str, ...]:
    placement = span.placement
    return (
        f"{span.steps:,}",
        seconds_words(span.start_seconds),
        str(span.freeze_point),
        f"{shape_words(span)}, {placement.schedule}",
        f"{len(placement.workers)} of {span.held}",
        f"{span.hit_fraction:.0%} hits" if placement.use_cache else "no",
        seconds_words(span.cost.total_seconds),
        f"{span.samples_per_second:,.1f}",
        f"{span.bubble_share:.0%}",
        f"{span.cost.peak_bytes / 2**30:.3g} GiB",
    )


def as_text(found: Simulation) -> str:
    """Return the output of `frostline simulate`."""
    cluster = found.world.cluster
    lines = [f"{found.job.name} on {cluster.name}: {len(found.world.workers)} of {cluster.devices} devices"]
    lines += [f"  {note}" for note in found.notes]
    lines += ["", *columns(ARM_HEAD, arm_rows(found))]
    for name, run in found.arms.items():
        lines += ["", f"{name}: {run.history.source}", *columns(SPAN_HEAD, span_rows(run))]
    with_reasons = [(name, run) for name, run in found.arms.items() if any(span.reason for span in run.spans)]
    for name, run in with_reasons:
        lines += ["", f"why ({name}):"]
        lines += [f"  step {span.first_step}: {span.reason}" for span in run.spans if span.reason]
    return "\n".join(lines)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns, the first one to the left, the others to the right."""
    table = [tuple(head), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = []
    for row in table:
        first, *others = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]).rstrip())
    return lines


def seconds_words(seconds: float) -> str:
    """Return a time in words, from milliseconds to hours."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"
