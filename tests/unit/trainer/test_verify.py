"""`frostline verify`: what is compared beside the steps, and which machines are refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frostline_contract.run_directory import RunDirectory
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


HERE, THERE = {"dataset_digest": "d1", "probe_digest": "p1"}, {"dataset_digest": "d1", "probe_digest": "p2"}


def refuse(tmp_path: Path, newest: dict, settings: dict, numerics: str = "exact") -> None:
    """Compare a machine of digests HERE, a `this CPU`, with a run's newest manifest and its result's settings."""
    context: Any = SimpleNamespace(
        data=SimpleNamespace(digest="d1"),
        probe_digest="p1",
        probe_detail="this CPU",
        job=SimpleNamespace(training=SimpleNamespace(numerics=numerics)),
    )
    (tmp_path / "result.json").write_text(json.dumps({"settings": settings}))
    verify.refuse_unlike(context, newest, RunDirectory(tmp_path))


def test_another_kind_of_machine_is_refused_and_both_are_named(tmp_path: Path) -> None:
    for newest in (THERE, {}):
        with pytest.raises(ValueError, match=r"probe digest is p1 \(this CPU\), this run's is p2 \(that GPU\)"):
            refuse(tmp_path, newest, THERE | {"probe_detail": "that GPU"})
    with pytest.raises(ValueError, match="its machine is not recorded"):
        refuse(tmp_path, THERE, HERE | {"probe_detail": "this CPU"})
    with pytest.raises(ValueError, match="dataset_digest is d1, this run's is d2"):
        refuse(tmp_path, HERE | {"dataset_digest": "d2"}, {})


def test_a_like_machine_is_taken_and_one_whose_other_bits_were_accepted(tmp_path: Path) -> None:
    refuse(tmp_path, HERE, HERE)
    refuse(tmp_path, {}, {})
    refuse(tmp_path, HERE, THERE)
    with pytest.raises(ValueError, match="probe digest"):
        refuse(tmp_path, THERE, HERE)
    refuse(tmp_path, THERE, THERE, numerics="fast")


def test_the_replayer_refuses_before_it_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[dict] = []

    def refuse_it(context: object, newest: dict, run: RunDirectory) -> None:
        refused.append(newest)
        raise ValueError("another machine")

    context = SimpleNamespace(order=lambda epoch: SimpleNamespace(steps_per_epoch=4))
    job = SimpleNamespace(
        training=SimpleNamespace(batch="global"),
        interval_steps=lambda epoch: 8,
        decisions=SimpleNamespace(lag_steps=3),
        total_steps=lambda epoch: 8,
        checkpoint_root=lambda run_dir: run_dir / "checkpoints",
    )
    monkeypatch.setattr(verify, "build_context", lambda job: context)
    monkeypatch.setattr(verify, "surviving_records", lambda run_dir: ({1: SimpleNamespace(degrees={})}, None))
    monkeypatch.setattr(verify, "complete_checkpoints", lambda root: [(root / "0/1.1/1", THERE)])
    monkeypatch.setattr(verify, "load_job", lambda path: job)
    monkeypatch.setattr(verify, "refuse_unlike", refuse_it)
    assert verify.main([str(tmp_path)]) == verify.EXIT_USER
    assert refused == [THERE]
