"""Finds and reads complete checkpoints: one safetensors file a piece, and a manifest, written last (docs/protocols.md 8.1).

Layout under the root: <run epoch>/<generation>/<step>/unit-000.safetensors with unit-000.sha256 beside it, and manifest.json.
With several pieces a unit they are unit-000.0.safetensors and so on, and the manifest lists them as `pieces`, not as `units`.
A folder without manifest.json is no checkpoint. A checkpoint can be loaded in any shape. writing.py writes them.
"""

import glob
import json
import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from frostline_contract.epochs import MANIFEST_NAME, MANIFEST_PATTERN, FoundCheckpoint, read_epochs, surviving
from frostline_contract.pieces import Pieces
from frostline_trainer.step.unit_state import UnitState, unit_digest

log = logging.getLogger(__name__)
VERSION_OF_UNITS, VERSION_OF_PIECES = 1, 2
"""Versions of a manifest: with one file a unit, and with several pieces of each unit."""


class _Entry(BaseModel):
    """A piece's file, in the manifest's folder, and the digest of its whole content."""

    model_config = ConfigDict(strict=True)

    file: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")
    whole_sha256: str


class _Decision(BaseModel):
    model_config = ConfigDict(strict=True)

    kind: str
    effective_step: int


class _State(BaseModel):
    """The part of the run state that retention reads; a restore checks all of it."""

    model_config = ConfigDict(strict=True)

    decisions: list[_Decision] = []


class _Manifest(BaseModel):
    """The fields that every reader of a manifest relies on; a reader of other fields checks them itself."""

    model_config = ConfigDict(strict=True)

    lineage: int = Field(ge=0)
    step: int = Field(ge=0)
    state: _State = _State()
    guard_loss: float | None = None


class _ManifestOfUnits(_Manifest):
    """The manifest of a run with one piece a unit."""

    units: list[_Entry]


class _ManifestOfPieces(_Manifest):
    """The manifest of a run with several pieces a unit: `state_ranges` of each of `state_tiles`, and of the rest.

    hidden_tiles: of the tiles at each inner tile.
    """

    state_ranges: int = Field(ge=1)
    state_tiles: int = Field(default=1, ge=1)
    hidden_tiles: int = Field(default=1, ge=1)
    pieces: list[_Entry]


_DAMAGED = "the file was damaged: restore it, or remove this checkpoint's folder to resume from the one before"


def is_complete(folder: Path) -> bool:
    """Whether the checkpoint in `folder` is published."""
    return (folder / MANIFEST_NAME).exists()


def read_manifest(folder: Path) -> dict:
    """A complete checkpoint's manifest. Raises ValueError if the folder has none, or an invalid one."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{folder}: no complete checkpoint ({error}); a folder without {MANIFEST_NAME} was never finished"
        ) from error
    if not isinstance(manifest, dict):
        raise ValueError(f"{folder}/{MANIFEST_NAME}: holds {type(manifest).__name__}, expected an object; {_DAMAGED}")
    version = manifest.get("version")
    if version not in (VERSION_OF_UNITS, VERSION_OF_PIECES):
        raise ValueError(f"{folder}: checkpoint version {version}, this program reads {VERSION_OF_UNITS} and {VERSION_OF_PIECES}")
    try:
        (_ManifestOfUnits if version == VERSION_OF_UNITS else _ManifestOfPieces).model_validate(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{folder}/{MANIFEST_NAME}: {place} is {first['input']!r:.80}: {first['msg']}; {_DAMAGED}") from None
    return manifest


def refuse_other_data(folder: Path, manifest: dict, dataset_digest: str) -> None:
    """Raise ValueError where a run of other data has written a checkpoint; a manifest without a digest says nothing about it."""
    written = manifest.get("dataset_digest") or dataset_digest
    if written != dataset_digest:
        raise ValueError(
            f"{folder}: dataset_digest is {str(written)[:12]}, this run's is {dataset_digest[:12]}: another run has written that "
            "checkpoint; remove it, or begin a new run with a checkpoint.uri of its own"
        )


def load_piece(folder: Path, manifest: dict, table: Pieces, piece: int) -> UnitState:
    """One piece's state.

    The manifest's sha256 leaves out tensors that count in another unit (a tied matrix); whole_sha256 covers the whole file.

    Args:
        folder: the checkpoint.
        manifest: the checkpoint's manifest.
        table: the run's pieces; the checkpoint must have its units cut in the same way.
        piece: number of the piece.

    Raises:
        ValueError: the file is missing, truncated or not the one in the manifest.
    """
    ranges, tiles = manifest.get("state_ranges", 1), manifest.get("state_tiles", 1)
    hidden = manifest.get("hidden_tiles", 1)
    if ranges > 1 and tiles == 1 and table.state_tiles > 1:
        raise ValueError(
            f"{folder}: each unit's state is in {ranges} ranges of the whole unit, and training.tensor_tiles has inner "
            f"{table.grid.inner} and hidden {table.grid.hidden}: if the run that wrote it had no tiles, set inner and hidden to "
            "1; else it is of a version before tiles had ranges of their own, and norms had other bits: begin a new run, or "
            "continue with the program that wrote it"
        )
    for cut, found, wanted, field in (
        ("ranges", ranges, table.ranges, "training.state_ranges"),
        ("inner tiles", tiles // hidden, table.grid.inner, "training.tensor_tiles.inner"),
        ("hidden tiles", hidden, table.grid.hidden, "training.tensor_tiles.hidden"),
    ):
        if found != wanted:
            raise ValueError(
                f"{folder}: each unit's state is in {found} {cut}, {field} is {wanted}; "
                "it is fixed for a run: set it to what the run began with"
            )
    name = "units" if table.per_unit == 1 else "pieces"
    entries = manifest.get(name, [])
    if not 0 <= piece < len(entries):
        raise ValueError(f"{folder}/{MANIFEST_NAME}: names {len(entries)} {name}, not {name[:-1]} {piece}; {_DAMAGED}")
    entry = entries[piece]
    path = folder / entry["file"]
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); {_DAMAGED}") from error
    if unit_digest(state).hex() != entry["whole_sha256"]:
        raise ValueError(f"{path}: its bytes are not those that {MANIFEST_NAME} names; {_DAMAGED}")
    return state


def readable_checkpoints(root: Path) -> dict[FoundCheckpoint, dict]:
    """Every complete checkpoint under `root` with its manifest, of any run epoch.

    A checkpoint that cannot be read is skipped with a log message, since it may have been removed just now. `Path.glob` raises if
    a folder vanishes; the `glob` module skips it.
    """
    found = {}
    for path in (Path(root, found_path) for found_path in glob.iglob(MANIFEST_PATTERN, root_dir=root)):
        try:
            manifest = read_manifest(path.parent)
        except ValueError as error:
            log.info("passed over: %s", error)
            continue
        place = path.parent.relative_to(root).as_posix()
        found[FoundCheckpoint(path=place, lineage=manifest["lineage"], step=manifest["step"])] = manifest
    return found


def complete_checkpoints(root: Path) -> list[tuple[Path, dict]]:
    """The complete checkpoints on the run's own history (docs/protocols.md 5.5), oldest (lineage, step) first: (folder,
    manifest)."""
    found = readable_checkpoints(root)
    return [(Path(root) / one.path, found[one]) for one in surviving(read_epochs(root), found)]
