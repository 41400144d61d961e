"""The result of a run for Python: a view of the run directory."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.mesh import with_degrees
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import status_word


@dataclass(frozen=True)
class RunResult:
    """A view of a run directory (docs/run-directory.md has every schema)."""

    directory: Path

    @property
    def result(self) -> dict[str, Any]:
        """The contents of result.json. Raises FileNotFoundError where the run has not ended."""
        return json.loads(RunDirectory(self.directory).result.read_text(encoding="utf-8"))

    @property
    def status(self) -> str:
        """completed, suspended, failed or cancelled."""
        return status_word(str(self.result["status"]))

    @property
    def steps(self) -> int:
        """The last committed step."""
        return int(self.result["steps"])

    @property
    def digest(self) -> str:
        """SHA-256 of final weights and optimizer state: the same on any placement (docs/protocols.md 1.10)."""
        return str(self.result["digest"])

    @property
    def final(self) -> dict[str, float]:
        """Loss and metrics on the test split."""
        return dict(self.result["final"])

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The surviving records, one for each step: those undone by a rollback or a restore are left out."""
        records = RunDirectory(self.directory).read_records().surviving
        return [with_degrees(line) for line in records]

    @property
    def model_directory(self) -> Path:
        """The output folder of `save_pretrained`: `AutoModel...from_pretrained` takes it."""
        return RunDirectory(self.directory).model
