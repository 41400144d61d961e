"""Writes what modules.yaml learns from: questions about the modules of Python's standard library, in SQuAD v1.1's format.

    python examples/question_answering/make_questions.py

Each module is a paragraph of true sentences, read from its source: how long it is, what it defines first, what it imports.
The order of the sentences is drawn by the module's name, so that position alone answers nothing. The file goes to .cache/
beside this one; the same Python writes the same file.
"""

import ast
import json
import random
import sysconfig
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).resolve().parent / ".cache" / "modules.json"
MODULES_MIN = 50


class Fact(NamedTuple):
    """A sentence of the paragraph, and a question whose answer is a part of it."""

    sentence: str
    question: str
    answer: str


def facts_of(name: str, source: str) -> list[Fact]:
    """What can be said about a module from its source."""
    tree = ast.parse(source)
    lines = source.count("\n")
    functions = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    imports = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    facts = [Fact(f"Its source has {lines} lines.", f"How many lines does {name} have?", str(lines))]
    if functions:
        facts.append(
            Fact(f"The first function in it is called {functions[0]}.", f"What is the first function of {name}?", functions[0])
        )
        facts.append(
            Fact(f"It defines {len(functions)} functions.", f"How many functions does {name} define?", str(len(functions)))
        )
    if classes:
        facts.append(Fact(f"The class at its top is {classes[0]}.", f"Which class is at the top of {name}?", classes[0]))
    if imports:
        facts.append(
            Fact(f"Before anything else it imports {imports[0]}.", f"What does {name} import before anything else?", imports[0])
        )
    return facts


def article(name: str, facts: list[Fact]) -> dict:
    """One module as an article of one paragraph."""
    shuffled = random.Random(name).sample(facts, len(facts))
    context, questions = f"{name} is a module of the standard library.", []
    for number, fact in enumerate(shuffled):
        start = len(context) + 1 + fact.sentence.rindex(fact.answer)
        context = f"{context} {fact.sentence}"
        answers = [{"text": fact.answer, "answer_start": start}]
        questions.append({"id": f"{name}-{number}", "question": fact.question, "answers": answers})
    return {"title": name, "paragraphs": [{"context": context, "qas": questions}]}


def main(target: Path = TARGET) -> None:
    """Write the file."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(folder.glob("*.py")) if not file.stem.startswith("_")]
    articles = [article(file.stem, facts_of(file.stem, file.read_text(encoding="utf-8"))) for file in files]
    if len(articles) < MODULES_MIN:
        raise SystemExit(
            f"{folder}: holds {len(articles)} modules, at least {MODULES_MIN} are needed; use a Python with its library's source"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".draft")
    draft.write_text(json.dumps({"version": "1.1", "data": articles}, indent=1) + "\n", encoding="utf-8")
    draft.rename(target)
    print(f"{target}: {sum(len(entry['paragraphs'][0]['qas']) for entry in articles)} questions about {len(articles)} modules")


if __name__ == "__main__":
    main()
