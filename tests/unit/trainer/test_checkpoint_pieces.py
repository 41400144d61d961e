"""Checkpoints of runs with several pieces a unit: a file each, listed by the manifest; one piece keeps the old format."""

import json
from pathlib import Path

import pytest
import torch

from frostline_contract.epochs import MANIFEST_NAME
from frostline_contract.pieces import Pieces
from frostline_contract.plan import GenerationId
from frostline_trainer.checkpoints.reading import complete_checkpoints, load_piece, read_manifest
from frostline_trainer.checkpoints.writing import Snapshot
from frostline_trainer.step.unit_state import digest_of_pieces, unit_digest
from tests.checkpoint_cases import TABLE, content, snapshot, write_all

CUT = Pieces(2, 2)
TILED = Pieces.cut(2, tiles=2)


def cut_snapshot(root: Path, pieces: tuple[int, ...], publishes: bool = True) -> Snapshot:
    """Return a member's share of the checkpoint of step 7, whose two units have two pieces each."""
    return snapshot_of(root, CUT, pieces, publishes)


def snapshot_of(root: Path, table: Pieces, pieces: tuple[int, ...], publishes: bool = True) -> Snapshot:
    generation = GenerationId(incarnation=1, counter=1)
    states, manifest = {piece: content(7, piece) for piece in pieces}, {"lineage": 0, "step": 7}
    made = Snapshot(root / "0" / "1.1" / "7", states, {}, table, generation, manifest, publishes)
    made.stable.set()
    return made


def test_each_piece_is_a_file_and_the_manifest_lists_them(tmp_path: Path) -> None:
    mine = cut_snapshot(tmp_path, (0, 3))
    write_all(cut_snapshot(tmp_path, (1, 2), publishes=False), mine)
    manifest = read_manifest(mine.folder)
    names = [f"unit-{unit:03d}.{place}" for unit in (0, 1) for place in (0, 1)]
    files = {f"{name}.{ending}" for name in names for ending in ("safetensors", "sha256")}
    assert {path.name for path in mine.folder.iterdir()} == files | {MANIFEST_NAME}
    assert [entry["file"] for entry in manifest["pieces"]] == [f"{name}.safetensors" for name in names]
    assert (manifest["version"], manifest["state_ranges"], "units" in manifest) == (2, 2, False)
    digests = [unit_digest(content(7, piece)) for piece in range(CUT.count)]
    assert manifest["digest"] == digest_of_pieces(CUT, digests)
    for piece in range(CUT.count):
        assert torch.equal(load_piece(mine.folder, manifest, CUT, piece)["weight/a"], content(7, piece)["weight/a"])
    assert [found["step"] for _, found in complete_checkpoints(tmp_path)] == [7]


def test_a_manifest_says_how_many_tiles_have_pieces(tmp_path: Path) -> None:
    mine = snapshot_of(tmp_path, TILED, tuple(range(TILED.count)))
    write_all(mine)
    manifest = read_manifest(mine.folder)
    assert (manifest["version"], manifest["state_ranges"], manifest["state_tiles"]) == (2, 1, 2)
    assert [entry["file"] for entry in manifest["pieces"]][:3] == [f"unit-000.{place}.safetensors" for place in range(3)]
    assert torch.equal(load_piece(mine.folder, manifest, TILED, 4)["weight/a"], content(7, 4)["weight/a"])
    with pytest.raises(ValueError, match=r"state is in 2 inner tiles, training\.tensor_tiles\.inner is 1"):
        load_piece(mine.folder, manifest, TABLE, 0)


def test_a_checkpoint_that_is_cut_otherwise_is_refused_with_the_field(tmp_path: Path) -> None:
    cut, whole = cut_snapshot(tmp_path, (0, 1, 2, 3)), snapshot(tmp_path, 9, counter=2)
    write_all(cut, whole)
    with pytest.raises(ValueError, match=r"state is in 2 ranges, training\.state_ranges is 1"):
        load_piece(cut.folder, read_manifest(cut.folder), TABLE, 0)
    with pytest.raises(ValueError, match=r"state is in 1 ranges, training\.state_ranges is 2"):
        load_piece(whole.folder, read_manifest(whole.folder), CUT, 0)
    with pytest.raises(ValueError, match=r"state is in 1 inner tiles, training\.tensor_tiles\.inner is 4"):
        load_piece(whole.folder, read_manifest(whole.folder), Pieces.cut(2, tiles=4), 0)


@pytest.mark.parametrize(("inner", "hidden"), [(4, 1), (2, 2), (1, 4)])
def test_a_checkpoint_from_before_tiles_had_ranges_is_refused_with_a_remedy(tmp_path: Path, inner: int, hidden: int) -> None:
    """A run in tiles with several ranges had ranges of whole units, whose numbers now mean other pieces."""
    older = cut_snapshot(tmp_path, (0, 1, 2, 3))
    write_all(older)
    tiles = f"training\\.tensor_tiles has inner {inner} and hidden {hidden}: .* set inner and hidden to 1"
    with pytest.raises(ValueError, match=f"in 2 ranges of the whole unit, and {tiles}; .* begin a new run, or continue with"):
        load_piece(older.folder, read_manifest(older.folder), Pieces.cut(2, 2, inner * hidden, hidden), 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_manifest_without_its_list_is_named(version: int, tmp_path: Path) -> None:
    written = snapshot(tmp_path, 3) if version == 1 else cut_snapshot(tmp_path, (0, 1, 2, 3))
    write_all(written)
    name = "units" if version == 1 else "pieces"
    manifest = {key: value for key, value in read_manifest(written.folder).items() if key != name}
    (written.folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=rf"manifest\.json: {name} is .*Field required"):
        read_manifest(written.folder)
