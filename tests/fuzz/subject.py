"""What is fuzzed: a reader of input that others have written."""

import functools
import random
import tempfile
from pathlib import Path

from frostline_controller.report.data import RunData, read_run
from tests.unit.controller.synthetic_run import write_run


class Subject:
    """One kind of input. name: for people. share: of all inputs. Instances hold what inputs are made from."""

    name: str
    share: float

    def run(self, rng: random.Random) -> None:
        """Draw an input and read it. Declared errors are caught here; whatever else comes out is a finding."""
        raise AssertionError(f"{self.name} reads nothing")

    def close(self) -> None:
        """Let go of files and sockets."""


@functools.cache
def synthetic_run() -> RunData:
    """Records, statistics and plans that are true to their schemas: what mutations start from."""
    with tempfile.TemporaryDirectory() as folder:
        return read_run(write_run(Path(folder) / "run"))
