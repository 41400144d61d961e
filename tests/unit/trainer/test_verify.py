"""`frostline verify`: what is compared beside the steps, and which machines are refused."""

import json
from pathlib import Path

import pytest

from frostline_trainer import verify


class Recomputed:
    """A replayer of a run with two steps, which finds no difference."""

    def __init__(self, run_dir: Path, job: object) -> None:
        self.records = {step: type("Record", (), {"degrees": {"dp": 1, "pp": 1}}) for step in (1, 2)}
        self.checkpoints: list[object] = []

    def run(self, steps: list[int]) -> list[tuple[int, list[str]]]:
        return [(step, []) for step in steps]

    def final_digest(self) -> str:
        return "abc"


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        ({"status": "completed", "digest": "abc", "steps": 2}, verify.EXIT_EQUAL, "abc  same"),
        ({"status": "completed", "digest": "xyz", "steps": 2}, verify.EXIT_DIFFERENT, "abc  recorded xyz"),
        ({"status": "failed", "digest": "", "steps": 2}, verify.EXIT_EQUAL, "abc  no digest recorded"),
        ({"status": "suspended", "digest": "xyz", "steps": 1}, verify.EXIT_EQUAL, "abc  no digest recorded"),
    ],
)
def test_the_digest_is_compared_where_the_result_has_one_of_the_last_step(
    result: dict, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that failed has none, and the result of a suspend is not of steps after a resume that failed."""
    monkeypatch.setattr(verify, "Replayer", Recomputed)
    monkeypatch.setattr(verify, "load_job", lambda path: None)
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert verify.main([str(tmp_path)]) == code
    assert f"digest        {said}\n" in capsys.readouterr().out
