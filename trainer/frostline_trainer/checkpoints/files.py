"""The file operations of a checkpoint. Each is atomic, since a writer may be killed before, during or after any of them.

A piece's file and its digests are renamed into place. The manifest is hard-linked into place, so that it is written only once,
even if several members try. Leftovers of a killed writer (`*.partial`, a folder without a manifest) are no checkpoint, and
retention.py removes them.
"""

import contextlib
import json
import shutil
import uuid
from pathlib import Path

from safetensors.torch import save

from frostline_contract.durable_files import Before, create_through, replace_through
from frostline_contract.epochs import MANIFEST_NAME
from frostline_contract.pieces import Pieces
from frostline_contract.plan import GenerationId
from frostline_trainer.checkpoints.reading import VERSION_OF_PIECES, VERSION_OF_UNITS
from frostline_trainer.step.unit_state import UnitState, digest_of_pieces, unit_digest

PARTIAL = ".partial"


def piece_file(folder: Path, table: Pieces, piece: int) -> Path:
    """A piece's file: unit-003.safetensors if a unit is one piece, else unit-003.0.safetensors etc., by its place in the unit."""
    return folder / f"{_stem(table, piece)}.safetensors"


def digest_file(folder: Path, table: Pieces, piece: int) -> Path:
    """The file with a piece's two digests and the generation that wrote it; it appears after the piece's own file."""
    return folder / f"{_stem(table, piece)}.sha256"


def failure_file(folder: Path, table: Pieces, piece: int) -> Path:
    """The file in which a member says why it cannot write its share, named after the share's first piece."""
    return folder / f"{_stem(table, piece)}.failed"


def _stem(table: Pieces, piece: int) -> str:
    unit = f"unit-{table.unit_of(piece):03d}"
    return unit if table.per_unit == 1 else f"{unit}.{table.place_of(piece)}"


def write_piece(
    folder: Path, table: Pieces, piece: int, state: UnitState, tied: frozenset[str], generation: str, before: Before
) -> None:
    """Write one piece's file, then its digest file. Raises OSError.

    If the digest file exists, the piece's file is complete.

    Args:
        folder: the checkpoint's folder.
        table: the run's pieces.
        piece: number of the piece.
        state: the piece's tensors.
        tied: names of tensors that count in another unit's digest.
        generation: the generation that writes, for the digest file.
        before: called before each operation on the disk.
    """
    payload = save({key: tensor.contiguous() for key, tensor in state.items()})
    _write_whole(piece_file(folder, table, piece), payload, before)
    whole = unit_digest(state)
    counted = unit_digest(state, tied) if tied else whole
    _write_whole(digest_file(folder, table, piece), f"{counted.hex()} {whole.hex()} {generation}".encode(), before)


def drop_share(folder: Path, table: Pieces, pieces: list[int]) -> None:
    """Delete the files of a share, as far as the disk allows."""
    for piece in pieces:
        for path in (piece_file(folder, table, piece), digest_file(folder, table, piece)):
            for left in (path, path.with_name(path.name + PARTIAL)):
                with contextlib.suppress(OSError):
                    left.unlink()


def write_failure(folder: Path, table: Pieces, pieces: list[int], reason: str) -> None:
    """Write a marker that this share will not come, for the member that publishes. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    failure_file(folder, table, pieces[0] if pieces else 0).write_text(reason[:500])


def read_failures(folder: Path) -> str:
    """Why a member could not write its share; empty if there is no such marker."""
    marker = next(folder.glob("unit-*.failed"), None)
    return (marker.read_text() or "a member could not write its share") if marker is not None else ""


def publish_manifest(folder: Path, manifest: dict, before: Before) -> bool:
    """Write the manifest, once, after the folder entries of all its files were synced. False if there was one already.

    Raises OSError.
    """
    final = folder / MANIFEST_NAME
    partial = final.with_name(f"{MANIFEST_NAME}.{uuid.uuid4().hex}{PARTIAL}")
    return create_through(partial, final, json.dumps(manifest, indent=1).encode(), before, (folder, *folder.parents[:3]))


def remove_folder(folder: Path, before: Before) -> None:
    """Remove a checkpoint, its manifest first, so that the rest is no checkpoint at any moment."""
    before("remove")
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _write_whole(final: Path, payload: bytes, before: Before) -> None:
    replace_through(final.with_name(final.name + PARTIAL), final, payload, before)


def with_digests(fields: dict, folder: Path, table: Pieces, generation: GenerationId) -> dict:
    """A manifest's fields plus file and digests of every piece.

    Args:
        fields: the manifest's other fields.
        folder: the checkpoint's folder.
        table: the run's pieces.
        generation: the generation that has to have written all pieces.

    Raises:
        OSError: a file is missing, or another generation has written a share.
    """
    entries, counted = list[dict[str, str]](), list[bytes]()
    for piece in range(table.count):
        own, whole, written_by = digest_file(folder, table, piece).read_text().split()
        file = piece_file(folder, table, piece).name
        if written_by != str(generation):
            raise OSError(f"{file} was written by generation {written_by}, the others by {generation}")
        entries.append({"file": file, "sha256": own, "whole_sha256": whole})
        counted.append(bytes.fromhex(own))
    described = {**fields, "digest": digest_of_pieces(table, counted)}
    if table.per_unit == 1:
        return {**described, "units": entries, "version": VERSION_OF_UNITS}
    tiles = {"state_tiles": table.state_tiles, "hidden_tiles": table.grid.hidden}
    cut = {"state_ranges": table.ranges} | {name: count for name, count in tiles.items() if count > 1}
    return {**described, **cut, "pieces": entries, "version": VERSION_OF_PIECES}
