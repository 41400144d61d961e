"""The findings of a part, written line by line: a part that is ended at its limit loses only the questions not yet asked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class Verdict(StrEnum):
    """The answer to a question."""

    PASSED = "passed"
    """A promise holds here."""
    FAILED = "FAILED"
    """A promise does not hold."""
    CONFIRMED = "confirmed"
    """NCCL behaves as the trainer, or the simulation, assumes."""
    REFUTED = "REFUTED"
    """NCCL behaves differently."""
    MEASURED = "measured"
    """A figure, for which there is no promise on GPUs."""
    UNSEEN = "not seen"
    """The question was not asked, or the answer did not come: nothing is claimed."""


BAD = (Verdict.FAILED, Verdict.REFUTED)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    line: the question, as a statement. detail: the observation. figures: {label with its unit: value}.
    """

    line: str
    verdict: Verdict
    detail: str = ""
    figures: dict[str, float] = field(default_factory=dict)


class Findings:
    """The findings of a part: a file of JSON lines, which is whole after every line.

    file: new or empty; the part's process appends to it, the harness reads it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def expect(self, lines: Sequence[str]) -> None:
        """Announce the lines that this part will ask; those that it does not reach are reported as not seen."""
        self._append({"expected": list(lines)})

    def add(self, line: str, verdict: Verdict, detail: str = "", figures: Mapping[str, float] | None = None) -> None:
        print(f"  {verdict}: {line}" + (f": {detail}" if detail else ""), flush=True)
        self._append({"finding": asdict(Finding(line, verdict, detail, dict(figures or {})))})

    def judge(self, line: str, good: bool, detail: str = "", figures: Mapping[str, float] | None = None) -> None:
        """`add` that a promise holds, or that it does not."""
        self.add(line, Verdict.PASSED if good else Verdict.FAILED, detail, figures)

    def _append(self, entry: dict[str, object]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def read_findings(file: Path, missing: str) -> list[Finding]:
    """Return the findings of a part, and as not seen the lines that it announced but did not reach.

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
    reported = {finding.line for finding in found}
    return found + [Finding(line, Verdict.UNSEEN, missing) for line in expected if line not in reported]
