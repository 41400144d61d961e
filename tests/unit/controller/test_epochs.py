"""The epoch object: raised once, closed once, and the checkpoints that readers take for the run's own."""

import json
import multiprocessing
from pathlib import Path

import pytest

from frostline_contract.epochs import FoundCheckpoint, RunEpoch, checkpoint_path, newest, parse_epochs, surviving
from frostline_contract.lineage import RESTORE, ROLLBACK, LineageStart
from frostline_contract.plan import GenerationId, Placement, Plan
from frostline_controller.cluster.backend import Conflict
from frostline_controller.run.checkpoints import newest_checkpoint, surviving_checkpoints
from frostline_controller.run.epochs import claim_result, current_epoch, raise_epoch, reopen

PLACEMENT = Placement(pp_degree=1, dp_degree=1, stage_bounds=(0, 2), leaf_bounds=(0, 1), workers=("a",))


def plan(run_epoch: int, counter: int, start_from: str = "", incarnation: int = 1) -> Plan:
    return Plan(
        generation=GenerationId(incarnation=incarnation, counter=counter), lineage=1, placement=PLACEMENT, freeze_point=0,
        start="checkpoint" if start_from else "fresh", checkpoint_path=start_from, run_epoch=run_epoch,
    )  # fmt: skip


def publish(root: Path, path: str, lineage: int) -> None:
    (root / path).mkdir(parents=True)
    (root / path / "manifest.json").write_text(json.dumps({"lineage": lineage, "step": int(Path(path).name)}))


def test_a_root_without_an_epoch_object_is_in_epoch_0(tmp_path: Path) -> None:
    assert current_epoch(tmp_path) == RunEpoch()
    assert newest_checkpoint(tmp_path) is None


def test_a_raise_can_be_repeated_and_says_where_the_epoch_began(tmp_path: Path) -> None:
    publish(tmp_path, "0/1.1/40", 0)
    begun = raise_epoch(tmp_path, plan(1, 5, "0/1.1/40"))
    assert raise_epoch(tmp_path, plan(1, 5, "0/1.1/40")) == begun == current_epoch(tmp_path)
    assert json.loads((tmp_path / "epochs/1.json").read_text()) == {
        "version": 1, "run_epoch": 1, "from": "0/1.1/40", "plan": "1.5", "result": None,
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "epochs").iterdir()] == ["1.json"], "nothing is left of the making"


@pytest.mark.parametrize("wrong", [plan(1, 6), plan(1, 5, incarnation=2), plan(0, 7), plan(3, 7)])
def test_an_epoch_that_another_plan_began_or_that_is_not_the_next_one_is_refused(tmp_path: Path, wrong: Plan) -> None:
    raise_epoch(tmp_path, plan(1, 5))
    with pytest.raises(Conflict, match=r"it is 1, begun by '1\.5'"):
        raise_epoch(tmp_path, wrong)


def test_a_reader_takes_the_newest_of_the_current_epoch_else_exactly_where_it_began(tmp_path: Path) -> None:
    publish(tmp_path, "0/1.1/20", 0)
    publish(tmp_path, "0/1.1/40", 0)
    raise_epoch(tmp_path, plan(1, 5, "0/1.1/40"))
    publish(tmp_path, "0/1.1/60", 0)  # a world that has not received the new epoch
    publish(tmp_path, "0/1.9/80", 7)
    found = newest_checkpoint(tmp_path)
    assert found is not None and (found.path, found.step) == ("0/1.1/40", 40)
    publish(tmp_path, "1/1.5/50", 1)
    publish(tmp_path, "1/1.5/48", 1)
    found = newest_checkpoint(tmp_path)
    assert found is not None and found.path == "1/1.5/50"
    assert [one.path for one in surviving_checkpoints(tmp_path)] == ["0/1.1/20", "0/1.1/40", "1/1.5/48", "1/1.5/50"]


def test_a_checkpoint_that_a_restore_has_undone_is_not_gone_back_to(tmp_path: Path) -> None:
    """The checkpoint of step 26 is complete only after the run has gone back to step 25 (chaos, seed 1127256)."""
    for step in (20, 25, 26):
        publish(tmp_path, f"0/1.1/{step}", 0)
    restored = [LineageStart(lineage=0, starts_at_step=0), LineageStart(lineage=1, starts_at_step=25, kind=RESTORE)]

    def step_of(*lineages: LineageStart) -> int:
        found = newest_checkpoint(tmp_path, lineages)
        assert found is not None
        return found.step

    assert (step_of(), step_of(restored[0]), step_of(*restored)) == (26, 26, 25)
    rolled_back = restored[1].model_copy(update={"kind": ROLLBACK})
    assert step_of(restored[0], rolled_back) == 26, "the steps have happened, and the guard takes them back once more"
    publish(tmp_path, "0/1.2/27", 1)
    assert step_of(*restored) == 27


def test_where_only_undone_checkpoints_are_left_the_run_is_not_lost(tmp_path: Path) -> None:
    publish(tmp_path, "0/1.1/26", 0)
    starts = [LineageStart(lineage=1, starts_at_step=step, kind=RESTORE) for step in (25, 0)]
    found = newest_checkpoint(tmp_path, starts[:1])
    assert found is not None and found.step == 26, "that of step 25 has been removed"
    assert newest_checkpoint(tmp_path, starts[1:]) is None, "the run began again, and needs none"


def test_what_an_epoch_began_from_is_never_replaced_by_something_else(tmp_path: Path) -> None:
    publish(tmp_path, "0/1.1/20", 0)
    raise_epoch(tmp_path, plan(1, 5, "0/1.1/40"))
    with pytest.raises(ValueError, match=r"began from checkpoint 0/1\.1/40, which is gone"):
        newest_checkpoint(tmp_path)
    raise_epoch(tmp_path, plan(2, 6))
    assert newest_checkpoint(tmp_path) is None, "an epoch that began from the initial weights has no older checkpoint"


def test_each_later_epoch_cuts_what_the_earlier_ones_wrote() -> None:
    versions = [RunEpoch()]
    versions.append(versions[-1].raised(1, "0/1.1/40", "1.5"))
    versions.append(versions[-1].raised(2, "0/1.1/20", "1.9"))
    written = ((0, 0, 10), (0, 0, 20), (0, 0, 30), (0, 0, 40), (1, 1, 45), (2, 2, 25), (3, 9, 99))
    found = [
        FoundCheckpoint(path=checkpoint_path(epoch, "1.1", step), lineage=lineage, step=step) for epoch, lineage, step in written
    ]
    found.append(FoundCheckpoint(path="elsewhere/1.1/5", lineage=0, step=5))
    assert [one.path for one in surviving(versions, found)] == ["0/1.1/10", "0/1.1/20", "2/1.1/25"]
    assert newest(versions[:2], found) == found[4]


def test_a_result_is_claimed_once_and_only_in_the_epoch_that_goes_on(tmp_path: Path) -> None:
    first = {"status": "completed", "digest": "aa"}
    assert claim_result(tmp_path, 0, first) == first
    assert claim_result(tmp_path, 0, {"status": "failed"}) == first, "the first one stands"
    with pytest.raises(Conflict, match="the run has ended"):
        raise_epoch(tmp_path, plan(1, 5))
    reopen(tmp_path, 0)
    reopen(tmp_path, 0)
    raise_epoch(tmp_path, plan(1, 5))
    for late in (lambda: claim_result(tmp_path, 0, first), lambda: reopen(tmp_path, 0)):
        with pytest.raises(Conflict, match="it is 1"):
            late()
    assert claim_result(tmp_path, 1, {"status": "failed"}) == {"status": "failed"}
    assert [version.run_epoch for version in parse_epochs(read_files(tmp_path))] == [0, 0, 0, 1, 1]


def read_files(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (root / "epochs").iterdir()}


def test_a_damaged_epoch_object_is_named_and_strangers_are_passed_over(tmp_path: Path) -> None:
    raise_epoch(tmp_path, plan(1, 5))
    (tmp_path / "epochs/notes.txt").write_text("mine")
    (tmp_path / "epochs/.2.abc").write_text("a raise that was killed")
    assert current_epoch(tmp_path).run_epoch == 1
    (tmp_path / "epochs/2.json").write_text('{"version": 1}')
    with pytest.raises(ValueError, match=r"2\.json says that it is version 1"):
        current_epoch(tmp_path)
    (tmp_path / "epochs/2.json").write_text('{"version": 2')
    with pytest.raises(ValueError, match=r"2\.json is damaged"):
        current_epoch(tmp_path)


def contend(root: str, number: int, start: object, answers: object) -> None:
    """Run as one of several processes that all change the same object: half raise the epoch, half claim the run's result."""
    start.wait()  # type: ignore[attr-defined]
    try:
        if number % 2:
            raise_epoch(Path(root), plan(1, number))
        elif claim_result(Path(root), 0, {"by": number}) != {"by": number}:
            raise Conflict("another result stands")
        answers.put(number)  # type: ignore[attr-defined]
    except Conflict:
        answers.put(-1)  # type: ignore[attr-defined]


def test_of_many_that_raise_and_claim_at_once_exactly_one_changes_the_object(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for turn in range(5):
        root, start, answers = tmp_path / str(turn), context.Event(), context.Queue()
        processes = [context.Process(target=contend, args=(str(root), number, start, answers)) for number in range(6)]
        for process in processes:
            process.start()
        start.set()
        reported = sorted(answers.get(timeout=60) for _ in processes)
        for process in processes:
            process.join(60)
        winner = reported[-1]
        assert reported[:-1] == [-1] * 5
        stands = current_epoch(root)
        assert stands.version == 1
        assert (stands.plan == f"1.{winner}") if winner % 2 else (stands.result == {"by": winner})
