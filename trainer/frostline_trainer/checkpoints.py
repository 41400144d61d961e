"""Checkpoints: one safetensors file a unit, a manifest written last (PROTOCOLS 8). Any shape loads any.

Layout under the root: <run epoch>/<generation>/<step>/unit-000.safetensors with unit-000.sha256 beside it, and manifest.json.
The copy is taken at a commit point; files are written in the background; the manifest is published when all files are there
and the step is stable. A folder without manifest.json is no checkpoint.
"""

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from frostline_trainer.engine.unit_state import UnitState, run_digest, unit_digest

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
VERSION = 1
WAIT_FOR_FILES_SECONDS = 300.0
_DAMAGED = "the file was damaged: restore it, or remove this checkpoint's folder to resume from the one before"


@dataclass
class Snapshot:
    """One member's share of a checkpoint. manifest: the manifest's fields on the member that publishes it, else None."""

    folder: Path
    units: dict[int, UnitState]
    tied_names: dict[int, frozenset[str]]
    num_units: int
    manifest: dict | None
    stable: threading.Event


class CheckpointWriter:
    """Writes snapshots one after the other in a background thread; a full disk costs a warning, never the run.

    on_published(folder, manifest): called in that thread. not_written: what went wrong, by folder.
    """

    def __init__(self, keep_last: int, on_published: Callable[[Path, dict], None]) -> None:
        self._keep_last, self._on_published = keep_last, on_published
        self.not_written: dict[Path, str] = {}
        self._queue: Queue[Snapshot | None] = Queue()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    def write(self, snapshot: Snapshot) -> None:
        self._queue.put(snapshot)

    def finish(self) -> None:
        """Wait until everything handed in is written."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (snapshot := self._queue.get()) is not None:
            try:
                _write_units(snapshot)
                if snapshot.manifest is not None and _publish(snapshot):
                    self._on_published(snapshot.folder, snapshot.manifest)
                    _prune(snapshot.folder.parents[2], self._keep_last)
            except OSError as error:
                self.not_written[snapshot.folder] = str(error)
                log.warning("checkpoint %s not written: %s; training goes on, free some space", snapshot.folder, error)
                shutil.rmtree(snapshot.folder, ignore_errors=True)


def _write_units(snapshot: Snapshot) -> None:
    snapshot.folder.mkdir(parents=True, exist_ok=True)
    for unit, state in snapshot.units.items():
        final = snapshot.folder / f"unit-{unit:03d}.safetensors"
        partial = final.with_suffix(".partial")
        try:
            save_file({key: tensor.contiguous() for key, tensor in state.items()}, partial)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        _sync(partial)
        os.replace(partial, final)
        skipped, whole = snapshot.tied_names.get(unit), unit_digest(state)
        counted = unit_digest(state, skipped) if skipped else whole
        _write_text(final.with_suffix(".sha256"), f"{counted.hex()} {whole.hex()}")


def _publish(snapshot: Snapshot) -> bool:
    """Write the manifest once every unit's file is there and the step is stable. False where that never happens."""
    sidecars = [snapshot.folder / f"unit-{unit:03d}.sha256" for unit in range(snapshot.num_units)]
    deadline = time.monotonic() + WAIT_FOR_FILES_SECONDS
    while not (all(path.exists() for path in sidecars) and snapshot.stable.is_set()):
        if time.monotonic() > deadline:
            missing = [path.name for path in sidecars if not path.exists()]
            log.warning("checkpoint %s given up: missing %s, stable %s", snapshot.folder, missing[:3], snapshot.stable.is_set())
            return False
        time.sleep(0.02)
    digests = [path.read_text().split() for path in sidecars]
    assert snapshot.manifest is not None
    snapshot.manifest["units"] = [
        {"file": path.with_suffix(".safetensors").name, "sha256": counted, "whole_sha256": whole}
        for path, (counted, whole) in zip(sidecars, digests, strict=True)
    ]
    snapshot.manifest["digest"] = run_digest([bytes.fromhex(counted) for counted, _ in digests])
    snapshot.manifest["version"] = VERSION
    _write_text(snapshot.folder / MANIFEST, json.dumps(snapshot.manifest, indent=1))
    return True


def read_manifest(folder: Path) -> dict:
    """A complete checkpoint's manifest. Raises ValueError where the folder holds none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder}: no complete checkpoint ({error}); a folder without {MANIFEST} was never finished") from error
    if manifest.get("version") != VERSION:
        raise ValueError(f"{folder}: checkpoint version {manifest.get('version')}, this program reads {VERSION}")
    return manifest


def load_unit(folder: Path, manifest: dict, unit: int) -> UnitState:
    """One unit's state. Raises ValueError for a file that is missing, truncated or not what its manifest says.

    The manifest's sha256 leaves out what counts in another unit (a tied matrix); whole_sha256 is that of everything in the file.
    """
    entry = manifest["units"][unit]
    path = folder / entry["file"]
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); {_DAMAGED}") from error
    if unit_digest(state).hex() != entry["whole_sha256"]:
        raise ValueError(f"{path}: its bytes are not those that {MANIFEST} names; {_DAMAGED}")
    return state


def complete_checkpoints(root: Path) -> list[tuple[Path, dict]]:
    """All complete checkpoints under `root`, oldest (lineage, step) first."""
    found = []
    for path in root.glob(f"*/*/*/{MANIFEST}"):
        found.append((path.parent, read_manifest(path.parent)))
    return sorted(found, key=lambda item: (item[1]["lineage"], item[1]["step"]))


def _prune(root: Path, keep_last: int) -> None:
    """Keep the newest, the best by guard loss, and those that the guard may still roll back to."""
    found = complete_checkpoints(root)
    keep = {folder for folder, _ in found[-keep_last:]}
    scored = [(manifest["guard_loss"], folder) for folder, manifest in found if manifest.get("guard_loss") is not None]
    if scored:
        keep.add(min(scored)[1])
    keep |= {folder for folder, manifest in found[-8:] if manifest.get("before_freeze")}
    for folder, _ in found:
        if folder not in keep:
            (folder / MANIFEST).unlink()
            shutil.rmtree(folder, ignore_errors=True)


def _write_text(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    _sync(partial)
    os.replace(partial, path)


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
