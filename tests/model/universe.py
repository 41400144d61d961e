"""The numbers behind a world's parts, and small steps that all moves share."""

from collections.abc import Iterator

from tests.model.bridge import Bridge
from tests.model.configurations import Configuration
from tests.model.world import (
    NONE,
    RUNNING,
    SPARE,
    Leader,
    Order,
    PlanView,
    Pool,
    Vote,
    Worker,
    World,
    name,
)

Move = tuple[str, World, bool]
"""A move: its label in words; the world after it; whether it is a fault, on which progress must not depend."""

Passed = tuple[int, int, int]
Published = tuple[tuple[int, int], int]


class Universe:
    """One search: its configuration, the rules that are off, and every value that worlds name by number."""

    def __init__(self, configuration: Configuration, off: frozenset[str] = frozenset()) -> None:
        self.configuration, self.off = configuration, off
        self.bridge = Bridge(configuration, off)
        self.workers: Pool[Worker] = Pool()
        self.plans: Pool[tuple[int, ...]] = Pool()
        self.passed: Pool[tuple[Passed, ...]] = Pool()
        self.leaders: Pool[Leader] = Pool()
        self.published: Pool[tuple[Published, ...]] = Pool()
        self.everybody = range(configuration.num_workers)

    def start(self) -> World:
        """Return the first world: generation 1.1 runs, its members hold the pieces that they need, the others are spare
        workers."""
        bridge = self.bridge
        plan = bridge.first_plan()
        view = bridge.views[plan]
        workers = []
        for index in self.everybody:
            if index in view.members:
                needed, every = view.needs[index], range(self.configuration.num_pieces)
                pieces = tuple(view.start if piece in needed else NONE for piece in every)
                worker = Worker(RUNNING, plan, plan, view.order, view.start, pieces, fresh=True, settled=True)
            else:
                worker = Worker(SPARE, newest_received=view.order, pieces=(NONE,) * self.configuration.num_pieces)
            workers.append(self.workers.number(worker))
        leader = Leader(incarnation=1, current=plan, reports=(None,) * len(workers))
        return World(
            workers=tuple(workers),
            plans=self.plans.number((plan,)),
            passed=self.passed.number(()),
            leader=self.leaders.number(leader),
            old=NONE,
            side=(0,) * len(workers),
            left=self.configuration.left,
            published=self.published.number(()),
            epoch=0,
            results=(),
        )

    # ---- looking

    def worker(self, world: World, index: int) -> Worker:
        return self.workers[world.workers[index]]

    def all_workers(self, world: World) -> Iterator[tuple[int, Worker]]:
        return ((index, self.workers[number]) for index, number in enumerate(world.workers))

    def leader(self, world: World) -> Leader:
        return self.leaders[world.leader]

    def view(self, plan: int) -> PlanView:
        return self.bridge.views[plan]

    def durable(self, world: World) -> tuple[int, ...]:
        return self.plans[world.plans]

    def vote_of(self, world: World, plan: int) -> Passed | None:
        """Return the last vote that passed in the plan's generation: (plan, step, plan that it switches to)."""
        return next((passed for passed in self.passed[world.passed] if passed[0] == plan), None)

    def newest(self, leader: Leader) -> Order:
        orders = [self.view(leader.current).order]
        if leader.prepared != NONE:
            orders.append(self.view(leader.prepared).order)
        return max(orders)

    def title(self, plan: int) -> str:
        return name(self.view(plan).order)

    def step(self, worker: Worker) -> int:
        return self.bridge.states[worker.run].step

    # ---- changing

    def put(self, world: World, index: int, worker: Worker) -> World:
        workers = list(world.workers)
        workers[index] = self.workers.number(worker)
        return world._replace(workers=tuple(workers))

    def with_leader(self, world: World, leader: Leader) -> World:
        return world._replace(leader=self.leaders.number(leader))

    def with_vote(self, world: World, passed: Passed) -> World:
        others = [one for one in self.passed[world.passed] if one[0] != passed[0]]
        return world._replace(passed=self.passed.number(tuple(sorted([*others, passed]))))

    def vote(self, plan: int, step: int) -> Vote:
        view = self.view(plan)
        return Vote(view.plan.lineage, step, view.order)
