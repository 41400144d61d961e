"""Splits: static shapes, disjoint parts, counts that equal the labels, digests of the content."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer

from frostline_contract.job import Job
from frostline_trainer.data.load import load_data
from frostline_trainer.data.order import BatchOrder
from frostline_trainer.data.split import IGNORED, TaskData, names_of
from tests.unit.trainer.data_cases import csv_of, job_of, squad_of, write

LABEL_KEYS = {"question_answering": ("start_positions", "end_positions")}


def jobs(folder) -> dict[str, Job]:
    text = " ".join(f"word{n % 37} follows word{n % 11}." for n in range(600))
    scores = "\n".join(["text,label", *(f"sentence {n},{n / 7:.3f}" for n in range(40))])
    return {
        "digits": job_of("image_classification", "digits", max_samples=100),
        "csv": job_of("text_classification", "csv", path=csv_of(folder), sequence_length=12, vocabulary_size=100),
        "scores": job_of(
            "text_classification",
            "csv",
            num_labels=1,
            path=write(folder / "s.csv", scores),
            sequence_length=8,
            vocabulary_size=100,
        ),
        "squad": job_of(
            "question_answering", "squad", path=squad_of(folder), sequence_length=32, doc_stride=8, vocabulary_size=200
        ),
        "text": job_of("language_modeling", "text", path=write(folder / "t.txt", text), sequence_length=16, vocabulary_size=300),
    }


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> dict[str, tuple[Job, TaskData]]:
    return {name: (job, load_data(job)) for name, job in jobs(tmp_path_factory.mktemp("data")).items()}


def labels_of(inputs: dict[str, torch.Tensor], kind: str) -> tuple[int, ...]:
    if "label_weights" in inputs:
        return (int(inputs["label_weights"].sum()),)
    return tuple(int((inputs[key] != IGNORED).sum()) for key in LABEL_KEYS.get(kind, ("labels",)))


CASES = ["digits", "csv", "scores", "squad", "text"]


@pytest.mark.parametrize("case", CASES)
def test_shapes_are_static_and_counts_equal_labels(loaded, case: str) -> None:
    job, data = loaded[case]
    for split in (data.train, data.guard, data.test):
        order = BatchOrder(0, len(split), 8)
        shapes = set()
        for step in range(1, order.steps_per_epoch + 1):
            indices = order.indices(step)
            inputs = split.collate(indices, [0] * 8)
            shapes.add(tuple((key, tuple(value.shape), value.dtype) for key, value in inputs.items()))
            assert split.valid_counts(indices) == labels_of(inputs, job.task.kind)
        assert len(shapes) == 1
        assert all(dtype in (torch.float32, torch.int64) for _, _, dtype in shapes.pop())


@pytest.mark.parametrize("case", CASES)
def test_padding_items_count_nothing_and_are_computable(loaded, case: str) -> None:
    job, data = loaded[case]
    inputs = data.train.collate([-1, -1], [0, 0])
    assert set(data.train.valid_counts([-1, -1])) == {0}
    assert set(labels_of(inputs, job.task.kind)) == {0}
    assert all(value.isfinite().all() for value in inputs.values())
    if "attention_mask" in inputs:
        assert inputs["attention_mask"].sum(1).tolist() == [1, 1]
        assert int(inputs["input_ids"].max()) < data.sizes.vocabulary_size


@pytest.mark.parametrize("case", CASES)
def test_a_sample_looks_the_same_wherever_it_stands(loaded, case: str) -> None:
    _, data = loaded[case]
    alone, among = data.train.collate([3], [0]), data.train.collate([5, -1, 3, 0], [0] * 4)
    assert all(torch.equal(alone[key][0], among[key][2]) for key in alone)


@pytest.mark.parametrize("case", CASES)
def test_loading_again_gives_the_same_data(loaded, case: str) -> None:
    job, data = loaded[case]
    again = load_data(job)
    assert again.digest == data.digest
    rows = range(len(data.guard))
    pairs = [(split.collate(rows, [0] * len(rows))) for split in (data.guard, again.guard)]
    assert all(torch.equal(pairs[0][key], pairs[1][key]) for key in pairs[0])


@pytest.mark.parametrize("case", ["digits", "csv", "text"])
def test_splits_are_disjoint_and_follow_the_seed(loaded, case: str) -> None:
    job, data = loaded[case]
    parts = [split._numbers.tolist() for split in (data.train, data.guard, data.test)]
    flat = [number for part in parts for number in part]
    assert len(set(flat)) == len(flat)
    other = load_data(job.model_copy(update={"seed": 1}))
    assert other.digest != data.digest
    assert other.test._numbers.tolist() != parts[2]
    assert len(other.test) == len(parts[2])


@pytest.mark.parametrize("case", CASES)
def test_what_one_name_stands_for_is_the_same_under_any_seed(loaded, case: str) -> None:
    job, data = loaded[case]
    split, other = data.train, load_data(job.model_copy(update={"seed": 1})).train
    mine, theirs = names_of(split), names_of(other)
    if case == "squad":  # windows have no ids of their own
        assert mine.digest == split.digest != theirs.digest
        return
    assert mine.digest == theirs.digest and split.digest != other.digest
    places = [{int(names.numbers[i]): i for i in range(len(one))} for names, one in ((mine, split), (theirs, other))]
    common = sorted(places[0].keys() & places[1].keys())
    assert len(common) >= 5
    pair = [
        one.collate([held[name] for name in common], [0] * len(common)) for one, held in zip((split, other), places, strict=True)
    ]
    assert all(torch.equal(pair[0][key], pair[1][key]) for key in pair[0])


def test_augmented_samples_have_no_name_outside_of_their_split() -> None:
    section = {"mode": "k-variants", "shift_pixels": 1}
    data = load_data(job_of("image_classification", "digits", max_samples=100, augmentation=section))
    assert names_of(data.train).digest == data.train.digest
    assert names_of(data.guard).digest != data.guard.digest


def test_max_samples_leaves_the_test_split_alone() -> None:
    whole, few = (load_data(job_of("image_classification", "digits", max_samples=count)) for count in (None, 50))
    assert (len(few.train), len(few.guard)) == (45, 5)
    assert few.test.digest == whole.test.digest
    assert len(whole.train) + len(whole.guard) + len(whole.test) == 1797


def test_only_training_images_are_augmented_and_the_digest_says_how() -> None:
    plain, varied = (
        load_data(job_of("image_classification", "digits", augmentation=section))
        for section in ({}, {"mode": "k-variants", "shift_pixels": 1})
    )
    rows = list(range(20))
    same = [
        torch.equal(plain.train.collate([i], [0])["pixel_values"], varied.train.collate([i], [0])["pixel_values"]) for i in rows
    ]
    assert not all(same)
    assert plain.train.digest != varied.train.digest
    assert plain.test.digest == varied.test.digest
    assert "4 pinned variants" in varied.augmentation_note


def test_labels_of_language_blocks_are_shifted_and_cross_nothing(loaded) -> None:
    _, data = loaded["text"]
    inputs = data.train.collate([0, 1], [0, 0])
    assert torch.equal(inputs["labels"][:, :-1], inputs["input_ids"][:, 1:])
    assert inputs["labels"][:, -1].tolist() == [IGNORED, IGNORED]


def test_answers_become_token_spans_in_the_windows_that_hold_them(loaded) -> None:
    _, data = loaded["squad"]
    references, tokenizer = data.test.references(), data.processor
    inputs = data.test.collate(range(len(data.test)), [0] * len(data.test))
    held = 0
    for row, question in enumerate(references.question.tolist()):
        answer = references.items[question].answers[0][0]
        first, last = int(inputs["start_positions"][row]), int(inputs["end_positions"][row])
        visible = tokenizer.decode(inputs["input_ids"][row][inputs["context_mask"][row].bool()]).replace(" ", "")
        assert (first == IGNORED) == (last == IGNORED)
        if first == IGNORED:
            assert f"{answer.lower()}." not in visible
            continue
        held += 1
        offsets = references.offsets[row]
        assert references.items[question].context[offsets[first][0] : offsets[last][1]] == answer
        assert inputs["context_mask"][row, first : last + 1].all()
    assert held >= len(references.items)
    assert len(data.test) > len(references.items)


def test_a_digit_has_the_pixels_that_the_saved_processor_gives(tmp_path) -> None:
    data = load_data(job_of("image_classification", "digits"))
    data.processor.save_pretrained(str(tmp_path))
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    raw = (data.test._records.pixels(int(data.test._numbers[0])) * 16).astype(np.uint8)
    processed = processor(raw, return_tensors="pt", input_data_format="channels_first", do_convert_rgb=False)["pixel_values"]
    assert torch.allclose(processed, data.test.collate([0], [0])["pixel_values"], atol=1e-6)


@pytest.mark.parametrize("case", ["csv", "text"])
def test_a_trained_tokenizer_is_saved_and_loaded_alike(loaded, case: str, tmp_path) -> None:
    _, data = loaded[case]
    data.processor.save_pretrained(str(tmp_path))
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "film 3, good word5 follows"
    assert again(text)["input_ids"] == data.processor(text)["input_ids"]
    assert len(again) == data.sizes.vocabulary_size


def test_image_folders_are_read_by_class_and_the_test_tree_may_lack_one(tmp_path) -> None:
    for part, classes in (("train", ("ant", "bee", "cat")), ("test", ("bee", "cat"))):
        for name in classes:
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(10):
                Image.new("RGB", (20, 12), (number, 100, 200)).save(tmp_path / part / name / f"{number}.png")
    paths = {"path": str(tmp_path / "train"), "test_path": str(tmp_path / "test")}
    data = load_data(job_of("image_classification", "image-folder", image_size=16, **paths))
    assert (data.sizes.num_labels, data.sizes.image_size, data.sizes.channels) == (3, 16, 3)
    assert sorted(data.test.references().tolist()) == [1] * 10 + [2] * 10
    inputs = data.test.collate([0], [0])
    assert inputs["pixel_values"].shape == (1, 3, 16, 16)
    assert torch.allclose(inputs["pixel_values"][0, 1], torch.full((16, 16), (100 / 255 - 0.5) / 0.5))


def test_hidden_folders_and_those_without_images_are_no_classes(tmp_path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(10):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    job = job_of("image_classification", "image-folder", image_size=8, path=str(tmp_path))
    before = load_data(job)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "0-checkpoint.png").write_bytes((tmp_path / "ant" / "0.png").read_bytes())
    (tmp_path / "__MACOSX" / "ant").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "ant" / "._0.png").write_bytes(b"resource fork")
    (tmp_path / "aaa").mkdir()
    after = load_data(job)
    assert after.sizes.num_labels == 2 and after.digest == before.digest
