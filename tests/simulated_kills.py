"""A member dies in a step over simulated NCCL: silence for the others, an interruption from outside, a new plan, the same bits.

Members are threads with devices that are behind them (`tests.run_ahead`). The victim is a thread and its device: none of its work
is aborted or closed, so its peers' messages wait for ever. The test plays the controller: it interrupts the survivors' groups,
and gives them a plan without the victim, whose units they own between them.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

from frostline_contract.plan import NCCL, Plan
from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.generation import Generation
from tests import engine_member
from tests.engine_member import Run
from tests.exact_cases import Case
from tests.hand_made_plans import Layout, Segment, holders_of, make_plan
from tests.integration.test_exactness import differences
from tests.simulated_members import in_threads, over
from tests.simulated_nccl import Network

SECONDS = 120.0
"""Only a hang lasts this long."""
PHASES = ("schedule", "exchange", "norms", "vote")
"""Phases at whose beginning a member can die so that the others' step is undone."""


class Killed(BaseException):
    """The member is dead; no handler of the trainer may take this for an error."""


@dataclass
class Scene:
    """One step's death. before, after: the plans. dead: set when the victim is gone. groups: the survivors' of `before`."""

    case: Case
    before: Plan
    after: Plan
    step: int
    victim: int
    phase: str
    network: Network
    dead: threading.Event = field(default_factory=threading.Event)
    failed: set[int] = field(default_factory=set)
    groups: dict[int, Groups] = field(default_factory=dict)


def kill_over_simulated_nccl(case: Case, layout: Layout, step: int, victim: int, phase: str) -> list[str]:
    """Train a case, kill a member, go on as a pipeline of the survivors.

    Args:
        victim: its number.
        phase: of PHASES, at whose beginning it dies in `step`.

    Returns:
        Differences of the survivors' losses, norms, weights and moments from the oracle's bits.
    """
    count = layout.shape.world_size
    left = tuple(number for number in range(count) if number != victim)
    ports = [engine_member.store_port()] * count
    before = make_plan(Segment(layout, step), None, ports, case=case, backend=NCCL)
    after = make_plan(Segment(Layout(len(left), 1, workers=left), case.steps), before, ports, case=case, backend=NCCL)
    names = tuple(f"w{number}" for number in left)
    owners = [next(owner for owner in before.owners(piece) if owner in names) for piece in range(before.pieces.count)]
    changed = {
        "leavers": (),
        "source_indices": [names.index(owner) for owner in owners],
        "state_source": owners[0],
        "holders": holders_of(before, names),
    }
    after = Plan.model_validate(dict(after) | changed)
    network = Network(run_ahead=True, finds_deadlocks=False)
    scene = Scene(case, before, after, step, victim, phase, network)
    network.expect(count)
    try:
        with over(network):
            controller = threading.Thread(target=_fence, args=(scene,), daemon=True)
            controller.start()
            runs = in_threads(lambda index: _live(scene, index), count, SECONDS)
        assert scene.failed == set(left), f"members {sorted(scene.failed)} met the failure, expected {left}"
        return differences(case, [run for run in runs if run is not None])
    finally:
        network.close()


def _fence(scene: Scene) -> None:
    """Interrupt the survivors' groups after the death, as the controller does."""
    if scene.dead.wait(SECONDS):
        for groups in scene.groups.values():
            groups.interrupt()


def _live(scene: Scene, index: int) -> Run | None:
    """Run a member from start to end; None for the victim."""
    case, run, name = scene.case, Run(), f"w{index}"
    with scene.network.member(index):
        context = engine_member.build_case(case)
        generation = engine_member.enter(context, case, scene.before, name, 0, run, "")
        assert generation is not None
        if index != scene.victim:
            scene.groups[index] = generation.groups
        for step in range(1, scene.step):
            engine_member.train_step(generation, case, step, run)
        try:
            _die_or_fail(scene, index, generation, run)
        except Killed:
            return None
        continued = engine_member.enter(context, case, scene.after, name, scene.step - 1, run, "")
        assert continued is not None
        for step in range(scene.step, case.steps + 1):
            engine_member.train_step(continued, case, step, run)
        engine_member.describe(continued, run, score=True)
        continued.close()
        return run


def _die_or_fail(scene: Scene, index: int, generation: Generation, run: Run) -> None:
    """Run the step of the death. Raises Killed in the victim; the others' step must fail, with nothing committed."""
    if index == scene.victim:
        generation.phase = lambda phase: _end(scene) if phase == scene.phase else None
    try:
        if index == scene.victim and scene.phase == "vote":
            generation.compute(scene.step)
            _end(scene)
        engine_member.train_step(generation, scene.case, scene.step, run)
    except RuntimeError:
        scene.failed.add(index)
        generation.abandon(keep_prepared=False)
        return
    raise AssertionError(f"member {index} has committed step {scene.step}, in which member {scene.victim} died")


def _end(scene: Scene) -> Any:
    scene.network.kill(scene.victim)
    scene.dead.set()
    raise Killed
