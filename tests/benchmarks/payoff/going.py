"""The missing pieces of work in the order in which they are made: a generator, so that a go may end after any piece; and a go."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from tests.benchmarks.payoff.figures import pairs
from tests.benchmarks.payoff.lines import Key, Line, Lines
from tests.benchmarks.payoff.static_search import Candidate, best_of, worth_measuring
from tests.benchmarks.payoff.tasks import ABLATION, CAPS, TASKS
from tests.benchmarks.payoff.work import accuracy_run, candidates_of, measure_candidate, prepare, timed_run

KINDS = ("time", "ablation", "frontier", "accuracy")


@dataclass(frozen=True)
class Asked:
    """The request of one go.

    time_seeds: number of seeds that are timed. go: its name, which the lines of timed runs have. device: of accuracy runs.
    """

    tasks: tuple[str, ...]
    caps: tuple[str, ...]
    seeds: tuple[int, ...]
    time_seeds: int
    pairs: int
    kinds: tuple[str, ...]
    scale: str
    go: str
    device: str = "cpu"


@dataclass(frozen=True)
class Piece:
    """One piece of work.

    Attributes:
        make: takes the moment of the go's end, by the monotonic clock; returns None if the next go has to continue the piece.
        guess: seconds of a similar piece, if the piece must be done in one go; 0 if they are unknown or the piece can be spread
            over goes.
    """

    key: Key
    make: Callable[[float], Line | None]
    guess: float


def _at_once(make: Callable[[], Line]) -> Callable[[float], Line]:
    """Wrap work that is not cut off at the end of the go."""
    return lambda end: make()


def missing(lines: Lines, asked: Asked) -> Iterator[Piece]:
    """Yield each requested piece without a line; the pieces that it needs come before it, and are then read from `lines`."""
    for task in asked.tasks:
        for cap in asked.caps:
            yield from _prepared(lines, asked, task, cap)
    for pair, seed, task, cap in product(range(asked.pairs), asked.seeds[: asked.time_seeds], asked.tasks, asked.caps):
        if arms := timed_arms(asked, task):
            yield from _searched(lines, asked, task, cap)
            yield from _interleaved(lines, asked, Key("time", task, asked.scale, cap, "", seed, pair), arms)
    if "accuracy" in asked.kinds:
        yield from _accurate(lines, asked)


def make_all(pieces: Iterable[Piece], lines: Lines, seconds: float, at_once: int) -> None:
    """Make pieces in turn, and accuracy runs `at_once` at a time, and add their lines, until `seconds` are over."""
    started, pool, running = time.monotonic(), ThreadPoolExecutor(at_once), list[Future[None]]()
    try:
        for piece in pieces:
            spent = time.monotonic() - started
            if spent >= seconds or spent + piece.guess > seconds:
                print(f"{spent / 60:.0f} of {seconds / 60:g} minutes are over; the same command goes on", flush=True)
                break
            work = partial(_make, lines, piece, started, started + seconds)
            if piece.key.kind == "accuracy" and at_once > 1:
                running.append(pool.submit(work))
            else:
                work()
        for one in as_completed(running):
            one.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after a mistake, what has begun ends and nothing else begins


def _make(lines: Lines, piece: Piece, started: float, end: float) -> None:
    """Make a piece and add its line; nothing where the go is over before it begins."""
    now = time.monotonic()
    if now >= end:
        return
    print(f"{now - started:7.0f} s  {piece.key.words()}", flush=True)
    made = piece.make(end)
    if made is None:
        return
    line = lines.add(piece.key, made)
    names = ("seconds", "training_seconds", "accuracy", "loss", "reason", "refused")
    print(f"           {piece.key.words()}: { {name: line[name] for name in names if line.get(name)} }", flush=True)


def timed_arms(asked: Asked, task: str) -> tuple[str, ...]:
    """Return the arms that take turns on a task: static and the other requested arms; none if no timed run is requested."""
    wanted: list[str] = ["elastic"] if "time" in asked.kinds else []
    wanted += ABLATION if "ablation" in asked.kinds else ()
    wanted += ["elastic", *TASKS[task].frontier] if "frontier" in asked.kinds else ()
    return tuple(dict.fromkeys(["static", *wanted])) if wanted else ()


def known(lines: Lines, asked: Asked, task: str, cap: str) -> Line:
    """Return the prepared line, which must exist by now."""
    line = lines.get(Key("prepared", task, asked.scale, cap))
    assert line is not None, f"{task} {cap} has not been prepared"
    return line


def _prepared(lines: Lines, asked: Asked, task: str, cap: str) -> Iterator[Piece]:
    key = Key("prepared", task, asked.scale, cap)
    if lines.get(key) is None:
        yield Piece(key, _at_once(partial(prepare, key)), 0.0)


def _searched(lines: Lines, asked: Asked, task: str, cap: str) -> Iterator[Piece]:
    prepared = known(lines, asked, task, cap)
    for candidate in worth_measuring(candidates_of(prepared)):
        key = Key("candidate", task, asked.scale, cap, candidate.name)
        if lines.get(key) is None:
            yield Piece(key, _at_once(partial(measure_candidate, key, prepared, candidate)), 0.0)


def best_static(lines: Lines, scale: str, task: str, cap: str) -> Candidate:
    """Return the quickest of the measured static placements. Raises ValueError if none was measured."""
    prepared = lines.get(Key("prepared", task, scale, cap))
    assert prepared is not None, f"{task} {cap} has not been prepared"
    measured = {line["arm"]: line["seconds"] for line in lines.of(kind="candidate", task=task, scale=scale, cap=cap)}
    return best_of(measured, candidates_of(prepared))


def _interleaved(lines: Lines, asked: Asked, of: Key, arms: Sequence[str]) -> Iterator[Piece]:
    """Yield the arms of one pair, in reverse order for every other pair. A pair left half done by an earlier go is made again."""
    timed = lines.of(kind="time", task=of.task, scale=of.scale, cap=of.cap, seed=of.seed, pair=of.pair)
    if all(pairs(timed, arm) for arm in arms if arm != "static"):
        return
    prepared, best = known(lines, asked, of.task, of.cap), best_static(lines, of.scale, of.task, of.cap)
    keys = [replace(of, arm=arm) for arm in (arms if (of.seed + of.pair) % 2 == 0 else reversed(arms))]
    for turn, key in enumerate(keys):
        guess = sum(_guess(lines, other) for other in keys[turn:])  # a pair is begun only if all of it fits into the go
        yield Piece(key, _at_once(partial(timed_run, key, prepared, best, asked.go)), guess)


def _accurate(lines: Lines, asked: Asked) -> Iterator[Piece]:
    """Yield accuracy runs seed by seed through the tasks, so that each task has some seeds before one task has all."""
    for seed in asked.seeds:
        for task in asked.tasks:
            cap = "free" if "free" in asked.caps else CAPS[0]
            frontier = TASKS[task].frontier if "frontier" in asked.kinds else ()
            for arm in ("static", "elastic", *frontier):
                key = Key("accuracy", task, asked.scale, "", arm, seed)
                if lines.get(key) is None:
                    prepared = known(lines, asked, task, cap)
                    yield Piece(key, partial(accuracy_run, key, prepared, asked.device), 0.0)


def _guess(lines: Lines, key: Key) -> float:
    """Return the seconds of the longest run of the same task and arm."""
    same = lines.of(kind=key.kind, task=key.task, scale=key.scale, cap=key.cap, arm=key.arm)
    return max((line["seconds"] for line in same), default=0.0)
