"""The four walks through the code: the acts of each walk, and the files of the project that a real run goes through in them.

An act is a function that the run must reach; one that no longer runs, or was renamed, fails the walk. A walk passes the files on
the stack when an act begins: those that hand the thing on, which a reader has to open one way, from the start to the end. The
goal of a walk is for the files passed. A walk also touches, unless the act is marked `stack`, all files that are entered while
the act runs: helpers, the contract, and the files of all that an act sets up. So no file above an act in its thread, or beneath
it, can be left out. The files touched have no goal, only a bound, the number of today.

A walk enters a file anew where an act passes the file and the act before it did not: a reader comes back to a file that he has
left. The stacks of one thread's consecutive acts have files in common, which are entered once. No walk enters a file more than
twice.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENTERED_MAX = 2
"""How often a walk may enter one file."""
CONTROL, WORKER = "frostline_controller/", "frostline_trainer/"


@dataclass(frozen=True)
class Act:
    """An act. place: "<file>:<qualified name>". whole: its callees count too; False where most of them are no part of the
    walk."""

    place: str
    whole: bool = True


def stack(place: str) -> Act:
    return Act(place, whole=False)


@dataclass(frozen=True)
class Walk:
    """A walk.

    Attributes:
        goal: number of files that it may pass.
        passed, touched: the numbers of today, in the order of events that involves most files; more is a fault. The answer to a
            killed worker touches a file less where the survivor misses its peer, and reports, before it is sent the fence, and
            another where no worker outside the plan, as the lost one's successor, departs before the run is over.
    """

    name: str
    goal: int
    passed: int
    touched: int
    acts: tuple[Act, ...]


WALKS = (
    Walk("a gradient norm becomes a patch of the run's object", 20, 19, 48, (
        Act(WORKER + "step/norms.py:piece_squares"),
        stack(WORKER + "step/loop.py:TrainingLoop._vote"),
        stack(WORKER + "step/committing.py:commit_step"),
        stack(WORKER + "step/committing.py:close_interval"),
        Act(WORKER + "step/run_state.py:RunState.confirm"),
        Act(WORKER + "step/run_state.py:RunState.outgoing"),
        Act(WORKER + "control/client.py:ControlClient._send_statistics"),
        Act(CONTROL + "serving/servicer.py:ControlServicer.ReportStatistics"),
        Act(CONTROL + "decisions/next_decision.py:next_decision"),
        Act(CONTROL + "decisions/taker.py:DecisionTaker._bind"),
        Act(CONTROL + "cluster/local/backend.py:LocalBackend.patch_annotations"),
    )),
    Walk("an activation goes to Redis and comes back", 12, 11, 22, (
        stack(WORKER + "prefix/prefix.py:PrefixReader._compute"),
        Act(WORKER + "cache/boundary_cache.py:BoundaryCache.fill"),
        Act(WORKER + "cache/writer.py:Writer._write"),
        stack(WORKER + "prefix/prefix.py:PrefixReader.prefetch"),
        Act(WORKER + "cache/boundary_cache.py:BoundaryCache.prefetch"),
        Act(WORKER + "cache/values.py:read_values"),
        Act(WORKER + "cache/boundary_cache.py:BoundaryCache.read"),
    )),
    Walk("a killed worker's generation is answered, and a step is committed", 30, 20, 125, (
        Act(WORKER + "process/exit_reporter.py:ExitReporter.report"),
        Act(CONTROL + "serving/servicer.py:ControlServicer.Leave"),
        Act(CONTROL + "members/departures.py:Departures._take_departure"),
        Act(CONTROL + "recovery/driver.py:Failures.watch_members"),
        Act(CONTROL + "recovery/reports.py:Recovery.fence"),
        stack(WORKER + "generations/worker.py:Worker._recover"),
        Act(WORKER + "generations/recovering.py:Recovery.report"),
        Act(CONTROL + "serving/servicer.py:ControlServicer.ReportRecovery"),
        Act(CONTROL + "recovery/reports.py:Recovery.answer"),
        Act(CONTROL + "recovery/plans.py:StartingPlans.from_survivors"),
        Act(WORKER + "control/mailbox.py:Mailbox.take"),
        Act(WORKER + "generations/forming.py:Preparation._prepare"),
        Act(WORKER + "generations/entering.py:Entrance.enter"),
        stack(WORKER + "step/committing.py:commit_step"),
    )),
    Walk("a plan becomes the first step in it", 20, 16, 108, (
        Act(CONTROL + "reshape/two_phase.py:Reshaping.prepare"),
        Act(WORKER + "control/mailbox.py:Mailbox.take"),
        Act(WORKER + "generations/forming.py:Preparation._prepare"),
        Act(CONTROL + "serving/servicer.py:ControlServicer.Ready"),
        Act(CONTROL + "reshape/two_phase.py:Reshaping._announce_ready"),
        stack(WORKER + "step/loop.py:TrainingLoop._ballot"),
        Act(WORKER + "step/loop.py:TrainingLoop._switch"),
        Act(WORKER + "generations/entering.py:Entrance.enter"),
        stack(WORKER + "step/generation.py:Generation.compute"),
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Walked:
    """The files of a walk in a run: by act, in the walk's order, the files passed and the files touched.

    absent: acts that did not happen.
    """

    walk: Walk
    by_act: tuple[tuple[Act, frozenset[str], frozenset[str]], ...]
    absent: tuple[str, ...]

    @property
    def passed(self) -> frozenset[str]:
        return frozenset().union(*(passed for _, passed, _ in self.by_act))

    @property
    def touched(self) -> frozenset[str]:
        """The files touched, including those passed."""
        return self.passed.union(*(touched for _, _, touched in self.by_act))

    @property
    def entered(self) -> Counter[str]:
        """How often each file passed is entered: by an act that passes it after one that does not."""
        times, before = Counter[str](), frozenset[str]()
        for _, passed, _ in self.by_act:
            times.update(passed - before)
            before = passed
        return times

    def text(self) -> str:
        """Return the walk for people: each act with the files that it adds; those only touched in brackets."""
        walk = self.walk
        often = ", ".join(f"{file} {times} times" for file, times in sorted(self.entered.items()) if times > ENTERED_MAX)
        lines = [f"{walk.name}: passes {len(self.passed)} files (goal {walk.goal}, today's bound {walk.passed}) and touches "
                 f"{len(self.touched)} (bound {walk.touched}); entered too often: {often or 'none'}"]  # fmt: skip
        reported: set[str] = set()
        for act, passed, touched in self.by_act:
            lines.append(f"  {act.place}")
            lines += [f"      {file}" for file in sorted(passed - reported)]
            lines += [f"      ({file})" for file in sorted(touched - passed - reported)]
            reported |= passed | touched
        return "\n".join([*lines, *(f"  {place}  did not happen" for place in self.absent)])


def write_acts(folder: Path, walks: Sequence[Walk] = WALKS) -> None:
    """Write the acts that the recorders follow."""
    acts = {act.place: act.whole for walk in walks for act in walk.acts}
    (folder / "acts.json").write_text(json.dumps(acts))


def read_walks(folder: Path, walks: Sequence[Walk] = WALKS) -> list[Walked]:
    """Return the records of a run's processes as walks."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                act, name, on_stack = json.loads(line)
                found.setdefault(act, (set(), set()))[not on_stack].add(name)
    return [
        Walked(
            walk,
            tuple((act, *(frozenset(files) for files in found.get(act.place, ((), ())))) for act in walk.acts),
            tuple(act.place for act in walk.acts if act.place not in found),
        )
        for walk in walks
    ]
