"""A member dies in each phase of a step; the survivors go on in the same processes, with the bits of one worker.

The workers are real, from mailbox to checkpoint; the controller is hand-made (tests/hand_controller.py).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.plan import GLOO, Backend, Decision
from frostline_controller.recovery.facts import GoBack, GoOn
from frostline_proto.v1 import control_pb2 as pb
from tests.exact_cases import Case
from tests.hand_controller import HandController, HandMadeRun, Received, numerics
from tests.hand_made_plans import Layout
from tests.recovery_member import Lived
from tests.warm_workers import Call, WarmWorkers
from tests.wide_rows import wide_rows

CASE = Case("gpt2_tied", freezing=(), steps=12)
DECISIONS = (
    Decision(number=1, interval=1, effective_step=7, freeze_point=1, kind="freeze", reason="by hand"),
    Decision(number=2, interval=2, effective_step=11, freeze_point=3, kind="freeze", reason="by hand"),
)
"""Intervals end with steps 4 and 8, so the freezes are adopted by the votes of steps 6 and 10."""


@dataclass
class Outcome:
    """How a run with failures ended. lived: by worker number, None for one that died."""

    outcome: pb.RunOutcome
    received: Received
    run: HandMadeRun
    lived: list[Lived | None]

    @property
    def survivors(self) -> list[Lived]:
        return [one for one in self.lived if one is not None]

    @property
    def records(self) -> list[tuple[Any, ...]]:
        """The numerics of the surviving lineage's steps, in order."""
        kept: dict[int, tuple[Any, ...]] = {}
        starts = {plan.lineage: plan.start_step for plan in reversed(self.run.plans) if plan.start != "continue"}
        for (lineage, step), record in sorted(self.received.records.items()):
            if all(later <= lineage or step <= start for later, start in starts.items()):
                kept[step] = numerics(record)
        return [kept[step] for step in sorted(kept)]


def run_with_faults(pool: WarmWorkers, folder: Path, layouts: Sequence[Layout], faults: Sequence[dict[str, Any]] = (),
                    case: Case = CASE, nodes: Sequence[str] = (), reshape: tuple[Layout, tuple[int, int]] | None = None,
                    dying: Sequence[int] = (), backend: Backend = GLOO, **sections: dict[str, Any]) -> Outcome:  # fmt: skip
    """Train with faults. layouts: the first, then for fewer workers. nodes: failure domain of each worker, or no buddies."""
    pods = (
        max(len(layout.numbers) for layout in layouts)
        if reshape is None
        else max(len(reshape[0].numbers), len(layouts[0].numbers))
    )
    service = HandController(folder)
    arguments = {"case": case, "folder": str(folder), "faults": list(faults), "pods": pods, "sections": sections}
    calls = [
        Call("tests.recovery_member:live", arguments | {"number": number, "node": nodes[number] if nodes else "one"})
        for number in range(pods)
    ]
    answers: list[Any] = []
    failure: list[BaseException] = []

    def call() -> None:
        try:
            answers.extend(pool.call(calls, may_die=dying))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        service.wait_until(lambda: failure or len(service.workers) == pods, "registrations")
        assert not failure, failure
        processes = {f"w{number}": service.workers[f"w{number}"].process_id for number in range(pods)}
        domains = {f"w{number}": node for number, node in enumerate(nodes)}
        by_count = {len(layout.numbers): layout for layout in layouts}
        run = HandMadeRun(service, lambda: {worker for worker, pid in processes.items() if _is_gone(pid)}, by_count, domains,
                          DECISIONS, case.cut, backend, case.freeze_point_at(1))  # fmt: skip
        run.start(layouts[0])
        if reshape is not None:
            run.reshape(*reshape)
        outcome = run.lead()
        thread.join(60.0)
        assert not failure, failure
        return Outcome(outcome, service.received, run, answers)
    finally:
        service.close()
        thread.join(5.0)
        if thread.is_alive():
            pool.close()  # a worker that hangs here must not be called again


def _is_gone(process_id: int) -> bool:
    """Return whether the process has ended; a killed child of the pool is a zombie until it is waited for."""
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def kill(worker: int, step: int, phase: str) -> dict[str, Any]:
    return {"kind": "kill_worker", "step": step, "worker": worker, "phase": phase}


@pytest.fixture(scope="module")
def alone(warm_workers: WarmWorkers, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The undisturbed run, on one worker."""
    return run_with_faults(warm_workers, tmp_path_factory.mktemp("alone"), [Layout(1, 1)])


def assert_undisturbed(ended: Outcome, alone: Outcome) -> None:
    """Assert that losses, statistics, decisions, weights and moments have the bits of the undisturbed run."""
    assert ended.outcome.status == "completed", (ended.outcome.message, ended.received.errors)
    assert ended.records == alone.records
    assert ended.outcome.digest == alone.outcome.digest
    whole = alone.survivors[0].pieces
    for survivor in ended.survivors:
        assert survivor.code == 0
        assert all(whole[piece] == digest for piece, digest in survivor.pieces.items())
    assert _statistics(ended) == _statistics(alone)


def _statistics(ended: Outcome) -> list[Any]:
    newest = {number: one for (_, number), one in sorted(ended.received.statistics.items())}
    return [newest[number].model_copy(update={"lineage": 0}) for number in sorted(newest)]


def test_the_undisturbed_run_is_what_it_claims(alone: Outcome) -> None:
    assert [record[0] for record in alone.records] == list(range(1, CASE.steps + 1))
    assert [record[5] for record in alone.records] == [0] * 6 + [1] * 4 + [3] * 2
    assert [one.number for one in _statistics(alone)] == [1, 2, 3]
    assert all(one.guard is not None for one in _statistics(alone))


PHASES = ("load", "schedule", "exchange", "norms", "prepared", "vote", "seen", "commit", "update", "committed", "between",
          "evaluate", "freeze", "checkpoint", "finish")  # fmt: skip
ALWAYS = {"exchange", "vote", "seen", "update"}
"""The others run with the widest tables only."""
STEP_OF = {"evaluate": 4, "freeze": 6, "checkpoint": 4, "finish": 12}


def phases(*names: str) -> list[Any]:
    return wide_rows(names, set(names) - ALWAYS)


@pytest.mark.parametrize("phase", phases(*PHASES))
def test_a_member_dies_in_each_phase_on_two_by_two(phase: str, alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    """Every unit has a second owner: nothing is lost, whichever member dies in any phase."""
    faults = [kill(PHASES.index(phase) % 4, STEP_OF.get(phase, 5), phase)]
    ended = run_with_faults(warm_workers, tmp_path, [Layout(2, 2), Layout(3, 1)], faults, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, alone)


@pytest.mark.parametrize("phase", phases("norms", "vote", "commit"))
def test_a_replica_of_three_dies(phase: str, alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    ended = run_with_faults(warm_workers, tmp_path, [Layout(1, 3), Layout(2, 1)], [kill(2, 5, phase)], dying=range(3))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, alone)


NODES = ("a", "b", "c", "d")


@pytest.mark.parametrize("phase", phases("schedule", "prepared", "vote", "seen", "commit", "update", "committed"))
def test_a_stage_that_only_its_buddy_has_comes_back(
    phase: str, alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """(4, 1): no unit has a second owner. Frozen units and moments come back like the others."""
    step = 8 if phase == "seen" else 5
    ended = run_with_faults(
        warm_workers, tmp_path, [Layout(4, 1), Layout(3, 1)], [kill(1, step, phase)], nodes=NODES, dying=range(4)
    )
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, alone)


@pytest.mark.parametrize(
    ("layout", "kind"), [(Layout(2, 2), "late_commit"), (Layout(4, 1), "late_commit"), (Layout(4, 1), "tear")]
)
def test_a_member_that_lost_a_votes_result_or_tore_its_units_goes_on(
    layout: Layout, kind: str, alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """No member dies. The others have committed, so the failed one commits late; its torn pieces come back from others."""
    faults = [{"kind": kind, "step": 5, "worker": 1}, {"kind": kind, "step": 9, "worker": 3}]
    ended = run_with_faults(warm_workers, tmp_path, [layout], faults, nodes=NODES)
    assert [type(one) for one in ended.run.answers] == [GoOn, GoOn]
    assert [one.state.step for one in ended.run.answers if isinstance(one, GoOn)] == [5, 9]
    assert_undisturbed(ended, alone)


IN_CELLS = replace(CASE, cells=(6, 5, 5))
SLICED = [Layout(4, 1, slices=(1, 1, 1)), Layout(3, 1, slices=(1, 2))]


@pytest.fixture(scope="module")
def alone_in_cells(warm_workers: WarmWorkers, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The undisturbed run whose sequences are computed in token cells, on one worker."""
    return run_with_faults(warm_workers, tmp_path_factory.mktemp("cells"), [Layout(1, 1)], case=IN_CELLS)


def test_a_death_between_two_slices_and_a_late_commit_change_no_bit(
    alone_in_cells: Outcome, alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """The stages before the dead one have sent slices; the survivors go on in other slices, of which one member commits late."""
    assert alone_in_cells.outcome.digest != alone.outcome.digest, "cells are numerics"
    faults = [kill(2, 5, "schedule"), {"kind": "late_commit", "step": 9, "worker": 3}]
    ended = run_with_faults(warm_workers, tmp_path, SLICED, faults, IN_CELLS, NODES, dying=range(4))
    assert [one.state.step for one in ended.run.answers if isinstance(one, GoOn)] == [4, 9]
    assert_undisturbed(ended, alone_in_cells)


SECONDS = {
    "while entering": (kill(1, 5, "vote"), kill(2, 4, "reshape")),
    "while reporting": (kill(1, 6, "seen"), kill(0, 5, "recovery")),
    "while finishing the step": (kill(3, 4, "evaluate"), kill(0, 4, "checkpoint")),
}


@pytest.mark.parametrize(("first", "second"), SECONDS.values(), ids=SECONDS)
def test_a_second_member_dies_in_the_recovery(
    first: dict[str, Any], second: dict[str, Any], alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    layouts = [Layout(2, 2), Layout(3, 1), Layout(2, 1)]
    ended = run_with_faults(warm_workers, tmp_path, layouts, [first, second], nodes=NODES, dying=range(4))
    assert all(isinstance(one, GoOn) for one in ended.run.answers)
    assert len(ended.survivors) == 2
    assert_undisturbed(ended, alone)


@pytest.mark.parametrize("phase", ["reshape", "vote"])
def test_a_member_dies_in_a_planned_reshape(phase: str, alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    """The switch is voted for at steps 4 to 6; two stages become four, whose units move."""
    reshape = (Layout(4, 1, workers=(2, 0, 3, 1)), (4, 6))
    # Slow steps, so that all are ready for the plan before the last vote that may switch.
    faults = [kill(1, 4, phase), {"kind": "slow", "step": 1, "worker": 0, "phase": "load", "seconds": 0.2}]
    ended = run_with_faults(
        warm_workers, tmp_path, [Layout(2, 2), Layout(3, 1)], faults, nodes=NODES, reshape=reshape, dying=range(4)
    )
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, alone)


def test_what_nobody_has_comes_back_from_the_checkpoint_with_everything_else(
    alone: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """(4, 1) without buddies: a dead member's stage is lost, so all go back to step 4, in a new lineage."""
    ended = run_with_faults(warm_workers, tmp_path, [Layout(4, 1), Layout(3, 1)], [kill(1, 7, "schedule")], dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoBack]
    assert ended.run.plans[-1].checkpoint_path.endswith("/4")
    assert max(ended.received.records) == (1, CASE.steps)
    assert_undisturbed(ended, alone)
