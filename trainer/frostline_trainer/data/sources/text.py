"""Plain text files for causal language modelling."""

from frostline_contract.job import Job
from frostline_trainer.data.records import Documents, Part
from frostline_trainer.data.sources.files import read_text_file, required_path
from frostline_trainer.data.split import digest_of


def read_text(job: Job, path: str | None, part: Part) -> Documents:
    """One document for each file: the given file, or every *.txt and *.md below a folder, by path. Empty files are left out."""
    place = required_path(path, "text", "a text file, or a folder of .txt or .md files")
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.suffix in (".txt", ".md"))
    texts = [text for file in files if (text := read_text_file(file)).strip()]
    if not texts:
        raise ValueError(f"{place}: holds no text; give a text file, or a folder of .txt or .md files")
    return Documents(texts, digest_of("text", texts))
