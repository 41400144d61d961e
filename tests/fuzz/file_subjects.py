"""Input from files and annotations: job files, the durable state, manifests, run epochs, journals."""

import asyncio
import base64
import json
import random
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from frostline_contract.epochs import MANIFEST_NAME, parse_epochs
from frostline_contract.job import JobError, load_job
from frostline_contract.jsonl import read_jsonl
from frostline_contract.pieces import Pieces
from frostline_controller.run.checkpoints import found_checkpoints
from frostline_controller.run.durable import DurableState, decode_state, encode_state
from frostline_controller.run.journal import Journal
from frostline_trainer.checkpoints.reading import complete_checkpoints, load_piece, read_manifest
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import unit_digest
from tests.fuzz.mutating import mutated, with_another_value
from tests.fuzz.subject import Subject, synthetic_run
from tests.unit.controller.synthetic_run import job_values

YAML_WORDS = (
    b"2020-01-01", b"!!binary aGk=", b"!!set {a}", b"!!omap [a: 1]", b"[1,2]", b"{a: b}", b"~", b".inf", b".nan", b"1e400",
    b"1_000", b"0x7fffffffffffffffff", b"190:20:30", b"&a [*a]", b"!!python/object:x.y {}", b"'\\x00'", b'"\\uD800"', b"? a",
    b"=", b"<<: {a: 1}", b"'",
)  # fmt: skip
OVERRIDDEN = ("training.steps=", "model.config.x=", "name=", "faults=", "data.columns=")


class InFolder(Subject):
    """A subject with files of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="frostline-fuzz-"))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class JobFiles(InFolder):
    """Job files with words of YAML where they do not belong, and `--set` with them."""

    name, share = "job files", 0.015

    def __init__(self) -> None:
        super().__init__()
        self._whole = yaml.safe_dump(job_values(), sort_keys=False).encode()

    def run(self, rng: random.Random) -> None:
        text = mutated(self._whole, rng)
        if rng.random() < 0.5:
            lines = self._whole.splitlines(keepends=True)
            place = rng.randrange(len(lines))
            lines[place] = lines[place].split(b":")[0] + b": " + rng.choice(YAML_WORDS) + b"\n"
            text = b"".join(lines)
        (self.folder / "job.yaml").write_bytes(text)
        overrides = [rng.choice(OVERRIDDEN) + rng.choice(YAML_WORDS).decode("latin-1")] if rng.random() < 0.3 else []
        try:
            load_job(self.folder / "job.yaml", overrides)
        except JobError:
            return


class DurableStates(Subject):
    """The annotation from which a new controller goes on."""

    name, share = "durable states", 0.08

    def __init__(self) -> None:
        run = synthetic_run()
        state = DurableState(incarnation=3, counter=7, current=run.plans[-1].plan, decisions=run.decisions, state="running")
        self._text = encode_state(state)
        self._values = json.loads(zlib.decompress(base64.b64decode(self._text)))

    def run(self, rng: random.Random) -> None:
        if rng.random() < 0.4:
            text = mutated(self._text.encode(), rng).decode("latin-1")
        else:
            changed = json.dumps(with_another_value(self._values, rng)).encode()
            text = base64.b64encode(zlib.compress(changed if rng.random() < 0.5 else mutated(changed, rng), 1)).decode()
        try:
            decode_state(text)
        except ValueError:
            return


class Checkpoints(InFolder):
    """Manifests and units of checkpoints, as trainers and controllers read them."""

    name, share = "checkpoints", 0.03

    def __init__(self) -> None:
        super().__init__()
        self._place = self.folder / "0" / "1.1" / "20"
        self._place.mkdir(parents=True)
        unit = {"weight": torch.arange(12.0).reshape(3, 4)}
        save_file(unit, self._place / "unit-000.safetensors")
        self._unit = (self._place / "unit-000.safetensors").read_bytes()
        digest = unit_digest(unit).hex()
        decisions = [one.model_dump(mode="json") for one in synthetic_run().decisions]
        self._manifest: dict[str, Any] = {
            "version": 1, "lineage": 0, "step": 20, "guard_loss": 0.5, "digest": digest, "before_freeze": False,
            "units": [{"file": "unit-000.safetensors", "sha256": digest, "whole_sha256": digest}],
            "state": {**RunState(step=20).dump(), "decisions": decisions},
        }  # fmt: skip

    def run(self, rng: random.Random) -> None:
        text = json.dumps(with_another_value(self._manifest, rng)).encode()
        if rng.random() < 0.3:
            text = mutated(json.dumps(self._manifest).encode(), rng)
        (self._place / MANIFEST_NAME).write_bytes(text)
        (self._place / "unit-000.safetensors").write_bytes(mutated(self._unit, rng) if rng.random() < 0.3 else self._unit)
        found_checkpoints(self.folder)  # passes over what it cannot read
        complete_checkpoints(self.folder)
        try:
            manifest = read_manifest(self._place)
            load_piece(self._place, manifest, Pieces(1), 0)
            RunState.model_validate(manifest.get("state"))
        except ValueError:
            return


class Epochs(Subject):
    """Versions of the run epoch's object, under odd names."""

    name, share = "epochs", 0.03
    names = ("1.json", "²3.json", "01.json", "-1.json", ".1.json.x", "9" * 30 + ".json", "9" * 5000 + ".json")

    def run(self, rng: random.Random) -> None:
        text = mutated(b'{"version": 1, "run_epoch": 0, "from": "", "plan": "", "result": null}', rng).decode("latin-1")
        try:
            parse_epochs({rng.choice(self.names): text})
        except ValueError:
            return


class Journals(InFolder):
    """Journals with damaged lines, as their writer and the report read them."""

    name, share = "journals", 0.025

    def __init__(self) -> None:
        super().__init__()
        self._whole = b"".join(json.dumps(one.model_dump(mode="json")).encode() + b"\n" for one in synthetic_run().records[:5])

    def run(self, rng: random.Random) -> None:
        path = self.folder / "metrics.jsonl"
        path.write_bytes(mutated(self._whole, rng))
        for read in (lambda: list(read_jsonl(path)), lambda: asyncio.run(self._append(path))):
            try:
                read()
            except ValueError:
                continue

    async def _append(self, path: Path) -> None:
        journal = Journal(path)
        try:
            await journal.append([{"step": 6}])
            list(journal.lines())
        finally:
            journal.close()


SUBJECTS = (JobFiles, DurableStates, Checkpoints, Epochs, Journals)
