"""Bits that change silently: they are found, the run goes back to before them, and ends with an undisturbed run's bits."""

from pathlib import Path

import pytest

from tests.e2e.runs import Ended, Workshop, slowed

AUDITED = {"cache": {"shadow_audit_fraction": 1.0}}


def test_a_wrong_cached_value_takes_the_run_back_and_the_cache_off(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    flip = {"kind": "flip", "step": 15, "worker": 0, "what": "cached_value"}
    # Slow steps, in which the cache server admits the boundary and the disk has the checkpoint before the flip.
    ended = workshop.run(tmp_path / "run", {**AUDITED, "faults": [flip, *slowed(11, 0.2, 1)]}, "--workers", "1")
    assert ended.digest == one_worker.digest, "no step that read it is left"
    assert ended.numerics == one_worker.numerics
    (wrong,) = ended.events("wrong_bits")
    assert "cached activations of the train split at boundary" in wrong["reason"]
    assert wrong["step"] == 10, "the checkpoint before the first step that asked the cache"
    again = [record for record in ended.records if record["lineage"] == wrong["lineage"]]
    assert again[0]["step"] == 11
    assert sum(record["cache_hits"] + record["cache_misses"] for record in again) == 0, "the cache is not used any more"
    assert "; the cache is off" in wrong["reason"]


@pytest.mark.parametrize(
    ("what", "pp_degree", "dp_degree"), [pytest.param("weight", 1, 2, marks=pytest.mark.wide), ("moment", 1, 3), ("weight", 2, 1)]
)
def test_a_bit_that_flips_in_one_copy_takes_the_run_back(
    what: str, pp_degree: int, dp_degree: int, one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """With one replica the second copy is the buddy's."""
    workers = pp_degree * dp_degree
    flip = {"kind": "flip", "step": 17, "worker": 1, "what": what}
    changes = {
        # Slow steps between the last good checkpoint and the next, so that a slow disk has it by then.
        "faults": [flip, *slowed(17, 0.25, workers)],
        "checkpoint": {"every_steps": 8},
        "placement": {"pp_degree": pp_degree, "dp_degree": dp_degree, "reshape_every_freeze": False},
    }
    ended = workshop.run(tmp_path / "run", changes, "--workers", str(workers))
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    (wrong,) = ended.events("wrong_bits")
    assert wrong["step"] == 16, "the last checkpoint at which all copies were equal"
    assert "the copies of unit" in wrong["reason"]
    fault = ended.fault(0)
    if workers > 2:
        assert wrong["detail"]["workers"] == fault["worker_ids"], "who differs from all others is named, and replaced"
        assert "holders" not in wrong["detail"]
    else:
        assert wrong["detail"]["workers"] == []
        holders = wrong["detail"]["holders"]
        assert sorted(one["pod"] for one in holders) == ["trainer-0", "trainer-1"]
        assert fault["worker_ids"][0] in [one["worker"] for one in holders]
        assert all(f"{one['pod']} is on node {one['node']}, device cpu" in wrong["reason"] for one in holders)
        assert wrong["reason"].startswith("one of: ")
