"""The report of a check, as JSON and as Markdown; it is written anew after each part, so that an interruption leaves it whole."""

import datetime
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.gpu_check.findings import Verdict
from tests.gpu_check.harness import Outcome, is_bad
from tests.gpu_check.machine import Machine
from tests.gpu_check.table import Part
from tests.gpu_check.unseen import unseen

VERSION = 1
REHEARSAL = (
    "**A rehearsal on a CPU.** It shows that the check itself runs, and what the simulated NCCL does. It says nothing about any "
    "GPU, about NCCL, or about their speed."
)


@dataclass
class Report:
    """The findings so far. planned: the parts to run. interrupted: by which signal, "" where not interrupted."""

    machine: Machine
    device: str
    quick: bool
    planned: Sequence[Part]
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: str = ""
    began: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))

    @property
    def good(self) -> bool:
        """Whether every planned part has reached its end and nothing was refuted."""
        return not self.interrupted and len(self.outcomes) == len(self.planned) and not any(map(is_bad, self.outcomes))

    def write(self, folder: Path) -> None:
        """Write report.json and report.md, each whole at any time."""
        for name, text in (("report.json", json.dumps(self.as_json(), indent=1)), ("report.md", self.as_markdown())):
            fresh = folder / f"{name}.new"
            fresh.write_text(text + "\n", encoding="utf-8")
            fresh.replace(folder / name)

    def as_json(self) -> dict[str, object]:
        return {
            "version": VERSION,
            "began": self.began.isoformat(timespec="seconds"),
            "device": self.device,
            "rehearsal": self.device != "cuda",
            "quick": self.quick,
            "machine": asdict(self.machine),
            "interrupted": self.interrupted,
            "good": self.good,
            "parts": [{**asdict(outcome), "completed": outcome.completed} for outcome in self.outcomes],
            "not_begun": [part.name for part in self._not_begun()],
            "unseen": unseen(self.device, self.machine),
        }

    def as_markdown(self) -> str:
        sections = [self._head(), *(_section(outcome) for outcome in self.outcomes), self._unseen()]
        return "\n\n".join(sections)

    def _not_begun(self) -> list[Part]:
        begun = {outcome.part.name for outcome in self.outcomes}
        return [part for part in self.planned if part.name not in begun]

    def _head(self) -> str:
        on = [f"{gpu['name']}, {gpu['multiprocessors']} SMs, {int(gpu['memory_bytes']) / 2**30:.0f} GiB, driver {gpu['driver']}"
              for gpu in self.machine.gpus] or ["no GPU"]  # fmt: skip
        versions = ", ".join(f"{name} {value}" for name, value in self.machine.facts.items() if value)
        counted = Counter(finding.verdict for outcome in self.outcomes for finding in outcome.findings)
        verdicts = ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict if counted[verdict]) or "nothing found"
        lines = ["# Frostline on this device", "", *([REHEARSAL, ""] if self.device != "cuda" else []),
                 f"{self.began:%Y-%m-%d %H:%M} UTC. {'; '.join(on)}. {versions}."]  # fmt: skip
        if self.quick:
            lines += ["", "A quick check: the smallest sample of each part."]
        lines += ["", f"**{verdicts}.** " + ("All parts came to their end." if self.good else self._trouble())]
        return "\n".join(lines)

    def _trouble(self) -> str:
        words = [f"{outcome.part.name} {outcome.ended}" for outcome in self.outcomes if not outcome.completed]
        words += [f"{part.name} was not begun" for part in self._not_begun()]
        words += [f"{outcome.part.name} has lines that do not hold" for outcome in self.outcomes
                  if outcome.completed and is_bad(outcome)]  # fmt: skip
        return (f"Interrupted by {self.interrupted}. " if self.interrupted else "") + "; ".join(words) + "."

    def _unseen(self) -> str:
        lines = ["## What this check could not see", ""]
        lines += [f"- {what}: {why}" for what, why in unseen(self.device, self.machine).items()]
        lines += [f"- {finding.line} ({outcome.part.name}): {finding.detail}"
                  for outcome in self.outcomes for finding in outcome.findings if finding.verdict is Verdict.UNSEEN]  # fmt: skip
        return "\n".join(lines)


def _section(outcome: Outcome) -> str:
    lines = [f"## {outcome.part.title}", "", f"`{outcome.part.name}`, {outcome.ended} after {outcome.seconds:.0f} s of "
             f"{outcome.part.seconds}.", "", "| asked | verdict | seen |", "|---|---|---|"]  # fmt: skip
    for finding in outcome.findings:
        figures = ", ".join(f"{label} {value:.4g}" for label, value in finding.figures.items())
        seen = "; ".join(text for text in (finding.detail, figures) if text)
        lines.append(f"| {_cell(finding.line)} | {finding.verdict} | {_cell(seen)} |")
    if outcome.output:
        lines += ["", "The end of its output:", "", "```", outcome.output.rstrip(), "```"]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
