"""`python -m tests.published.tensor [FOLDER]`: writes docs/comparison/tensor.md and its picture."""

from tests.published.command import write
from tests.published.tensor.page import write_page

if __name__ == "__main__":
    write(write_page, __doc__)
