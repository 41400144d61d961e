"""Live progress: a panel that redraws itself on a terminal, plain lines anywhere else."""

import os
import sys
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Protocol

from frostline_contract.mesh import in_words
from frostline_contract.run_status import RunStatus
from frostline_contract.worker_state import OUTSIDE_THE_SHAPE, WorkerState
from frostline_controller.local_run.output import silence
from frostline_controller.local_run.progress import Progress
from frostline_controller.report.data import Event
from frostline_controller.report.tables import duration

if TYPE_CHECKING:
    from rich.console import Group

PLAIN_SECONDS = 5.0
"""Seconds between plain lines when nothing happens."""

KINDS = {"failure": "red", "pause": "red", "guard": "red", "fault": "magenta", "freeze": "cyan", "unfreeze": "cyan",
         "reshape": "yellow", "join": "green"}  # fmt: skip


class Terminal(Protocol):
    """Shows progress whenever `show` is called; the caller closes it."""

    def show(self, progress: Progress) -> None:
        """Show the present progress, with the events since the last call."""

    def say(self, text: str) -> None:
        """Show a line that stays, such as the command's next action."""

    def close(self) -> None:
        """Leave the shown text as it is, and the cursor below it."""


def open_terminal(quiet: bool, out: IO[str] | None = None) -> Terminal:
    """Return the live panel where `out` (standard output) is a terminal, else plain lines; with `quiet` only the lines of
    `say`."""
    stream = out or sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (for the process's life)
    if quiet:
        return LastingTerminal(PlainTerminal(stream, only_said=True), stream)
    return LastingTerminal(LiveTerminal() if stream.isatty() else PlainTerminal(stream), stream)


class LastingTerminal:
    """Shows through another terminal until that cannot be written any more (a closed pipe, a full disk, a session that is over).

    From then on nothing is shown, and the run goes on.
    """

    def __init__(self, terminal: Terminal, stream: IO[str]) -> None:
        self._terminal: Terminal | None = terminal
        self._stream = stream

    def show(self, progress: Progress) -> None:
        self._try(lambda terminal: terminal.show(progress))

    def say(self, text: str) -> None:
        self._try(lambda terminal: terminal.say(text))

    def close(self) -> None:
        self._try(lambda terminal: terminal.close())

    def _try(self, act: Callable[[Terminal], None]) -> None:
        if self._terminal is None:
            return
        try:
            act(self._terminal)
        except OSError:
            self._terminal = None
            silence(self._stream)


class PlainTerminal:
    """One line for each event, each interval, and every few seconds: for logs and pipes."""

    def __init__(self, out: IO[str], only_said: bool = False, every_seconds: float = PLAIN_SECONDS) -> None:
        self._out = out
        self._only_said = only_said
        self._every_seconds = every_seconds
        self._next_at = 0.0
        self._last = (-1, -1, "")
        self._layout = ""

    def show(self, progress: Progress) -> None:
        if self._only_said:
            return
        for event in progress.new_events:
            self.say(event_line(event))
        layout = layout_line(progress)
        if layout and layout != self._layout:
            self._layout = layout
            self.say(layout)
        now = (progress.step, progress.intervals, progress.state)
        moved = now[1:] != self._last[1:] or (progress.step != self._last[0] and time.monotonic() >= self._next_at)
        if moved:
            self._last, self._next_at = now, time.monotonic() + self._every_seconds
            self.say(progress_line(progress))

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def close(self) -> None:
        self._out.flush()


class LiveTerminal:
    """A panel with the numbers, the pipeline's picture and the last events, redrawn in place by rich."""

    def __init__(self, console: Any = None) -> None:
        from rich.live import Live

        # Drawn on request only, in the caller's thread, which has to notice a terminal that is gone.
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._events: list[Event] = []

    def show(self, progress: Progress) -> None:
        self._live.start()
        self._events = [*self._events, *progress.new_events][-6:]
        self._live.update(panel(progress, self._events), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


def numbers(progress: Progress) -> list[tuple[str, str]]:
    """Return the known numbers of the run, as (name, value), in the order in which people read them."""
    pairs = [("step", f"{progress.step}/{progress.total_steps or '?'}")]
    if progress.loss is not None:
        pairs.append(("loss", f"{progress.loss:.4f}"))
    pairs += [(name.replace("_", " "), f"{value:.4f}") for name, value in progress.metrics.items()]
    pairs.append(("freeze point", f"{progress.freeze_point}/{progress.num_units or '?'} units"))
    if progress.degrees:
        pairs.append(("shape", in_words(progress.degrees)))
    if progress.samples_per_second:
        pairs.append(("samples/s", f"{progress.samples_per_second:,.0f}"))
    if progress.cache_hit_fraction is not None:
        pairs.append(("cache hits", f"{100 * progress.cache_hit_fraction:.0f} %"))
    if progress.seconds_left is not None and progress.state == RunStatus.RUNNING:
        pairs.append(("left", duration(progress.seconds_left)))
    return pairs


def progress_line(progress: Progress) -> str:
    """Return the run's state and numbers in one line."""
    message = f"  ({progress.message})" if progress.message else ""
    return f"{progress.state:<9} " + "  ".join(f"{name} {value}" for name, value in numbers(progress)) + message


def event_line(event: Event) -> str:
    """Return an event in one line: time, step, kind, duration and reason."""
    took = f" ({duration(event.seconds)})" if event.seconds else ""
    return f"* {duration(event.time_seconds)}, step {event.step}: {event.kind.replace('_', ' ')}{took}: {event.reason}"


def layout_line(progress: Progress) -> str:
    """Return the units of each worker in one line; frozen units stand before a '|'.

    Example: `replica 0: trainer-0 [0-2 | 3-5], trainer-1 [6-8]`.
    """
    replicas = _replicas(progress)
    held = [
        f"replica {dp_rank}: " + ", ".join(f"{_name(worker)} [{_span(worker['units'], progress.freeze_point)}]" for worker in row)
        for dp_rank, row in replicas.items()
    ]
    others = [f"{state}: {', '.join(names)}" for state, names in _others(progress).items()]
    return "; ".join([*held, *others]) if held else ""


def _others(progress: Progress) -> dict[str, list[str]]:
    """Return the names of the workers outside the shape: spare workers, and joiners of a prepared plan."""
    by_state = {state: [_name(worker) for worker in progress.workers if worker["state"] == state] for state in OUTSIDE_THE_SHAPE}
    return {state: names for state, names in by_state.items() if names}


def panel(progress: Progress, events: list[Event]) -> "Group":
    """Return the live picture: bar, numbers, one row for each replica with frozen units in ice blue, and the last events."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    line = Text()
    for name, value in numbers(progress):
        line.append(f"{name} ", style="dim").append(f"{value}   ", style="bold")
    picture = Text()
    for dp_rank, row in _replicas(progress).items():
        picture.append(f"replica {dp_rank:<3}", style="dim")
        for place, worker in enumerate(row):
            picture.append(" -> " if place else " ", style="dim").append(_name(worker), style=f"color({2 + place % 5})").append(
                " "
            )
            for unit in worker["units"]:
                frozen = unit < progress.freeze_point
                picture.append(f"*{unit} " if frozen else f"{unit} ", style="cyan on grey23" if frozen else "bold")
        picture.append("\n")
    for state, names in _others(progress).items():
        picture.append(f"{state:<11} {', '.join(names)}\n", style="dim")
    news = Text()
    for event in events:
        news.append(event_line(event) + "\n", style=KINDS.get(event.kind, ""))
    bar = ProgressBar(total=max(1, progress.total_steps), completed=progress.step)
    parts = [bar, line, *([picture] if picture else []), *([news] if news else [])]
    if progress.message:
        parts.append(Text(progress.message, style="dim"))
    title = f"{progress.name} · {progress.state} · generation {progress.generation or '-'} · * = frozen"
    return Group(Panel(Group(*parts), title=title, title_align="left", border_style="blue"))


def _replicas(progress: Progress) -> dict[int, list[dict[str, Any]]]:
    """Return the members by dp rank, each row by pp rank."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for worker in sorted(progress.workers, key=lambda worker: (worker["dp_rank"] or 0, worker["pp_rank"] or 0)):
        if worker["dp_rank"] is not None and worker["state"] == WorkerState.MEMBER:
            rows.setdefault(worker["dp_rank"], []).append(worker)
    return rows


def _span(units: list[int], freeze_point: int) -> str:
    frozen = [unit for unit in units if unit < freeze_point]
    learning = [unit for unit in units if unit >= freeze_point]
    shown = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in (frozen, learning) if part]
    return " | ".join(shown) + (" |" if frozen and not learning else "")


def _name(worker: dict[str, Any]) -> str:
    return worker["pod_name"] or worker["worker_id"][-8:]
