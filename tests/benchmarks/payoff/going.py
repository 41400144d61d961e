"""What is missing, and in which order it is made: a generator of pieces of work, so that a go may end after any of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from tests.benchmarks.payoff.figures import pairs
from tests.benchmarks.payoff.lines import Key, Line, Lines
from tests.benchmarks.payoff.static_search import Candidate, best_of, worth_measuring
from tests.benchmarks.payoff.tasks import ABLATION, CAPS, FRONTIER, TASKS
from tests.benchmarks.payoff.work import accuracy_run, candidates_of, measure_candidate, prepare, timed_run

KINDS = ("time", "ablation", "frontier", "accuracy")


@dataclass(frozen=True)
class Asked:
    """What one go is asked for. time_seeds: how many of the seeds are timed. go: its name, which the lines of timed runs bear."""

    tasks: tuple[str, ...]
    caps: tuple[str, ...]
    seeds: tuple[int, ...]
    time_seeds: int
    pairs: int
    kinds: tuple[str, ...]
    scale: str
    go: str


@dataclass(frozen=True)
class Piece:
    """One piece of work.

    Attributes:
        make: takes when the go ends, by the monotonic clock; None where the next go has to go on with it.
        guess: seconds that something like it took, and which cannot be spread over goes; 0: not known, or it can.
    """

    key: Key
    make: Callable[[float], Line | None]
    guess: float


def _at_once(make: Callable[[], Line]) -> Callable[[float], Line]:
    """Work that is not cut off where the go ends."""
    return lambda end: make()


def missing(lines: Lines, asked: Asked) -> Iterator[Piece]:
    """Every piece that is asked for and not there yet; what one needs is made before it, and read from `lines` after it."""
    for task in asked.tasks:
        for cap in asked.caps:
            yield from _prepared(lines, asked, task, cap)
    for pair, seed, task, cap in product(range(asked.pairs), asked.seeds[: asked.time_seeds], asked.tasks, asked.caps):
        if arms := timed_arms(asked, task):
            yield from _searched(lines, asked, task, cap)
            yield from _interleaved(lines, asked, Key("time", task, asked.scale, cap, "", seed, pair), arms)
    if "accuracy" in asked.kinds:
        yield from _accurate(lines, asked)


def timed_arms(asked: Asked, task: str) -> tuple[str, ...]:
    """What takes turns on a task: static and whatever is asked for beside it; none where nothing timed is."""
    wanted: list[str] = ["elastic"] if "time" in asked.kinds else []
    wanted += ABLATION if "ablation" in asked.kinds else ()
    wanted += ["elastic", *FRONTIER] if "frontier" in asked.kinds and TASKS[task].text else ()
    return tuple(dict.fromkeys(["static", *wanted])) if wanted else ()


def known(lines: Lines, asked: Asked, task: str, cap: str) -> Line:
    """The prepared line, which is there by now."""
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
    """The quickest static placement of those that were measured. Raises ValueError where none was."""
    prepared = lines.get(Key("prepared", task, scale, cap))
    assert prepared is not None, f"{task} {cap} has not been prepared"
    measured = {line["arm"]: line["seconds"] for line in lines.of(kind="candidate", task=task, scale=scale, cap=cap)}
    return best_of(measured, candidates_of(prepared))


def _interleaved(lines: Lines, asked: Asked, of: Key, arms: Sequence[str]) -> Iterator[Piece]:
    """The arms of one pair, in reverse order every other time. A pair that an earlier go left half done is made again."""
    timed = lines.of(kind="time", task=of.task, scale=of.scale, cap=of.cap, seed=of.seed, pair=of.pair)
    if all(pairs(timed, arm) for arm in arms if arm != "static"):
        return
    prepared, best = known(lines, asked, of.task, of.cap), best_static(lines, of.scale, of.task, of.cap)
    keys = [replace(of, arm=arm) for arm in (arms if (of.seed + of.pair) % 2 == 0 else reversed(arms))]
    for turn, key in enumerate(keys):
        guess = sum(_guess(lines, other) for other in keys[turn:])  # a pair is begun where all of it fits
        yield Piece(key, _at_once(partial(timed_run, key, prepared, best, asked.go)), guess)


def _accurate(lines: Lines, asked: Asked) -> Iterator[Piece]:
    """Seed by seed through the tasks, so that each has some seeds before one has all."""
    for seed in asked.seeds:
        for task in asked.tasks:
            cap = "free" if "free" in asked.caps else CAPS[0]
            frontier = FRONTIER if "frontier" in asked.kinds and TASKS[task].text else ()
            for arm in ("static", "elastic", *frontier):
                key = Key("accuracy", task, asked.scale, "", arm, seed)
                if lines.get(key) is None:
                    prepared = known(lines, asked, task, cap)
                    yield Piece(key, partial(accuracy_run, key, prepared), 0.0)


def _guess(lines: Lines, key: Key) -> float:
    """As long as the longest of the same task and arm."""
    same = lines.of(kind=key.kind, task=key.task, scale=key.scale, cap=key.cap, arm=key.arm)
    return max((line["seconds"] for line in same), default=0.0)
