"""The Python standard library's own documentation strings: about 0.9 million characters of English and code, without download."""

import ast
import sysconfig
from pathlib import Path

from frostline_contract.job import Job
from frostline_trainer.data.records import Documents, Part
from frostline_trainer.data.split import digest_of


def read_stdlib_text(job: Job, path: str | None, part: Part) -> Documents:
    """One document for each top-level module of this interpreter's library: its docstrings, in the order of the source.

    The content, and with it the digest, depends on the Python version. Raises ValueError if a path is given.
    """
    if path is not None:
        raise ValueError(f"data.path or data.test_path is {path!r}; data.source stdlib-text is built in and takes neither")
    folder = Path(sysconfig.get_paths()["stdlib"])
    documents = [text for file in sorted(folder.glob("*.py")) if (text := _docstrings(file))]
    if not documents:
        raise ValueError(f"{folder}: holds no library modules with docstrings; use data.source text with files of your own")
    return Documents(documents, digest_of("stdlib-text", documents))


def _docstrings(file: Path) -> str:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                found.append((getattr(node, "lineno", 0), text))
    return "\n\n".join(text for _, text in sorted(found))
