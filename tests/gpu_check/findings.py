"""What a part of the check finds, told line by line: a part that is ended at its limit loses only what it had not asked yet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class Verdict(StrEnum):
    """What became of a question."""

    PASSED = "passed"
    """What is promised holds here."""
    FAILED = "FAILED"
    """It does not."""
    CONFIRMED = "confirmed"
    """NCCL does what the trainer, or the simulation, takes it to do."""
    REFUTED = "REFUTED"
    """It does something else."""
    MEASURED = "measured"
    """A figure; nobody has promised one for GPUs."""
    UNSEEN = "not seen"
    """It was not asked, or the answer did not come: nothing is claimed."""


BAD = (Verdict.FAILED, Verdict.REFUTED)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    line: what was asked, as a statement. detail: what was seen. figures: {label with its unit: value}.
    """

    line: str
    verdict: Verdict
    detail: str = ""
    figures: dict[str, float] = field(default_factory=dict)


class Told:
    """Where a part tells its findings: a file of JSON lines, which is whole after every line.

    file: new or empty; the part's process appends to it, the harness reads it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def expect(self, lines: Sequence[str]) -> None:
        """The lines that this part is going to ask; those that it does not come to are reported as not seen."""
        self._append({"expected": list(lines)})

    def tell(self, line: str, verdict: Verdict, detail: str = "", figures: Mapping[str, float] | None = None) -> None:
        print(f"  {verdict}: {line}" + (f": {detail}" if detail else ""), flush=True)
        self._append({"finding": asdict(Finding(line, verdict, detail, dict(figures or {})))})

    def judge(self, line: str, good: bool, detail: str = "", figures: Mapping[str, float] | None = None) -> None:
        """`tell` that a promise holds, or that it does not."""
        self.tell(line, Verdict.PASSED if good else Verdict.FAILED, detail, figures)

    def _append(self, entry: dict[str, object]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def read_findings(file: Path, missing: str) -> list[Finding]:
    """What a part has told, and as not seen what it expected and did not tell.

    Args:
        missing: why a line is missing, in words.
    """
    expected: list[str] = []
    found: list[Finding] = []
    for text in file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else ():
        if not text.endswith("\n"):
            break  # the process was killed while it wrote
        entry = json.loads(text)
        expected += entry.get("expected", [])
        if "finding" in entry:
            fields = entry["finding"]
            found.append(Finding(fields["line"], Verdict(fields["verdict"]), fields["detail"], fields["figures"]))
    told = {finding.line for finding in found}
    return found + [Finding(line, Verdict.UNSEEN, missing) for line in expected if line not in told]
