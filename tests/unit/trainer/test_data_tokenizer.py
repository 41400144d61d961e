"""Trained tokenizers are the same in every process: two workers must see the same token ids."""

import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from frostline_contract.job import Job
from frostline_trainer.data.tokenizer import build_tokenizer, train_wordpiece
from tests.unit.trainer.data_cases import job_of, squad_of

CODE = """
import sys
from frostline_trainer.data.tokenizer import tokenizer_digest, train_byte_level_bpe, train_wordpiece
text = open(sys.argv[1], encoding="utf-8").read()
texts = [text[i : i + 400] for i in range(0, len(text), 400)] + ["Zoë naïve 漢字 🙂"]
for train in (train_wordpiece, train_byte_level_bpe):
    print(tokenizer_digest(train(texts, 400, 64)))
"""


def test_three_processes_train_the_same_tokenizers() -> None:
    command = [sys.executable, "-c", CODE, ast_source()]
    printed = {subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(3)}
    assert len(printed) == 1
    assert len(set(printed.pop().split())) == 2


def ast_source() -> str:
    import ast

    return ast.__file__


def test_wordpiece_marks_pairs_and_lowers_case() -> None:
    tokenizer = train_wordpiece(["the cat sat on the mat", "the dog sat"] * 5, 200, 16)
    encoded = tokenizer("The cat", "the dog", return_token_type_ids=True)
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == ["[CLS]", "the", "cat", "[SEP]", "the", "dog", "[SEP]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert tokenizer.pad_token_id == 0
    assert tokenizer.convert_ids_to_tokens(tokenizer("猫")["input_ids"]) == ["[CLS]", "[UNK]", "[SEP]"]


def test_a_named_tokenizer_is_read_from_its_folder(tmp_path) -> None:
    trained = train_wordpiece(["one two three"] * 3, 100, 16)
    trained.save_pretrained(str(tmp_path / "saved"))
    job = job_of("question_answering", "squad", path=squad_of(tmp_path), tokenizer=str(tmp_path / "saved"))
    read = build_tokenizer(job, ["other text"])
    assert read("three two")["input_ids"] == trained("three two")["input_ids"]


@pytest.mark.parametrize(("make", "words"), [(False, "holds no tokenizer"), (True, "cannot be read")])
def test_a_folder_without_a_readable_tokenizer_is_one_clear_line(tmp_path, make: bool, words: str) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    if make:
        (folder / "tokenizer.json").write_text("{")
    job = job_of("question_answering", "squad", tokenizer=str(folder))
    with pytest.raises(ValueError, match=words) as caught:
        build_tokenizer(job, ["text"])
    assert "\n" not in str(caught.value)
    assert "set data.tokenizer" in str(caught.value)


@pytest.mark.parametrize(
    ("specials", "padding"), [({"eos_token": "end", "unk_token": "[UNK]"}, "end"), ({"unk_token": "[UNK]"}, "[UNK]")]
)
def test_padding_takes_the_end_of_text_or_the_unknown_token_where_there_is_none(tmp_path, specials: dict, padding: str) -> None:
    job = saved_with(tmp_path, **specials)
    read = build_tokenizer(job, ["text"])
    assert read.pad_token == padding and read.pad_token_id == read.convert_tokens_to_ids(padding)


def test_a_tokenizer_without_any_such_token_is_refused_with_a_remedy(tmp_path) -> None:
    with pytest.raises(ValueError, match="save it with a pad_token"):
        build_tokenizer(saved_with(tmp_path), ["text"])


def saved_with(tmp_path, **specials: str) -> Job:
    """A job whose tokenizer knows three words and has these special tokens only."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "end": 1, "one": 2}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, **specials).save_pretrained(str(tmp_path / "saved"))
    return job_of("question_answering", "squad", tokenizer=str(tmp_path / "saved"))
