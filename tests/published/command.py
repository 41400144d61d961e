"""The command that writes a page of published figures."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "comparison"


def write(write_page: Callable[[Path], Iterable[Path]], description: str | None) -> None:
    """Write a page into the folder that the command line names, and print the written files. description: for --help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS, help="default: docs/comparison")
    for path in write_page(parser.parse_args().folder):
        print(path)
