"""A worker's side of checkpoints: its copies, when a freeze may go on, and the checkpoint that a rollback returns to."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from frostline_contract.plan import Decision, GenerationId, Plan
from frostline_trainer.checkpoints import saving as saving_module
from frostline_trainer.checkpoints.last_files import agree_written, save_final_model
from frostline_trainer.checkpoints.reading import complete_checkpoints, is_complete, read_manifest
from frostline_trainer.checkpoints.saving import Saving
from frostline_trainer.checkpoints.writing import POLL_SECONDS
from frostline_trainer.generations.between_steps import BetweenSteps
from frostline_trainer.generations.entering import Entered
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.replication.wrong_bits import CheckpointMissing
from frostline_trainer.step.due import CheckpointDue
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from tests.engine_member import EventList, Run, train_step
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout

CASE = Case("vit", freezing=(), steps=4)


class Member:
    """One worker alone in a generation, with its checkpoints under `root`."""

    def __init__(self, root: Path, run_epoch: int = 0, before: object = None) -> None:
        self.root, self.context, self.events = root, build_case(CASE), EventList()
        self.fenced: list[int] = []
        arguments = {"before": before} if before else {}
        self.saving = Saving(self.context, root, self.events, self.fenced.append, **arguments)  # type: ignore[arg-type]
        placement = Layout(1, 1).placement(0)
        self.plan = Plan(
            generation=GenerationId(incarnation=1, counter=3), lineage=0, start="fresh", freeze_point=0, placement=placement,
            run_epoch=run_epoch,
        )  # fmt: skip
        self.generation = Generation(self.context, self.plan, 0, lone_groups(), 0, lambda name: None)
        self.entered = Entered(self.plan, 0, self.generation, None)

    def train(self, step: int) -> list[torch.Tensor]:
        train_step(self.generation, CASE, step, Run())
        return weights(self.context.cut.units[2])

    def checkpoint(self, state: RunState, before_freeze: bool = False) -> Path:
        return self.saving.checkpoint(self.entered, state, before_freeze)


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path)
    yield made
    made.saving.close()


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def freeze_after(step: int, lineage: int) -> Decision:
    return Decision(number=1, interval=1, effective_step=step + 1, freeze_point=1, lineage=lineage, kind="freeze")


def test_a_step_redone_after_a_rollback_has_a_checkpoint_of_its_own(member: Member) -> None:
    folders, weights_at = [], []
    for lineage, step in ((0, 1), (1, 2)):
        weights_at.append(member.train(step))
        state = RunState(lineage=lineage, step=2)
        folders.append(member.checkpoint(state))
        assert member.checkpoint(state, before_freeze=True) == folders[-1], "taken once"
    member.saving.stable()
    member.saving._writer.finish()
    member.train(3)
    restored = member.saving.restore(member.entered, 2, RunState(lineage=1, step=3))
    member.saving.finish()
    assert [manifest["lineage"] for _, manifest in complete_checkpoints(member.root)] == [0, 1]
    assert folders[0] != folders[1] and folders[0].name == folders[1].name == "2"
    assert restored.lineage == 1 and same(weights(member.context.cut.units[2]), weights_at[1])
    assert not same(weights_at[0], weights_at[1])


def test_a_rollback_waits_for_the_checkpoint_of_its_own_history(member: Member) -> None:
    """Step 2 of lineage 0 was undone; the freeze after step 2 of lineage 1 is rolled back before its checkpoint is published."""
    member.train(1)
    member.checkpoint(RunState(lineage=0, step=2))
    member.saving.stable()
    member.saving.finish()
    wanted = member.train(2)
    state = RunState(lineage=1, step=2, decisions=[freeze_after(2, lineage=1)])
    member.checkpoint(state, before_freeze=True)
    member.train(3)
    later = threading.Timer(0.3, member.saving.stable)
    later.start()
    restored = member.saving.restore(member.entered, 2, RunState(lineage=1, step=3, decisions=state.decisions))
    later.join()
    assert restored.lineage == 1
    assert same(weights(member.context.cut.units[2]), wanted)


def test_a_rollback_takes_nothing_of_a_later_lineage(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    member.checkpoint(RunState(lineage=4, step=2))
    member.saving.stable()
    member.saving.finish()
    monkeypatch.setattr(saving_module, "RESTORE_WAIT_SECONDS", 0.1)
    with pytest.raises(CheckpointMissing, match="no complete checkpoint of step 2") as missing:
        member.saving.restore(member.entered, 2, RunState(lineage=3, step=3))
    assert missing.value.first_step == 3, "what was computed from the freeze on is not used"


def test_a_checkpoint_that_a_late_freeze_finds_taken_is_known_as_the_one_before_it(member: Member) -> None:
    folder = member.checkpoint(RunState(step=2))
    assert member.checkpoint(RunState(step=2), before_freeze=True) == folder
    member.saving.stable()
    member.saving.finish()
    assert read_manifest(folder)["before_freeze"] is True


def test_at_the_end_nothing_unfinished_is_left(member: Member) -> None:
    """The generation before may still be publishing, until the run's last checkpoint is there."""
    base = GenerationId(incarnation=1, counter=2)
    member.entered.plan = member.plan.model_copy(update={"base": base, "start": "continue"})
    left = member.root / "0" / "1.2" / "1"
    left.mkdir(parents=True)
    (left / "unit-000.safetensors.partial").write_text("half")
    folder = member.checkpoint(RunState(step=2))
    member.saving.stable()
    member.saving._writer.finish()
    assert is_complete(folder) and left.exists()
    member.saving.finish()
    assert not left.exists()


def test_a_freeze_goes_on_when_the_share_that_it_may_need_is_on_disk(tmp_path: Path) -> None:
    release = threading.Event()
    member = Member(tmp_path, before=lambda operation, step: release.wait(20))
    folder = member.checkpoint(RunState(step=1))
    assert not folder.exists(), "an ordinary one is written in the background"
    threading.Timer(0.2, release.set).start()
    member.checkpoint(RunState(step=1), before_freeze=True)
    assert release.is_set()
    assert len(list(folder.glob("unit-*.sha256"))) == member.context.num_units
    member.saving.stable()
    member.saving.close()


def test_a_freeze_that_waits_for_a_slow_disk_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First for an older share, since no more copies may wait, then for its own; each wait has its limit."""
    monkeypatch.setattr(saving_module, "UNWRITTEN_BYTES", 0)
    monkeypatch.setattr(saving_module, "SHARE_WAIT_SECONDS", 3.0)
    disk, moves = threading.Event(), list[float]()
    member = Member(tmp_path, before=lambda operation, step: disk.wait(60))
    member.generation.moved = lambda: moves.append(time.monotonic())
    for step in (1, 2):
        member.checkpoint(RunState(step=step))
    assert moves == [], "an ordinary one waits for nothing"
    started = time.monotonic()
    member.checkpoint(RunState(step=3), before_freeze=True)
    waited = time.monotonic() - started
    disk.set()
    member.saving.stable()
    member.saving.close()
    assert waited >= 6.0 and min(moves) < started + 3.0 < max(moves) - 0.5, "a sign of life in both waits"


def test_checkpoints_lie_under_the_plans_epoch_and_a_fenced_world_hears_of_it(tmp_path: Path) -> None:
    member = Member(tmp_path)
    folder = member.checkpoint(RunState(step=1))
    assert folder == tmp_path / "0" / "1.3" / "1"
    (tmp_path / "epochs").mkdir()
    (tmp_path / "epochs" / "1.json").write_text('{"version": 1, "run_epoch": 1, "from": "", "plan": "2.9"}')
    member.saving.stable()
    member.saving.close()
    assert member.fenced == [1] and not is_complete(folder) and member.events.events == []
    other = Member(tmp_path, run_epoch=1)
    folder = other.checkpoint(RunState(step=1))
    other.saving.stable()
    other.saving.close()
    assert folder == tmp_path / "1" / "1.3" / "1" and is_complete(folder)
    assert complete_checkpoints(tmp_path)[-1][1]["run_epoch"] == 1


def test_who_met_a_later_epoch_publishes_in_it_as_anybody(tmp_path: Path) -> None:
    """A fenced member goes on in the new epoch: there it waits for a later vote and for others' shares, like a newcomer."""
    member = Member(tmp_path)
    member.checkpoint(RunState(step=1))
    (tmp_path / "epochs").mkdir()
    (tmp_path / "epochs" / "1.json").write_text('{"version": 1, "run_epoch": 1, "from": "", "plan": "2.9"}')
    member.saving.stable()
    member.saving._writer.finish()
    assert member.fenced == [1]
    member.entered = replace(member.entered, plan=member.plan.model_copy(update={"run_epoch": 1}))
    folder = member.checkpoint(RunState(step=2))
    assert member.saving.wait_for_share(folder) == ""
    time.sleep(3 * POLL_SECONDS)
    assert not is_complete(folder), "its vote has not passed yet"
    member.saving.stable()
    member.saving.close()
    assert is_complete(folder) and member.fenced == [1]


def test_trouble_with_the_disk_is_one_event(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("a file where a folder should be")
    member = Member(tmp_path)
    folder = tmp_path
    for step in (1, 2, 3):
        folder = member.checkpoint(RunState(step=step))
        assert "Not a directory" in member.saving.wait_for_share(folder)
    member.saving.close()
    assert [(event.kind, event.step) for event in member.events.events] == [("checkpoint_failed", 1)]
    assert "training goes on, free some space" in member.events.events[0].reason
    assert agree_written(member.generation, "no room") == "no room"
    assert agree_written(member.generation, "") == ""


def test_who_waits_for_a_slow_disk_says_that_the_writer_comes_further(tmp_path: Path) -> None:
    member = Member(tmp_path, before=lambda operation, step: time.sleep(0.3 if operation == "sync" else 0.0))
    moves: list[int] = []
    folder = member.checkpoint(RunState(step=1))
    assert member.saving.wait_for_share(folder, lambda: moves.append(1)) == ""
    assert len(moves) >= member.context.num_units, "every unit's file takes longer than the time between two looks"
    member.saving.stable()
    member.saving.close()


def test_a_model_appears_whole_or_not_at_all(member: Member) -> None:
    folder = member.checkpoint(RunState(step=1))
    member.saving.stable()
    member.saving.finish()
    target = member.root / "model"
    left = member.root / ".model.partial"
    left.mkdir()
    (left / "model.safetensors").write_text("half of one, by a writer that was killed")
    moves: list[int] = []
    assert save_final_model(member.context, folder, target, lambda: moves.append(1)) == ""
    assert len(moves) > member.context.num_units, "each unit and each file is a sign of life"
    names = {path.name for path in target.iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    (target / "old").write_text("of an earlier end of this run")
    assert save_final_model(member.context, folder, target) == ""
    assert {path.name for path in target.iterdir()} == names
    assert [path.name for path in member.root.glob(".model*")] == []
    (member.root / "file").write_text("")
    assert "exists" in save_final_model(member.context, folder, member.root / "file" / "model")


@pytest.mark.parametrize(("bound", "kept"), [(0, 2), (1 << 30, 5)])
def test_copies_do_not_queue_without_bound_before_a_slow_disk(
    bound: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shares at most, or as many as the bound holds; a checkpoint that is left out is left out by all, and reported once."""
    monkeypatch.setattr(saving_module, "UNWRITTEN_BYTES", bound)
    disk = threading.Event()
    member = Member(tmp_path, before=lambda operation, step: disk.wait(30))
    between = BetweenSteps(
        member.context,
        state := RunState(),
        *[None] * 2,
        member.events,
        member.saving,
        *[None] * 3,  # type: ignore[arg-type]
    )
    for state.step in range(1, 6):
        member.train(state.step)
        between.do(member.entered, CheckpointDue())
    assert sum(not snapshot.written.is_set() for snapshot in member.saving._unwritten) == kept
    reported = [event.reason for event in member.events.events if event.kind == "checkpoint_failed"]
    assert len(reported) == (kept < 5) and all("the disk is slower" in reason for reason in reported)
    disk.set()
    member.saving.stable()
    member.saving.finish()
    between.do(member.entered, CheckpointDue(before_freeze=True))
    member.saving.stable()
    member.saving.close()
    assert len(complete_checkpoints(member.root)) > 0 and not member.saving.is_behind(member.entered)
