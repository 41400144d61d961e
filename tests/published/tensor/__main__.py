"""`python -m tests.published.tensor [FOLDER]`: writes docs/comparison/tensor.md and its picture."""

import argparse
from pathlib import Path

from tests.published.tensor.page import write_page

DOCS = Path(__file__).parents[3] / "docs" / "comparison"


def main() -> None:
    """Write the page, and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS, help="default: docs/comparison")
    for path in write_page(parser.parse_args().folder):
        print(path)


if __name__ == "__main__":
    main()
