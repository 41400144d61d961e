"""Bad input: each case ends in one line that names place, value and remedy."""

import json
from pathlib import Path

import pytest
from PIL import Image

from frostline_contract.job import Job
from frostline_trainer.data.decoder import Wanted, decode
from frostline_trainer.data.load import load_data
from frostline_trainer.data.sources import source_named
from tests.unit.trainer.data_cases import csv_of, job_of, squad_of, write


def refusal(job: Job) -> str:
    with pytest.raises(ValueError) as caught:
        load_data(job)
    text = str(caught.value)
    assert "\n" not in text
    return text


TEXT = "text_classification"
HEADER = "text,label\n"
GOOD = "".join(f"film {n},{n % 2}\n" for n in range(40))

CSV_CASES = {
    "empty file": ("", {}, ["bad.csv: is empty", "at least one record"]),
    "header alone": (HEADER, {}, ["has a header and no rows"]),
    "too many fields": (HEADER + GOOD + "a, b,1\n", {}, ["bad.csv:42: 3 fields, the header has 2", "quote"]),
    "too few fields": (HEADER + "a\n" + GOOD, {}, ["bad.csv:2: 1 fields, the header has 2"]),
    "open quotation mark": (HEADER + GOOD + '"a,1\nb,0\n', {}, ["bad.csv:42: malformed row", "quote or correct"]),
    "after a line break": (HEADER + '"a\n\nb",0\nc\n' + GOOD, {}, ["bad.csv:5: 1 fields, the header has 2"]),
    "label after a line break": (HEADER + '"a\nb",0\nc,x\n' + GOOD, {}, ["bad.csv:4: label 'x' is no integer"]),
    "label a word": (HEADER + "fine,good\n" + GOOD, {}, ["bad.csv:2: label 'good' is no integer", "number the classes from 0"]),
    "label a fraction": (HEADER + GOOD + "fine,1.5\n", {}, ["bad.csv:42: label '1.5' is no integer"]),
    "label missing": (HEADER + GOOD + "fine,\n", {}, ["bad.csv:42: label '' is no integer"]),
    "label of two signs": (HEADER + GOOD + "fine,--5\n", {}, ["bad.csv:42: label '--5' is no integer"]),
    "label a raised digit": (HEADER + GOOD + "fine,\u00b2\n", {}, ["bad.csv:42: label '\u00b2' is no integer"]),
    "label of many digits": (
        HEADER + GOOD + f"fine,{'9' * 5000}\n",
        {},
        ["bad.csv:42: label 99999999999999999999 has more than 18 digits"],
    ),
    "label negative": (HEADER + GOOD + "fine,-1\n", {}, ["bad.csv:42: label -1 is outside 0..1", "number the classes from 0"]),
    "label too large": (
        HEADER + GOOD + "x,2\n",
        {"num_labels": 2},
        ["bad.csv:42: label 2 is outside 0..1", "raise task.num_labels"],
    ),
    "one class": (HEADER + "a,0\n" * 20, {}, ["bad.csv:2: all 20 labels are 0", "at least 2 classes"]),
    "score a word": (HEADER + "a,nan\n" * 20, {"num_labels": 1}, ["bad.csv:2: label 'nan' is no finite number"]),
    "text missing": (HEADER + GOOD + ",1\n", {}, ["bad.csv:42: text is ''", "remove the row"]),
    "text of spaces, alone": ("text\n" + "a\n" * 9 + "  \n", {"columns": {"label": "text"}}, ["bad.csv:11: text is '  '"]),
    "column missing": ("sentence,label\n" + GOOD, {}, ["has no column 'text' (columns: sentence, label)", "data.columns"]),
    "column twice": ("text,text\n" + GOOD, {}, ["bad.csv:1: the header names a column twice"]),
    "unknown role": (HEADER + GOOD, {"columns": {"texts": "text"}}, ["data.columns.texts: unknown", "text_pair"]),
    "no guard": (HEADER + "a,0\nb,1\nc,0\n", {}, ["the guard split is empty: 2 training samples", "guard_fraction"]),
    "no test": (HEADER + "a,0\nb,1\n", {}, ["the test split is empty: 2 samples x data.test_fraction 0.2", "data.test_path"]),
}


@pytest.mark.parametrize("case", CSV_CASES)
def test_csv(tmp_path: Path, case: str) -> None:
    content, fields, words = CSV_CASES[case]
    text = refusal(job_of(TEXT, "csv", path=write(tmp_path / "bad.csv", content), **fields))
    assert [word for word in words if word not in text] == []


JSONL_CASES = {
    "no JSON": ('{"text": "a", "label": 0}\n{"text": \n', ["bad.jsonl:2: no valid JSON", "correct the row"]),
    "no object": ('{"text": "a", "label": 0}\n[1]\n', ["bad.jsonl:2: holds a JSON list"]),
    "key missing": ('{"text": "a", "label": 0}\n{"text": "b"}\n', ["bad.jsonl:2: lacks 'label'"]),
    "label true": ('{"text": "a", "label": true}\n{"text": "b", "label": false}\n', ["bad.jsonl:1: label True is no integer"]),
    "text a number": ('{"text": 1, "label": 0}\n', ["bad.jsonl:1: text is 1"]),
    "changing type": (
        '{"text": "a", "label": 0}\n{"text": {"x": 1}, "label": 0}\n',
        ["bad.jsonl:2: text is {"],
    ),
    "label a fraction": ('{"text": "a", "label": 0}\n{"text": "b", "label": 1.5}\n', ["bad.jsonl:2: label 1.5 is no integer"]),
    "key twice": ('{"text": "a", "label": 0, "label": 1}\n', ["bad.jsonl:1: names 'label' twice"]),
    "half a character": (
        '{"text": "a", "label": 0}\n{"text": "cut \\ud83d", "label": 1}\n',
        ["bad.jsonl:2: text: holds '\\ud83d', half a character, at 4"],
    ),
}


@pytest.mark.parametrize("case", JSONL_CASES)
def test_jsonl(tmp_path: Path, case: str) -> None:
    content, words = JSONL_CASES[case]
    text = refusal(job_of(TEXT, "jsonl", path=write(tmp_path / "bad.jsonl", content)))
    assert [word for word in words if word not in text] == []


def paragraph(**changes) -> dict:
    answers = [{"text": "Rome", "answer_start": 9}]
    question = {"id": "q1", "question": "Where?", "answers": answers, **changes}
    return {"data": [{"paragraphs": [{"context": "Bob is in Rome.", "qas": [question]}]}]}


SQUAD_CASES = {
    "no JSON": ("{", ["bad.json:1: no valid JSON"]),
    "no data": ({"version": "1.1"}, ["bad.json: lacks 'data'"]),
    "no questions": ({"data": []}, ["holds no questions"]),
    "no context": ({"data": [{"paragraphs": [{"qas": []}]}]}, ["data[0].paragraphs[0]: lacks 'context'"]),
    "wrong start": (paragraph(), ["qas[0] (id q1): answer_start 9 points at ' Rom', the answer says 'Rome'"]),
    "start a word": (paragraph(answers=[{"text": "Rome", "answer_start": "10"}]), ["answer_start: is str, expected int"]),
    "negative start": (paragraph(answers=[{"text": ".", "answer_start": -1}]), ["answer_start -1 points at ''"]),
    "no answers": (paragraph(answers=[]), ["qas[0] (id q1): has no answers"]),
    "half a character": (paragraph(question="Where \ud83d?"), ["qas[0].question: holds '\\ud83d', half a character, at 6"]),
    "version 2": (paragraph(is_impossible=True), ["is_impossible is a field of SQuAD v2"]),
}


@pytest.mark.parametrize("case", SQUAD_CASES)
def test_squad(tmp_path: Path, case: str) -> None:
    content, words = SQUAD_CASES[case]
    file = write(tmp_path / "bad.json", content if isinstance(content, str) else json.dumps(content))
    text = refusal(job_of("question_answering", "squad", path=file))
    assert [word for word in words if word not in text] == []


def test_squad_ids_are_unique(tmp_path: Path) -> None:
    content = json.loads(Path(squad_of(tmp_path)).read_text())
    content["data"][0]["paragraphs"][1]["qas"][0]["id"] = "q0"
    assert "question id 'q0' occurs twice" in refusal(
        job_of("question_answering", "squad", path=write(tmp_path / "b.json", json.dumps(content)))
    )


def test_squad_windows_must_advance(tmp_path: Path) -> None:
    job = job_of("question_answering", "squad", path=squad_of(tmp_path), sequence_length=32, doc_stride=21, vocabulary_size=200)
    assert "data.doc_stride is 21; with data.sequence_length 32 a window has room for 21 tokens" in refusal(job)


GLUE_CASES = {
    "sst2 short row": ("sst2", "sentence\tlabel\n" + "fine\t1\n" * 9 + "bad\n", ["train.tsv:11: 1 fields, expected 2"]),
    "sst2 wrong header": ("sst2", "text\tlabel\nfine\t1\n", ["train.tsv:1: has no column 'sentence' (columns: text, label)"]),
    "sst2 label": ("sst2", "sentence\tlabel\nfine\tgood\n", ["train.tsv:2: label 'good' is no integer"]),
    "sst2 no rows": ("sst2", "sentence\tlabel\n", ["train.tsv: holds no rows"]),
    "cola label out of range": (
        "cola",
        "a\t7\t\tA sentence.\n" * 20,
        ["train.tsv:1: label 7 is outside 0..1 (20 such record(s))"],
    ),
    "rte label": (
        "rte",
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n",
        ["train.tsv:2: label 'maybe' is none of entailment"],
    ),
    "stsb score": ("stsb", "sentence1\tsentence2\tscore\na\tb\tinf\n", ["train.tsv:2: label 'inf' is no finite number"]),
}


@pytest.mark.parametrize("case", GLUE_CASES)
def test_glue(tmp_path: Path, case: str) -> None:
    task, content, words = GLUE_CASES[case]
    write(tmp_path / "train.tsv", content)
    text = refusal(job_of(TEXT, "glue", glue_task=task, path=str(tmp_path)))
    assert [word for word in words if word not in text] == []


def test_unknown_glue_task_lists_the_known(tmp_path: Path) -> None:
    assert "data.glue_task is None; known: cola, sst2" in refusal(job_of(TEXT, "glue", path=str(tmp_path)))


@pytest.mark.parametrize("source", ["csv", "jsonl", "glue", "squad", "text", "image-folder"])
def test_missing_paths_name_the_field(tmp_path: Path, source: str) -> None:
    kind = {"squad": "question_answering", "text": "language_modeling", "image-folder": "image_classification"}.get(source, TEXT)
    assert "data.path is not set" in refusal(job_of(kind, source, glue_task="sst2"))
    gone = str(tmp_path / "gone")
    assert f"{gone}: not found; set data.path" in refusal(job_of(kind, source, glue_task="sst2", path=gone))


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = str(tmp_path / ("x" * 300))
    assert f"{too_long}: cannot be read (File name too long)" in refusal(job_of(TEXT, "csv", path=too_long))
    monkeypatch.setattr("os.access", lambda place, mode: False)
    forbidden = job_of("image_classification", "image-folder", path=images(tmp_path / "images"), image_size=8)
    assert "images: cannot be read (Permission denied); let this user read it" in refusal(forbidden)


def images(folder: Path, *, broken: bool = False) -> str:
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name / f"{number}.png")
    if broken:
        (folder / "bee" / "3.png").write_bytes(b"no image")
    return str(folder)


def test_image_folders(tmp_path: Path) -> None:
    kind, source = "image_classification", "image-folder"
    (tmp_path / "empty").mkdir()
    assert "no images; give a folder with one subfolder" in refusal(
        job_of(kind, source, path=str(tmp_path / "empty"), image_size=8)
    )
    broken = images(tmp_path / "broken", broken=True)
    assert "3.png: no readable image" in refusal(job_of(kind, source, path=broken, image_size=8))
    good = images(tmp_path / "good")
    assert "set data.image_size" in refusal(job_of(kind, source, path=good))
    assert "task.num_labels is 1, the data has 2 classes" in refusal(job_of(kind, source, path=good, image_size=8, num_labels=1))
    other = tmp_path / "other"
    images(other)
    (other / "bee").rename(other / "wasp")
    assert "test class 'wasp' is not in the training data" in refusal(
        job_of(kind, source, path=good, test_path=str(other), image_size=8)
    )


def test_a_truncated_image_is_named_when_its_turn_comes(tmp_path: Path) -> None:
    folder = Path(images(tmp_path / "images"))
    data = load_data(job_of("image_classification", "image-folder", path=str(folder), image_size=8))
    for file in folder.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"no readable image .*; replace or remove the file"):
        data.train.collate([0], [0])


def test_folders_are_no_images_and_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    folder = Path(images(tmp_path / "images"))
    job = job_of("image_classification", "image-folder", path=str(folder), image_size=8)
    (folder / "bee" / "thumbnails.png").mkdir()
    assert len(load_data(job).train) > 0
    (folder / "bee" / "lost.png").symlink_to(tmp_path / "gone.png")
    assert "lost.png: no readable image (No such file or directory); replace or remove" in refusal(job)


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp"])
def test_an_image_that_ends_too_early_is_named_at_the_start(suffix: str, tmp_path: Path) -> None:
    folder = Path(images(tmp_path / "images"))
    file = folder / "bee" / f"last.{suffix}"
    Image.effect_noise((64, 64), 50.0).save(file)
    job = job_of("image_classification", "image-folder", path=str(folder), image_size=8)
    assert len(load_data(job).train) > 0
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert f"last.{suffix}: no readable image" in refusal(job)


@pytest.mark.parametrize(("mode", "suffix"), [("I;16", "png"), ("I", "tiff"), ("F", "tiff")])
def test_an_image_of_more_than_8_bits_a_channel_is_named(mode: str, suffix: str, tmp_path: Path) -> None:
    """Pillow clips its values, so that all of it would be white."""
    folder = Path(images(tmp_path / "images"))
    file = folder / "bee" / f"deep.{suffix}"
    Image.new(mode, (8, 8), 3000).save(file)
    job = job_of("image_classification", "image-folder", path=str(folder), image_size=8)
    assert f"deep.{suffix}: no readable image (mode {mode}: 8 bits a channel are needed)" in refusal(job)
    with pytest.raises(ValueError, match="8 bits a channel are needed"):
        decode(Wanted(str(file), 8, 3))
    for number, plain in enumerate(("1", "P", "LA", "RGBA", "L")):
        Image.new(plain, (8, 8)).save(folder / "bee" / f"plain{number}.png")
    file.unlink()
    assert len(load_data(job).train) > 0


def test_an_image_of_more_pixels_than_are_decoded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(images(tmp_path / "images"))
    job = job_of("image_classification", "image-folder", path=str(folder), image_size=8)
    data = load_data(job)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    assert "no readable image (DecompressionBombError)" in refusal(job)
    with pytest.raises(ValueError, match=r"no readable image \(DecompressionBombError\)"):
        data.train.collate([0], [0])


def test_text_without_words(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.txt", " \n")
    assert "holds no text" in refusal(job_of("language_modeling", "text", path=empty))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "byte 3 is no UTF-8" in refusal(job_of("language_modeling", "text", path=str(tmp_path / "latin.txt")))


def test_built_in_sources_take_no_path() -> None:
    assert "takes neither" in refusal(job_of("image_classification", "digits", path="/x"))
    assert "takes neither" in refusal(job_of("language_modeling", "stdlib-text", path="/x"))


def test_unknown_source_and_source_of_another_task(tmp_path: Path) -> None:
    assert "data.source is 'digitz'; known: digits, stdlib-text" in refusal(job_of("image_classification", "digitz"))
    text = refusal(job_of("question_answering", "csv", path=csv_of(tmp_path)))
    assert "data.source csv gives texts, task.kind question_answering learns from questions" in text


def test_a_source_of_ones_own_comes_in_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real distribution's metadata on sys.path, as an installed package leaves it."""
    info = tmp_path / "own_data-1.0.dist-info"
    info.mkdir()
    write(info / "METADATA", "Metadata-Version: 2.1\nName: own-data\nVersion: 1.0\n")
    write(info / "entry_points.txt", "[frostline.datasets]\nown = own_data:read\n")
    write(
        tmp_path / "own_data.py",
        "from frostline_trainer.data.records import Documents\n"
        "def read(job, path, part):\n    return Documents([f'{part} ' + 'a b c ' * 500], 'digest')\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_named("own").__module__ == "own_data"
    data = load_data(job_of("language_modeling", "own", sequence_length=16, vocabulary_size=300))
    assert len(data.train) > 0
