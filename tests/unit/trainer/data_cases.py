"""Jobs and small input files for the tests of data and tasks."""

import json
from pathlib import Path
from typing import Any

from frostline_contract.job import Job, parse_job

FAMILIES = {
    "image_classification": "vit",
    "text_classification": "bert",
    "question_answering": "bert",
    "language_modeling": "gpt2",
}


def job_of(
    kind: str, source: str, *, num_labels: int | None = None, metric: str | None = None, seed: int = 0, **data: Any
) -> Job:
    """Return a job with the given data section."""
    return parse_job(
        {
            "seed": seed,
            "model": {"family": FAMILIES[kind], "config": {}},
            "task": {"kind": kind, "num_labels": num_labels, "metric": metric},
            "data": {"source": source, **data},
            "training": {"epochs": 1, "batch_size": 8, "micro_batch_size": 2, "reduction_leaves": 4},
        }
    )


def write(place: Path, text: str) -> str:
    place.write_text(text, encoding="utf-8")
    return str(place)


def csv_of(folder: Path, rows: int = 40) -> str:
    """Write a CSV of two classes; one word in a text decides its class."""
    lines = [f'"film {n}, {"good" if n % 2 else "bad"}",{n % 2}' for n in range(rows)]
    return write(folder / "table.csv", "\n".join(["text,label", *lines]) + "\n")


def squad_of(folder: Path, questions: int = 20, name: str = "squad.json") -> str:
    """A SQuAD file: contexts of about a hundred words in which one town is named."""
    paragraphs = []
    for number in range(questions):
        before = "Nobody lives there. " * (number + 1)
        context = f"{before}Person {number} lives in Town{number}. " + "Much else is said. " * 10
        answer = {"text": f"Town{number}", "answer_start": context.index(f"Town{number}")}
        question = {"id": f"q{number}", "question": f"Where does person {number} live?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    return write(folder / name, json.dumps({"version": "1.1", "data": [{"title": "towns", "paragraphs": paragraphs}]}))
