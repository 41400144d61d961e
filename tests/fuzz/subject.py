"""A subject of fuzzing: a reader of input that others have written."""

import functools
import random
import tempfile
from pathlib import Path

from frostline_controller.report.data import RunData, read_run
from tests.unit.controller.synthetic_run import write_run


class Subject:
    """One kind of input. name: for people. share: of all inputs. Instances hold the material of the inputs."""

    name: str
    share: float

    def run(self, rng: random.Random) -> None:
        """Draw an input and read it. Declared errors are caught here; any other exception is a finding."""
        raise AssertionError(f"{self.name} reads nothing")

    def close(self) -> None:
        """Release files and sockets."""


@functools.cache
def synthetic_run() -> RunData:
    """Return records, statistics and plans that match their schemas: the start of mutations."""
    with tempfile.TemporaryDirectory() as folder:
        return read_run(write_run(Path(folder) / "run"))
