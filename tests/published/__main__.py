"""`python -m tests.published [FOLDER]`: writes docs/comparison/published.md and its pictures."""

from tests.published.command import write
from tests.published.page import write_page

if __name__ == "__main__":
    write(write_page, __doc__)
