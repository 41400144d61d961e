"""Placement changes no bit (PROTOCOLS 1): one digest and one list of losses, whoever computes and whatever befalls them."""

from pathlib import Path

from tests.e2e.runs import Ended, Workshop


def test_one(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    print(one_worker.output, one_worker.shapes, one_worker.result["wall_seconds"])
    assert one_worker.code == 0
