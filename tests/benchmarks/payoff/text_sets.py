"""Four labelled text sets from one source package, each cut into train and test by a hash of the text, once and for all."""

import csv
import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

EXAMPLE = Path(__file__).parents[3] / "examples" / "text_classification"


@dataclass(frozen=True)
class TextSet:
    """A file of the package. test_share: share of the texts in the test split, which leaves enough texts to train on."""

    file: str
    test_share: float


SETS = {
    "reviews": TextSet("movieReviewSnippets_GroundTruth.txt", 0.66),
    "tweets": TextSet("tweets_GroundTruth.txt", 0.5),
    "products": TextSet("amazonReviewSnippets_GroundTruth.txt", 0.5),
    "editorials": TextSet("nytEditorialSnippets_GroundTruth.txt", 0.5),
}
Sample = tuple[str, int]
"""A text and its label; 1: positive."""


def is_test(text: str, share: float) -> bool:
    """Return whether a text is in the test split: the first 32 bits of its SHA-256, as a number, lie below `share` times 2^32.

    The hash is of the text alone. So neither the order of a file nor its other texts move a text to the other split, and a
    repeated text is never in both.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") < share * 2**32


def labelled(lines: Iterable[str]) -> list[Sample]:
    """Return the samples of a file whose lines hold an id, a mean rating and a text: the label is the rating's sign.

    Texts rated 0 are left out; of a repeated text the first occurrence counts.
    """
    found: dict[str, int] = {}
    for line in lines:
        _, rating, text = line.split("\t")
        if float(rating) != 0:
            found.setdefault(text.strip(), int(float(rating) > 0))
    return list(found.items())


def split(samples: Iterable[Sample], share: float) -> tuple[list[Sample], list[Sample]]:
    """Return the train and test splits, each in the order of its texts' hashes."""
    train: list[Sample] = []
    test: list[Sample] = []
    for sample in sorted(samples, key=lambda one: hashlib.sha256(one[0].encode()).digest()):
        (test if is_test(sample[0], share) else train).append(sample)
    return train, test


def fetch_sets(folder: Path) -> None:
    """Write NAME/train.csv and NAME/test.csv of every set below `folder`, and fetch the checkpoint; existing files are kept.

    Raises SystemExit with a remedy if the package cannot be fetched.
    """
    example = _example()
    if not example.CHECKPOINT.exists():
        example.main()
    missing = [name for name in SETS if not (folder / name).exists()]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as scratch:
        archive = example.download(*example.SDIST, Path(scratch), "--no-binary", ":all:")
        inner = example.member(archive.read_bytes(), "hutto_ICWSM_2014.tar.gz")
    for name in missing:
        lines = example.member(inner, SETS[name].file).decode("utf-8").splitlines()
        _write(folder / name, *split(labelled(lines), SETS[name].test_share))


def _write(place: Path, train: list[Sample], test: list[Sample]) -> None:
    draft = Path(f"{place}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, part in (("train.csv", train), ("test.csv", test)):
        with (draft / name).open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([("text", "label"), *part])
    draft.rename(place)


def _example() -> ModuleType:
    """Return the example's own fetcher, which defines package, version and SHA-256."""
    spec = importlib.util.spec_from_file_location("fetch_reviews", EXAMPLE / "fetch_reviews.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
