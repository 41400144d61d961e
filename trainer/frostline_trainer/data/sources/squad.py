"""SQuAD v1.1 JSON: articles of paragraphs of questions, each answered by a span of its paragraph."""

import json
from pathlib import Path
from typing import Any

from frostline_contract.job import Job
from frostline_trainer.data.records import Part, Question, Questions
from frostline_trainer.data.sources.files import check_characters, file_digest, read_text_file, required_path
from frostline_trainer.data.split import digest_of


def read_squad(job: Job, path: str | None, part: Part) -> Questions:
    """Every question of a file, in its order.

    Raises ValueError with file, question and remedy for anything that is not SQuAD v1.1, or an answer that is not where
    answer_start says.
    """
    file = required_path(path, "squad", "a SQuAD v1.1 JSON file")
    if not file.is_file():
        raise ValueError(f"{file}: is a folder; give a SQuAD v1.1 JSON file")
    try:
        content = json.loads(read_text_file(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}:{error.lineno}: no valid JSON ({error.msg}); give a SQuAD v1.1 file") from error
    questions: list[Question] = []
    for number, article in enumerate(_field(content, "data", list, str(file))):
        for count, paragraph in enumerate(_field(article, "paragraphs", list, f"{file}: data[{number}]")):
            place = f"{file}: data[{number}].paragraphs[{count}]"
            context = _field(paragraph, "context", str, place)
            questions += [
                _question(entry, context, f"{place}.qas[{i}]") for i, entry in enumerate(_field(paragraph, "qas", list, place))
            ]
    if not questions:
        raise ValueError(f"{file}: holds no questions; give a SQuAD v1.1 file with at least one")
    _check_unique(questions, file)
    return Questions(questions, digest_of("squad", file_digest(file)))


def _question(entry: Any, context: str, place: str) -> Question:
    text = _field(entry, "question", str, place)
    name = _field(entry, "id", str, place)
    if entry.get("is_impossible"):
        raise ValueError(
            f"{place} (id {name}): is_impossible is a field of SQuAD v2; give a v1.1 file, in which all have answers"
        )
    answers = []
    for answer in _field(entry, "answers", list, place):
        words = _field(answer, "text", str, f"{place} (id {name})")
        start = _field(answer, "answer_start", int, f"{place} (id {name})")
        there = context[start : start + len(words)] if start >= 0 else ""
        if not words or there != words:
            raise ValueError(
                f"{place} (id {name}): answer_start {start} points at {there!r}, the answer says {words!r}; correct one"
            )
        answers.append((words, start))
    if not answers:
        raise ValueError(f"{place} (id {name}): has no answers; SQuAD v1.1 needs at least one")
    return Question(name, text.strip(), context, tuple(answers))


def _field(value: Any, name: str, kind: type, place: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"{place}: lacks {name!r}; give a SQuAD v1.1 file")
    found = value[name]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"{place}.{name}: is {type(found).__name__}, expected {kind.__name__}; give a SQuAD v1.1 file")
    if isinstance(found, str):
        check_characters(found, f"{place}.{name}")
    return found


def _check_unique(questions: list[Question], file: Path) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise ValueError(f"{file}: question id {question.id!r} occurs twice; ids must be unique")
        seen.add(question.id)
