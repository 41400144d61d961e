"""Real formats, read as their authors meant them."""

import json
from pathlib import Path

import pytest

from frostline_trainer.data.load import load_data
from frostline_trainer.data.sources.glue import TASKS, read_glue
from frostline_trainer.data.sources.squad import read_squad
from frostline_trainer.data.sources.tables import read_csv, read_jsonl
from frostline_trainer.data.sources.text import read_text
from tests.unit.trainer.data_cases import job_of, squad_of, write

TEXT = "text_classification"


def test_csv_keeps_words_that_look_like_missing_values(tmp_path: Path) -> None:
    rows = ["None", "NA", "null", "nan", "", "007", "1e5"]
    content = (
        "id,words,gold\n"
        + "".join(f'{n},"x {word}, ""y""",{n % 2}\n' for n, word in enumerate(rows))
        + '9,NA,1\n10,"two\nlines",0\n'
    )
    job = job_of(TEXT, "csv", path=write(tmp_path / "t.csv", content), columns={"text": "words", "label": "gold"})
    records = read_csv(job, job.data.path, "train")
    assert records.first == [f'x {word}, "y"' for word in rows] + ["NA", "two\nlines"]
    assert records.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_csv_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    job = job_of(TEXT, "csv", path=write(tmp_path / "t.csv", "\ufefftext,label\na,0\nb,1\n"))
    assert read_csv(job, job.data.path, "train").first == ["a", "b"]


def test_csv_may_have_a_column_without_a_name(tmp_path: Path) -> None:
    """As pandas writes the numbers of rows."""
    job = job_of(TEXT, "csv", path=write(tmp_path / "t.csv", ",text,label\n0,a,0\n1,b,1\n"))
    records = read_csv(job, job.data.path, "train")
    assert (records.first, records.labels.tolist()) == (["a", "b"], [0, 1])


def test_csv_may_have_fields_of_any_length(tmp_path: Path) -> None:
    text = "a long text " * 20_000
    job = job_of(TEXT, "csv", path=write(tmp_path / "t.csv", f"text,label\n{text},0\n"))
    assert read_csv(job, job.data.path, "train").first == [text]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_rows_are_named_by_the_line_at_which_they_begin(tmp_path: Path, end: str) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(end.join(["text,label", '"two', 'lines",0', '"three', "", 'lines",1', "one,0", ""]).encode())
    job = job_of(TEXT, "csv", path=str(file))
    records = read_csv(job, job.data.path, "train")
    assert [records.where(index) for index in range(3)] == [f"{file}:{line}" for line in (2, 4, 7)]


@pytest.mark.parametrize("texts", [["2020-01-01", "2021-12-31"], ["2021-12-31T10:00:00Z"], ["1e5", "007"]])
def test_jsonl_texts_that_look_like_dates_or_numbers_stay_texts(tmp_path: Path, texts: list[str]) -> None:
    lines = "".join(json.dumps({"text": text, "label": n % 2}) + "\n" for n, text in enumerate(texts))
    job = job_of(TEXT, "jsonl", path=write(tmp_path / "t.jsonl", lines))
    assert read_jsonl(job, job.data.path, "train").first == texts


def test_jsonl_columns_that_nobody_asks_for_may_hold_anything(tmp_path: Path) -> None:
    lines = '{"text": "a", "label": 0, "x": 1}\n{"text": "b", "label": 1, "x": {"y": [null]}, "z": "2"}\n'
    job = job_of(TEXT, "jsonl", path=write(tmp_path / "t.jsonl", lines))
    assert read_jsonl(job, job.data.path, "train").first == ["a", "b"]


def test_files_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    lines = write(tmp_path / "t.jsonl", '\ufeff{"text": "a", "label": 0}\n')
    assert read_jsonl(job_of(TEXT, "jsonl", path=lines), lines, "train").first == ["a"]
    squad = write(tmp_path / "s.json", "\ufeff" + Path(squad_of(tmp_path)).read_text())
    assert len(read_squad(job_of("question_answering", "squad", path=squad), squad, "train")) == 20
    text = write(tmp_path / "t.txt", "\ufeffOnce upon a time")
    assert read_text(job_of("language_modeling", "text", path=text), text, "train").texts == ["Once upon a time"]


def test_jsonl_pairs(tmp_path: Path) -> None:
    lines = '{"s1": "a", "s2": "b", "label": 2}\n{"s1": "c", "s2": "d", "label": "0"}\n'.replace('"0"', "0")
    job = job_of(TEXT, "jsonl", path=write(tmp_path / "t.jsonl", lines), columns={"text": "s1", "text_pair": "s2"})
    records = read_jsonl(job, job.data.path, "train")
    assert (records.first, records.second, records.labels.tolist()) == (["a", "c"], ["b", "d"], [2, 0])


def test_jsonl_texts_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\u2029d", "e\u0085f"]
    lines = "".join(f'{{"text": "{text}", "label": {n % 2}}}\r\n' for n, text in enumerate(texts))
    job = job_of(TEXT, "jsonl", path=write(tmp_path / "t.jsonl", lines))
    assert read_jsonl(job, job.data.path, "train").first == texts


def test_a_table_s_text_serves_language_modelling(tmp_path: Path) -> None:
    content = "text\n" + "".join(f"a line of text number {n}\n" for n in range(80))
    data = load_data(
        job_of("language_modeling", "csv", path=write(tmp_path / "t.csv", content), sequence_length=16, vocabulary_size=300)
    )
    assert len(data.train) > 10


GLUE_FILES = {
    "cola": ('gj04\t1\t\tHe said so.\ngj04\t0\t*\tSaid "he so.\n', ["He said so.", 'Said "he so.'], [], [1, 0]),
    "sst2": ("sentence\tlabel\ngood \t1\nbad \t0\n", ["good ", "bad "], [], [1, 0]),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n", ["a"], ["b"], [1]),
    "stsb": ("index\tsentence1\tsentence2\tscore\n0\ta\tb\t3.800\n", ["a"], ["b"], [3.8]),
    "qqp": ("id\tquestion1\tquestion2\tis_duplicate\n1\ta\tb\t1\n2\tlost\n3\tc\td\t0\n", ["a", "c"], ["b", "d"], [1, 0]),
    "mnli": ("index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tcontradiction\n", ["a"], ["b"], [2]),
    "qnli": ("index\tquestion\tsentence\tlabel\n0\ta\tb\tnot_entailment\n", ["a"], ["b"], [1]),
    "rte": ("index\tsentence1\tsentence2\tlabel\r\n0\ta\tb\tentailment\r\n", ["a"], ["b"], [0]),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", ["a"], ["b"], [1]),
}


@pytest.mark.parametrize("task", TASKS)
def test_glue_layouts(tmp_path: Path, task: str) -> None:
    content, first, second, labels = GLUE_FILES[task]
    write(tmp_path / "train.tsv", content)
    job = job_of(TEXT, "glue", glue_task=task, path=str(tmp_path))
    records = read_glue(job, job.data.path, "train")
    assert (records.first, records.second, records.labels.tolist()) == (first, second, labels)


def test_glue_folder_gives_train_and_dev(tmp_path: Path) -> None:
    for name, count in (("train.tsv", 30), ("dev.tsv", 6)):
        write(tmp_path / name, "sentence\tlabel\n" + "".join(f"s{n}\t{n % 2}\n" for n in range(count)))
    data = load_data(
        job_of(TEXT, "glue", glue_task="sst2", path=str(tmp_path), test_path=str(tmp_path), sequence_length=8, vocabulary_size=80)
    )
    assert (len(data.train), len(data.guard), len(data.test)) == (27, 3, 6)
    assert data.test.references().tolist() == [0, 1] * 3


def test_glue_similarity_is_a_regression(tmp_path: Path) -> None:
    rows = "".join(f"{n}\ta {n}\tb\t{n / 10}\n" for n in range(40))
    write(tmp_path / "train.tsv", "index\tsentence1\tsentence2\tscore\n" + rows)
    data = load_data(job_of(TEXT, "glue", glue_task="stsb", path=str(tmp_path), sequence_length=8, vocabulary_size=80))
    assert (data.sizes.num_labels, data.sizes.regression) == (1, True)
    assert data.train.collate([0, -1], [0, 0])["label_weights"].tolist() == [1.0, 0.0]
