"""The search's view of a run: workers, durable plans, one leader, a network, and the published states.

Everything is an immutable tuple, and large parts are kept once and named by a number, so that a world is a few dozen small ints.
A piece's content is the tuple of the generations that voted its steps: equal step numbers with other contents are visible.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from frostline_contract.plan import GenerationId, Plan, StateTag

Order = tuple[int, int]
"""A generation as (incarnation, counter)."""

NOBODY: Order = (0, 0)
NONE = -1

ENDED, RUNNING, VOTING, STOPPED, SPARE, JOINING, ENTERING, LEAVING, FINISHED = "XRVDSPELF"
"""A worker's modes: process gone; between steps; gradients prepared, in the vote; groups dropped; not in the shape; prepares a
plan that it will join; brings state in place; has switched and gives state away; has seen the run's last vote."""


class State(NamedTuple):
    """One content of a piece, with the tag that names it: lineage and generation of the last vote. torn: half written."""

    lineage: int
    history: tuple[Order, ...]
    order: Order
    torn: bool = False

    @property
    def step(self) -> int:
        return len(self.history)

    def tag(self) -> StateTag:
        return StateTag(lineage=self.lineage, step=self.step, generation=generation_id(self.order))

    def __str__(self) -> str:
        voters = " ".join(name(order) for order in self.history) or "as at the start"
        return f"step {self.step} of lineage {self.lineage} (voted by {voters}{', torn' if self.torn else ''})"


class Vote(NamedTuple):
    """A vote that passed: the content of a SeenVote."""

    lineage: int
    step: int
    order: Order


class Worker(NamedTuple):
    """One process.

    Attributes:
        plan: the plan that it runs, enters or leaves with.
        ran: the plan in whose votes it took part last.
        newest_received: the newest generation that it has received.
        run: its run state.
        pieces: for each piece the state that it holds.
        prepared: the plan in whose generation the gradients of run's next step are complete.
        seen: the last two votes.
        switched, expired: plans of which it knows that they were switched to, or have expired.
        ready: the plan that its ballot names.
        fresh: no vote of this generation has been seen.
        settled: it holds the pieces that the plan requires.
        withdrawn: takes no part in a switch any more.
    """

    mode: str
    plan: int = NONE
    ran: int = NONE
    newest_received: Order = NOBODY
    run: int = NONE
    pieces: tuple[int, ...] = ()
    prepared: int = NONE
    seen: tuple[Vote, ...] = ()
    switched: tuple[Order, ...] = ()
    expired: tuple[Order, ...] = ()
    ready: int = NONE
    fresh: bool = False
    settled: bool = False
    withdrawn: bool = False


class Report(NamedTuple):
    """A worker's report to a leader."""

    newest_received: Order
    ran: int
    pieces: tuple[int, ...]
    run: int
    prepared: int
    seen: tuple[Vote, ...]
    switched: tuple[Order, ...]
    expired: tuple[Order, ...]


class Leader(NamedTuple):
    """A controller: the plans that it has read or written, and the reports that it has received. reports: for each worker, or
    None."""

    incarnation: int
    current: int
    prepared: int = NONE
    recovering: bool = False
    reports: tuple[Report | None, ...] = ()
    ended: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()


class Left(NamedTuple):
    """The numbers of faults that may still happen, by kind."""

    crashes: int = 0
    cuts: int = 0
    heals: int = 0
    tears: int = 0
    hangs: int = 0
    takeovers: int = 0
    switches: int = 0
    withdrawals: int = 0


class World(NamedTuple):
    """One state of the run.

    plans: all durable ones, oldest first. passed: (plan, step, plan that it switches to) of each plan's last vote. published:
    ((lineage, step), state). old: a replaced leader that does not know it (only without the rule "incarnation").
    """

    workers: tuple[int, ...]
    plans: int
    passed: int
    leader: int
    old: int
    side: tuple[int, ...]
    left: Left
    published: int
    epoch: int
    results: tuple[int, ...]


Value = TypeVar("Value", bound=Hashable)


class Pool(Generic[Value]):
    """Values that are kept once and named by numbers."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def __getitem__(self, number: int) -> Value:
        return self.values[number]

    def number(self, value: Value) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass(frozen=True)
class PlanView:
    """A durable plan as the moves use it: production's own values, with workers as numbers.

    needs: by worker, the pieces whose state it must have. holders: by piece. sources: by piece. start: the state that it starts
    from; NONE for "continue", where the switching vote determines it.
    """

    plan: Plan
    order: Order
    base: Order
    kind: str
    members: tuple[int, ...]
    participants: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]
    holders: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]
    state_source: int
    start: int


def generation_id(order: Order) -> GenerationId:
    return GenerationId(incarnation=order[0], counter=order[1])


def order_of(generation: GenerationId | None) -> Order:
    return (generation.incarnation, generation.counter) if generation is not None else NOBODY


def name(order: Order) -> str:
    return f"{order[0]}.{order[1]}"


def worker_name(index: int) -> str:
    return f"w{index}"


def worker_index(worker_id: str) -> int:
    return int(worker_id[1:])
