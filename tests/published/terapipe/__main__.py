"""`python -m tests.published.terapipe [FOLDER]`: writes docs/comparison/terapipe.md and its picture."""

from tests.published.command import write
from tests.published.terapipe.page import write_page

if __name__ == "__main__":
    write(write_page, __doc__)
