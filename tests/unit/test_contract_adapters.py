"""Which blocks get adapters, in the forms that a job may say it, and what follows for the freeze point."""

import pytest

from frostline_contract.job import Job, JobError, job_digest, parse_job
from frostline_contract.job.adapters import AdaptersSection, blocks_with_adapters

BLOCKS = 8


def job_with(**sections: object) -> Job:
    base = {
        "model": {"family": "bert"},
        "task": {"kind": "text_classification"},
        "data": {"source": "csv"},
        "training": {"steps": 1},
    }
    return parse_job({**base, **{name: {**base.get(name, {}), **values} for name, values in sections.items()}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("said", "blocks"),
    [
        ("all", range(8)),
        ("last 3", (5, 6, 7)),
        ("last half", (4, 5, 6, 7)),
        ("last third", (5, 6, 7)),
        ("last quarter", (6, 7)),
        ("2-4", (2, 3, 4)),
        ([7, 3], (3, 7)),
    ],
)
def test_each_form_names_its_blocks(said: object, blocks: range | tuple[int, ...]) -> None:
    assert blocks_with_adapters(AdaptersSection(blocks=said), BLOCKS) == tuple(blocks)


@pytest.mark.parametrize("said", ["last 9", "7-8", "4-3", [8], [-1]])
def test_blocks_that_the_model_does_not_have_are_refused_with_those_that_it_has(said: object) -> None:
    with pytest.raises(ValueError, match=r"model\.adapters\.blocks is .* and the model has the blocks 0 to 7; write all, last N"):
        blocks_with_adapters(AdaptersSection(blocks=said), BLOCKS)


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        ({"rank": 0}, "model.adapters.rank is 0"),
        ({"alpha": 0}, "model.adapters.alpha is 0"),
        ({"dropout": 1}, "model.adapters.dropout is 1"),
        ({"kind": "prefix"}, "model.adapters.kind is 'prefix'"),
        ({"blocks": "first 3"}, "blocks is 'first 3'; write all, last N, last half"),
        ({"blocks": "last 0"}, "blocks is 'last 0'; write all"),
        ({"blocks": []}, "blocks is []; name at least one block"),
        ({"blocks": [1, 1]}, "blocks is [1, 1]; name at least one block, and each once"),
        ({"targets": [" "]}, "targets holds an empty name; leave targets empty"),
        ({"width": 4}, "model.adapters.width: unknown key"),
    ],
)
def test_a_wrong_value_is_told_with_field_value_and_remedy(adapters: dict[str, object], said: str) -> None:
    with pytest.raises(JobError) as refused:
        job_with(model={"adapters": adapters})
    assert said in str(refused.value)


def test_a_head_of_its_own_is_no_adapter() -> None:
    with pytest.raises(JobError, match=r"untie_on_freeze is true and adapters is given: .*; set it to false"):
        job_with(model={"adapters": {}, "untie_on_freeze": True})


def test_what_lies_before_the_first_adapter_is_frozen_from_step_1_whatever_the_freeze_section_says() -> None:
    adapted = {"adapters": {"blocks": "last third"}}
    assert job_with().lowest_freeze_point(BLOCKS + 2) == 0
    assert job_with(freeze={"initial_units": 2}).initial_freeze_point(BLOCKS + 2) == 2
    for freeze, expected in (({}, 6), ({"initial_units": 2}, 6), ({"initial_units": 8}, 8)):
        job = job_with(model=adapted, freeze=freeze)
        assert (job.lowest_freeze_point(BLOCKS + 2), job.initial_freeze_point(BLOCKS + 2)) == (6, expected)
    off = job_with(model=adapted, freeze={"initial_units": 8}, elastic={"freeze": False})
    assert off.initial_freeze_point(BLOCKS + 2) == 6


def test_a_job_without_adapters_is_the_job_that_it_was() -> None:
    assert (
        job_digest(job_with()) == job_digest(job_with(model={"adapters": None})) != job_digest(job_with(model={"adapters": {}}))
    )
