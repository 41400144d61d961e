"""The end of a run in a worker: what it has learnt is safe before anything else may fail."""

from pathlib import Path

import pytest

from frostline_trainer.checkpoints.reading import is_complete
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations import run_end
from frostline_trainer.generations.run_end import Conclusion
from frostline_trainer.step.due import Ended, LoopEnd
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.run_state import RunState
from tests.unit.trainer.test_saving import Member


def test_a_broken_test_sample_ends_the_process_after_the_last_checkpoint_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(tmp_path)
    complete: list[list[bool]] = []

    def cannot_be_read(generation: object, step: int) -> dict[str, float]:
        complete.append([is_complete(folder) for folder in tmp_path.glob("0/*/*")])
        raise ValueError("7.jpg: no readable image")

    monkeypatch.setattr(run_end, "final_score", cannot_be_read)
    conclusion = Conclusion(
        member.context,
        RunState(step=1),
        member.saving,
        member.events,  # type: ignore[arg-type]
        Mailbox("a/1"),
        tmp_path / "run",
        PhaseClock(),
    )
    with pytest.raises(ValueError, match=r"7\.jpg"):
        conclusion.conclude(member.entered, LoopEnd(Ended.FINISHED))
    member.saving.close()
    assert complete == [[True]]
