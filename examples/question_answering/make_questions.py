"""Writes what modules.yaml learns from: questions about the modules of Python's standard library, in SQuAD v1.1's format.

    python examples/question_answering/make_questions.py

Each module has several paragraphs with the same true sentences, read from its source (its length, its first definition, its
imports), in orders drawn by the module's name, so that an answer cannot be found by its position. Every fifth module is in the
test file only. Both files go to .cache/ beside this one; the same Python version writes the same files.
"""

import ast
import json
import random
import sysconfig
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent / ".cache"
MODULES_MIN = 50
TRAIN_PARAGRAPHS, TEST_PARAGRAPHS = 4, 1
TEST_EVERY = 5
NOT_THE_LIBRARY = {"test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "turtledemo", "ensurepip"}


class Fact(NamedTuple):
    """A sentence of a paragraph, and a question whose answer is a part of that sentence."""

    sentence: str
    question: str
    answer: str


def facts_of(name: str, source: str) -> list[Fact]:
    """Return the facts about a module that its source contains."""
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


def paragraph(name: str, facts: list[Fact], number: int) -> dict:
    """Return a paragraph with a module's facts in one order, and a question about each fact."""
    shuffled = random.Random(f"{name} {number}").sample(facts, len(facts))
    context, questions = f"{name} is a module of the standard library.", []
    for fact in shuffled:
        start = len(context) + 1 + fact.sentence.rindex(fact.answer)
        context = f"{context} {fact.sentence}"
        answers = [{"text": fact.answer, "answer_start": start}]
        questions.append({"id": f"{name}-{number}-{len(questions)}", "question": fact.question, "answers": answers})
    return {"context": context, "qas": questions}


def write(target: Path, modules: list[tuple[str, list[Fact]]], paragraphs: int) -> None:
    """Write one SQuAD file, atomically."""
    articles = [{"title": name, "paragraphs": [paragraph(name, facts, i) for i in range(paragraphs)]} for name, facts in modules]
    draft = target.with_suffix(".draft")
    draft.write_text(json.dumps({"version": "1.1", "data": articles}, indent=1) + "\n", encoding="utf-8")
    draft.rename(target)
    print(f"{target}: {paragraphs * sum(len(facts) for _, facts in modules)} questions about {len(modules)} modules")


def main(folder: Path = FOLDER) -> None:
    """Write train.json and test.json."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(file.relative_to(library) for file in library.rglob("*.py") if not file.stem.startswith("_"))
    names = {".".join(path.with_suffix("").parts): path for path in paths if not NOT_THE_LIBRARY & set(path.parts)}
    modules = [(name, facts_of(name, (library / path).read_text(encoding="utf-8"))) for name, path in names.items()]
    if len(modules) < MODULES_MIN:
        raise SystemExit(
            f"{library}: holds {len(modules)} modules, at least {MODULES_MIN} are needed; use a Python with its source"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "train.json", [entry for i, entry in enumerate(modules) if i % TEST_EVERY], TRAIN_PARAGRAPHS)
    write(folder / "test.json", modules[::TEST_EVERY], TEST_PARAGRAPHS)


if __name__ == "__main__":
    main()
