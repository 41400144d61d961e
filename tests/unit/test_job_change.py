"""A job that changes while its run goes on: live fields are taken, fixed ones refused by name."""

import pytest

from frostline_contract.job import Job, parse_job
from frostline_contract.job.change import take_changes

BASE = {
    "name": "digits",
    "model": {"family": "vit", "config": {"hidden_size": 16}},
    "task": {"kind": "image_classification"},
    "data": {"source": "digits"},
    "training": {"epochs": 2, "batch_size": 64, "micro_batch_size": 8, "reduction_leaves": 8},
}


def job(**sections: dict[str, object]) -> Job:
    return parse_job({**BASE, **{name: {**BASE.get(name, {}), **values} for name, values in sections.items()}})  # type: ignore[dict-item]


def test_the_same_job_says_nothing() -> None:
    assert take_changes(job(), job()) == (job(), [])


def test_a_live_field_is_taken_and_said() -> None:
    merged, said = take_changes(job(), job(placement={"objective": "cost", "workers": 6}))
    assert merged == job(placement={"objective": "cost", "workers": 6})
    assert said == ["changed: placement.workers from 4 to 6", "changed: placement.objective from 'throughput' to 'cost'"]


def test_a_fixed_field_stays_and_is_named_with_both_values_and_a_remedy() -> None:
    merged, said = take_changes(job(), job(training={"batch_size": 128}))
    assert merged == job()
    assert len(said) == 1
    for part in ("refused: training.batch_size", "stays 64", "the release says 128", "install another release"):
        assert part in said[0]


def test_of_a_mixture_the_live_part_is_taken() -> None:
    merged, said = take_changes(job(), job(training={"epochs": 9}, checkpoint={"every_steps": 5}))
    assert merged == job(checkpoint={"every_steps": 5})
    assert [text.split(":")[0] for text in said] == ["refused", "changed"]


def test_lists_are_live_as_a_whole() -> None:
    fault = {"kind": "kill_worker", "worker": 1, "step": 5}
    merged, said = take_changes(job(), parse_job({**BASE, "faults": [fault]}))
    assert [one.kind for one in merged.faults] == ["kill_worker"]
    assert len(said) == 1 and said[0].startswith("changed: faults")


def test_changes_that_make_no_job_together_are_refused_as_a_whole() -> None:
    bad = job(training={"reduction_leaves": 16, "micro_batch_size": 4}, placement={"dp_degree": 16, "workers": 16})
    merged, said = take_changes(job(), bad)
    assert merged == job()
    assert any("placement.dp_degree 16 exceeds training.reduction_leaves 8" in text for text in said)


@pytest.mark.parametrize("field", sorted(Job.model_fields))
def test_every_field_of_a_job_says_whether_it_may_change(field: str) -> None:
    extra = Job.model_fields[field].json_schema_extra
    assert isinstance(extra, dict) and extra["change"] in ("fixed", "live")
