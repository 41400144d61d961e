"""Functions that warm worker processes run for the benchmarks of several workers. Arguments and answers are plain data."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from frostline_contract.plan import GenerationId, Placement, Plan, StateTag
from frostline_trainer.generations.groups import Groups
from frostline_trainer.generations.moves import move_pieces, release_unneeded
from frostline_trainer.step.context import RunContext
from frostline_trainer.tensor.group import sum_nodes
from tests import engine_member
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import new_context, with_training
from tests.benchmarks.torch_pipeline import TorchPipeline
from tests.forming import form_groups
from tests.hand_made_plans import holders_of
from tests.warm_workers import Call, WarmWorkers

GROUP_SECONDS = timedelta(seconds=120)
CALL_SECONDS = 600.0
_counters = iter(range(1, 10**6))


@dataclass
class Standing:
    """A worker's state between calls of the reshape benchmark."""

    context: RunContext
    stepper: Stepper
    groups: Groups


_standing: list[Standing] = []


def workers_of(count: int) -> tuple[str, ...]:
    return tuple(f"w{number}" for number in range(count))


def make_plan(placement: Placement, ports: list[int], base: Plan | None = None) -> Plan:
    """Make a plan: fresh, or one that continues from `base`; then the last owner of each unit in `base` sends its state."""
    num_units = placement.stage_bounds[-1]
    sources = () if base is None else tuple(base.placement.owners(unit)[-1] for unit in range(num_units))
    return Plan(
        generation=GenerationId(incarnation=1, counter=next(_counters)),
        base=base.generation if base else None,
        lineage=0,
        start="continue" if base else "fresh",
        freeze_point=0,
        placement=placement,
        sources=sources,
        holders=holders_of(base, placement.workers) if base else (),
        store_host="127.0.0.1",
        store_port=ports[0],
    )


def store_ports(pool: WarmWorkers, count: int) -> list[int]:
    return pool.call([Call("tests.engine_member:store_port", {})] * count)


def call_all(pool: WarmWorkers, function: str, count: int, **arguments: Any) -> list[Any]:
    """Run `members.<function>` on all of `count` workers, each with its own worker_id."""
    name = f"tests.benchmarks.members:{function}"
    return pool.call([Call(name, {**arguments, "worker_id": worker}) for worker in workers_of(count)], CALL_SECONDS)


def slowest(members: list[dict[str, Any]], name: str) -> list[float]:
    """Return the seconds of each turn's slowest member. members: their answers (`_take_turns`)."""
    return [max(turn) for turn in zip(*(member[name]["seconds"] for member in members), strict=True)]


# ---- exact against fast numerics


def numerics_turns(worker_id: str, plan: dict[str, Any], subject: str, turns: int) -> dict[str, Any]:
    """Take exact and fast steps in turns on one model. Returns
    {numerics: {"seconds": [...], "parts": [{phase: seconds}, ...]}}."""
    groups, index, entered = _meet(worker_id, plan)
    context = new_context(subject)
    exact = Stepper(context, entered, index, groups)
    exact.step()
    # Built after the first step, so that both optimizers hold the same moments.
    fast = Stepper(with_training(context, numerics="fast"), entered, index, groups)
    fast.step()
    answer = _take_turns({"exact": exact, "fast": fast}, groups, turns)
    groups.close()
    return answer


# ---- with and without buddies


def keeping_turns(worker_id: str, plan: dict[str, Any], subject: str, turns: int) -> dict[str, Any]:
    """Take steps with the plan's buddies and without any, in turns on one model."""
    groups, index, entered = _meet(worker_id, plan)
    context = new_context(subject)
    without = entered.model_copy(
        update={"buddies": (), "uncovered": (), "generation": GenerationId(incarnation=0, counter=entered.generation.counter)}
    )
    steppers = {"with": Stepper(context, entered, index, groups), "without": Stepper(context, without, index, groups)}
    answer = _take_turns(steppers, groups, turns)
    groups.close()
    return answer


# ---- with and without audits


def audit_turns(worker_id: str, plan: dict[str, Any], subject: str, turns: int) -> dict[str, Any]:
    """Take audited and unaudited steps in turns on one model."""
    groups, index, entered = _meet(worker_id, plan)
    context = new_context(subject)
    other = entered.model_copy(update={"generation": GenerationId(incarnation=0, counter=entered.generation.counter)})
    steppers = {
        "audited": Stepper(with_training(context, audit_every_steps=1), entered, index, groups),
        "plain": Stepper(with_training(context, audit_every_steps=0), other, index, groups),
    }
    answer = _take_turns(steppers, groups, turns)
    groups.close()
    return answer


# ---- our pipeline executor against torch's


def pipeline_turns(worker_id: str, plan: dict[str, Any], subject: str, turns: int) -> dict[str, Any]:
    """Take our step and torch.distributed.pipelining's in turns, on two copies of the model cut alike."""
    groups, index, entered = _meet(worker_id, plan)
    context = new_context(subject)
    exact = Stepper(context, entered, index, groups)
    first = exact.step()
    fast = Stepper(with_training(context, numerics="fast"), entered, index, groups)
    peer = TorchPipeline(new_context(subject), entered.placement, index, groups.store, f"peer{plan['generation']['counter']}")
    peer_first = peer.step()
    assert abs(first - peer_first) < 1e-4 * abs(first), f"the two do not compute the same: losses {first}, {peer_first}"
    answer = _take_turns({"exact": exact, "fast": fast, "peer": peer}, groups, turns)
    peer.close()
    groups.close()
    return answer


# ---- a group's sum against the library's


@dataclass
class Sums:
    """So many sums of one tensor over all members, as a step of `_take_turns`. add: returns the sum of its argument."""

    node: torch.Tensor
    add: Callable[[torch.Tensor], torch.Tensor]
    times: int
    parts: dict[str, float] = field(default_factory=dict)

    def step(self) -> torch.Tensor:
        """Return the last sum."""
        for _ in range(self.times):
            total = self.add(self.node)
        return total


def sum_turns(worker_id: str, plan: dict[str, Any], shape: tuple[int, ...], sums: int, turns: int) -> dict[str, Any]:
    """Take sums in tile order and the library's in turns. shape: of a member's float32 tensor. sums: of each turn."""
    groups, index, _ = _meet(worker_id, plan)
    world = groups.world
    assert world is not None
    node = torch.randn(shape, generator=torch.Generator().manual_seed(index))

    def library(tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        world.all_reduce_sum(total)
        return total

    ways = {"exact": Sums(node, partial(sum_nodes, world), sums), "library": Sums(node, library, sums)}
    first = {name: way.step() for name, way in ways.items()}
    assert torch.allclose(first["exact"], first["library"], rtol=1e-4, atol=1e-5), "the two sums differ by more than rounding"
    answer = _take_turns(ways, groups, turns)
    groups.close()
    return answer


def _take_turns(steppers: dict[str, Any], groups: Groups, turns: int) -> dict[str, Any]:
    """Take steps in turns. The first turn is a warm-up and is not counted; every other turn runs in reverse order."""
    answer: dict[str, Any] = {name: {"seconds": [], "processor": [], "parts": []} for name in steppers}
    for turn in range(turns + 1):
        for name in steppers if turn % 2 == 0 else reversed(steppers):
            groups.moving.barrier()
            started, started_processor = time.perf_counter(), time.process_time()
            steppers[name].step()
            seconds, processor = time.perf_counter() - started, time.process_time() - started_processor
            if turn:
                answer[name]["seconds"].append(seconds)
                answer[name]["processor"].append(processor)
                answer[name]["parts"].append(steppers[name].parts)
    return answer


# ---- reshape in place


def start_series(worker_id: str, plan: dict[str, Any], subject: str) -> None:
    """Enter the first plan and train one step, so that there are moments to move."""
    groups, index, entered = _meet(worker_id, plan)
    context = new_context(subject)
    stepper = Stepper(context, entered, index, groups)
    stepper.step()
    _standing[:] = [Standing(context, stepper, groups)]


def reshape(worker_id: str, plan: dict[str, Any]) -> dict[str, float]:
    """Enter the next plan. Returns CLOCK_MONOTONIC seconds at the end of each part, and the bytes received."""
    now = _standing[0]
    started = time.monotonic()
    groups, index, entered = _meet(worker_id, plan)
    grouped = time.monotonic()
    assert entered.base is not None
    # Each stepper trains one step, its own first.
    received = move_pieces(now.context, entered, worker_id, groups.moving, StateTag(lineage=0, step=1, generation=entered.base))
    release_unneeded(now.context, entered, worker_id)
    moved = time.monotonic()
    stepper = Stepper(now.context, entered, index, groups)
    groups.moving.barrier()
    ready = time.monotonic()
    now.groups.close()
    # One step, so that the next reshape moves new state, and a broken reshape is noticed.
    stepper.step()
    _standing[:] = [Standing(now.context, stepper, groups)]
    return {"started": started, "grouped": grouped, "moved": moved, "ready": ready, "bytes": received}


def end_series(worker_id: str) -> None:
    """Release the series' state."""
    for standing in _standing:
        standing.groups.close()
    _standing.clear()


def _meet(worker_id: str, fields: dict[str, Any]) -> tuple[Groups, int, Plan]:
    torch.set_num_threads(1)
    plan = Plan.model_validate(fields)
    engine_member.store_port()
    groups = form_groups(plan, worker_id, "gloo", GROUP_SECONDS)
    return groups, plan.placement.workers.index(worker_id), plan
