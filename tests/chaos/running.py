"""Runs cases: each in a folder of its own, beside a shared preload process, compared with the one undisturbed run."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from frostline_contract.run_directory import RunDirectory
from tests.chaos.acting import CORPUS, MODEL, OTHER_MODEL, Actor, complaints_of
from tests.chaos.acts import OWN_PRELOAD, STOPS, WRITES, Act
from tests.chaos.cases import Case, checkpoint_root
from tests.chaos.comparing import differences, once, voids
from tests.chaos.jobs import VARIANTS, Variant
from tests.chaos.lateness import lateness
from tests.chaos.leftovers import leftovers, wait_until_gone
from tests.chaos.oracle import Verdict, judge
from tests.chaos.sizes import overlooked
from tests.chaos.timeline import Timeline, read_timeline
from tests.e2e.runs import FROSTLINE, Ended, Running

WARM_SECONDS = 180.0
DRAINED, KILLED = 3, -9
"""Exit statuses after which a run is resumed; the first one only where an act has caused it."""
UNSAVED = "its weights could not be written"
"""The message of a run that failed by a bad write in the last checkpoint: it is resumed too, by the command in the message."""
PLUG = Path(__file__).with_name("plug")
WRITES_FOLDER = "FROSTLINE_CHAOS_WRITES"
PATIENT_SECONDS = 60.0
"""A wait for a decision of at least this length outlasts every fault."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case. problems: empty where all is correct. recovery_seconds: of each failure, as the run reports it."""

    case: Case
    problems: tuple[str, ...]
    timeline: Timeline | None
    verdict: Verdict
    seconds: float
    recovery_seconds: tuple[float, ...]
    late: frozenset[int]
    folder: Path


class Laboratory:
    """The shared parts of all cases: the preload process, the corpus, and one undisturbed run of each variant."""

    def __init__(self, root: Path, preload: str) -> None:
        self.root = root
        self._env = {**os.environ, "FROSTLINE_PRELOAD": preload, "OMP_NUM_THREADS": "1"}
        self._references: dict[str, Ended] = {}
        self._running: set[Running] = set()
        self._order, self._saving = threading.Lock(), threading.Lock()
        self._corpus = root / CORPUS
        self._corpus.write_text(corpus())

    def reference(self, variant: Variant) -> Ended:
        """Return the undisturbed run of this variant on one worker; made once."""
        with self._order:
            if variant.name not in self._references:
                ended = self._run(self.root / f"reference-{variant.name}", variant.quiet())
                assert ended.code == 0, ended.story()
                problems = once(ended)
                assert not problems, problems
                self._references[variant.name] = ended
            return self._references[variant.name]

    def run(self, case: Case) -> Outcome:
        """Run a case and judge it."""
        variant = VARIANTS[case.variant]
        reference = self.reference(variant)
        started = time.monotonic()
        ended = self._run(self.root / case.name.replace(" ", "-"), case.job(), acts=case.acts)
        seconds = time.monotonic() - started
        problems = []
        timeline, verdict, late = None, Verdict((), ()), frozenset[int]()
        try:
            timeline = read_timeline(ended.folder, case, variant.num_pieces)
            verdict = judge(timeline)
            late, complaints = self._late(case, ended, timeline)
            problems += [*verdict.complaints, *complaints, *overlooked(ended.folder, case.acts, case.workers_per_pod)]
            replay = late or case.changes_numerics
            problems += differences(ended, self._replayed(case, ended) if replay else reference, late, replayed=bool(replay))
        except (KeyError, ValueError, OSError) as broken:
            problems.append(f"the run directory cannot be read: {broken!r}")
        if case.seed is None and timeline is not None and len(timeline.hits) < len(case.faults):
            problems.append("a fault of the fixed table did not happen")
        problems += complaints_of(ended.folder.parent)
        problems += leftovers(ended.folder, self._temporary(ended.folder), checkpoint_root(ended.folder, case.job()))
        if ended.code != 0:
            problems.append(ended.output.strip().splitlines()[-1][:300] if ended.output.strip() else "it said nothing")
        recovered = tuple(event["seconds"] for event in ended.events("failure"))
        return Outcome(case, tuple(problems), timeline, verdict, seconds, recovered, late, ended.folder)

    def _models(self) -> Path:
        """Return the folder of two models of one architecture; made once."""
        folder = self.root / "models"
        with self._saving:
            if not folder.exists():
                save_models(folder)
        return folder

    def stop(self) -> None:
        """End all running commands with all their processes: a second signal ends a command at once."""
        for running in list(self._running):
            for _ in range(2):
                running.process.terminate()
                time.sleep(0.2)

    def forget(self, outcome: Outcome) -> None:
        """Remove the files of a case, and those of its replay."""
        for folder in (outcome.folder.parent, self._of_replay(outcome.folder)):
            shutil.rmtree(folder, ignore_errors=True)

    def _late(self, case: Case, ended: Ended, timeline: Timeline) -> tuple[frozenset[int], list[str]]:
        """Return the decisions that came too late, and complaints about those that the faults do not explain."""
        committed = {record["step"]: record["time_seconds"] for record in ended.records}
        members = {step: frozenset(life.plan.placement.workers) for life in timeline.lives for step in life.recorded}
        expected = lateness(timeline.hits, committed, members, case.wait_seconds, PATIENT_SECONDS)
        late = frozenset(voids(ended))
        if expected.must <= late <= expected.may:
            return late, []
        return late, [f"decisions {sorted(late)} came late; {sorted(expected.must)} must and {sorted(expected.may)} may"]

    def _replayed(self, case: Case, ended: Ended) -> Ended:
        """Run the numerics of a run with late decisions once more, on one undisturbed worker."""
        return self._run(self._of_replay(ended.folder), VARIANTS[case.variant].quiet(), "--replay", str(ended.folder))

    def _of_replay(self, run: Path) -> Path:
        """Return the folder in which the numerics of a case's run are replayed."""
        return run.parent.with_name(f"{run.parent.name}-replay")

    def _run(self, folder: Path, job: dict[str, Any], *arguments: str, acts: Sequence[Act] = ()) -> Ended:
        """Run a job in `folder`/run with its temporary files in `folder`/t; resume it as often as an act has stopped it."""
        shutil.rmtree(folder, ignore_errors=True)
        run = folder / "run"
        self._temporary(run).mkdir(parents=True)
        if job["data"]["source"] == "text":
            shutil.copy(self._corpus, folder / CORPUS)
            job = {**job, "data": {**job["data"], "path": str(folder / CORPUS)}}
        if "path" in job["model"]:
            for name in (MODEL, OTHER_MODEL):
                shutil.copytree(self._models() / name, folder / name)
            job = {**job, "model": {**job["model"], "path": str(folder / MODEL)}}
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(job, sort_keys=False))
        actor = Actor(acts, folder)
        env = self._environment(folder, acts, actor)
        words = ["run", "-f", str(file), "--out", str(run), *arguments]
        stopped = (DRAINED, KILLED) if any(act.kind == "drain" for act in acts) else (KILLED,)
        for _ in range(sum(act.kind in (*STOPS, *WRITES) for act in acts) + 1):
            ended = self._once([*words, "--quiet", "--no-report"], run, env, actor)
            if ended.code not in stopped and not (UNSAVED in ended.output and actor.spoilt()):
                break
            # None of its processes may still run when the next one begins: a killed process is gone a moment later.
            wait_until_gone(run)
            if RunDirectory(run).ended_as() == "completed":
                # Killed just after its last write: nothing is left to do, and no process is left to remove its temporary files.
                for left in self._temporary(run).iterdir():
                    shutil.rmtree(left)
                return replace(ended, code=0)
            saved = any(checkpoint_root(run, job).glob("*/*/*/manifest.json"))
            from_scratch = [] if saved else ["--from-scratch"]
            words = ["resume", str(run), *from_scratch]
        return ended

    def _once(self, words: list[str], run: Path, env: dict[str, str], actor: Actor) -> Ended:
        running = Running(run, [*FROSTLINE, *words], env)
        self._running.add(running)
        acting = actor.follow(running, env)
        try:
            return running.end()
        finally:
            acting.join()
            self._running.discard(running)

    def _environment(self, folder: Path, acts: Sequence[Act], actor: Actor) -> dict[str, str]:
        env = {**self._env, "TMPDIR": str(self._temporary(folder / "run"))}
        if any(act.file for act in acts):
            env |= {"PYTHONPATH": with_plug(), WRITES_FOLDER: str(actor.writes)}
        if any(act.kind in OWN_PRELOAD for act in acts):
            del env["FROSTLINE_PRELOAD"]  # a preload process of its own, which ends with this run
            env["TORCHINDUCTOR_CACHE_DIR"] = str(self.root / "torch")  # made by torch at its import; belongs to no run
        return env

    def _temporary(self, run: Path) -> Path:
        return run.parent / "t"


def save_models(folder: Path) -> None:
    """Save the models of the variant `loaded`, with different seeds."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    from frostline_trainer.families.checkpoints import quiet

    config = ViTConfig(**VARIANTS["vit"].values["model"]["config"], image_size=8, num_channels=1, num_labels=10)
    for seed, name in enumerate((MODEL, OTHER_MODEL)):
        torch.manual_seed(seed)
        with quiet():
            ViTForImageClassification(config).save_pretrained(folder / name)


def corpus() -> str:
    """Return a small text of made-up sentences: the same every time."""
    rng = random.Random("frostline chaos corpus")
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(60)]
    sentences = [" ".join(rng.choices(words, k=rng.randint(4, 9))) + "." for _ in range(1200)]
    return "\n".join(sentences) + "\n"


@contextmanager
def laboratory(root: Path) -> Iterator[Laboratory]:
    """Yield a laboratory in `root`, with a preload process that ends with it."""
    with tempfile.TemporaryDirectory(prefix="frostline-chaos-") as folder:
        socket = Path(folder) / "preload.sock"
        said = root / "preload.log"
        with open(said, "wb") as log:
            words = [sys.executable, "-m", "frostline_trainer.process.preload", str(socket)]
            # Workers are its children: writes can be planted in them where a run requires it.
            process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": with_plug()})
        try:
            deadline = time.monotonic() + WARM_SECONDS
            while not socket.exists():
                assert process.poll() is None, f"the preload process ended: {said.read_text()[-2000:]}"
                assert time.monotonic() < deadline, f"the preload process was not ready within {WARM_SECONDS:g} s"
                time.sleep(0.05)
            yield Laboratory(root, str(socket))
        finally:
            process.terminate()
            process.wait(10)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome for the results file."""
    case, timeline = outcome.case, outcome.timeline
    hits = timeline.hits if timeline is not None else ()
    return {
        "name": case.name,
        "seed": case.seed,
        "aim": case.aim,
        "variant": case.variant,
        "workers": case.workers,
        "shape": list(case.shape),
        "faults": [fault.model_dump() for fault in case.faults],
        "happened": [{"kind": hit.fault.kind, "phase": hit.phase, "step": hit.step} for hit in hits],
        "recoveries": [
            {"expected": one.expected, "back_to": one.back_to, "late_commit": one.late, "missing": list(one.missing)}
            for one in outcome.verdict.recoveries
        ],
        "late_decisions": sorted(outcome.late),
        "seconds": round(outcome.seconds, 3),
        "recovery_seconds": [round(seconds, 3) for seconds in outcome.recovery_seconds],
        "problems": list(outcome.problems),
    }


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")


def with_plug() -> str:
    """Return a PYTHONPATH that begins with the planter of writes; what the series itself was started with comes after it."""
    return os.pathsep.join(filter(None, (str(PLUG), os.environ.get("PYTHONPATH"))))
