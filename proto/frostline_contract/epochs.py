"""The run's epoch object: file names, schema, and the rules for which checkpoints count (docs/protocols.md 5.5, 8.1).

Only `read_epochs` reads files; everything else is a function of what it returns.

The epoch object says which run epoch is current, from which checkpoint it began, and how the run ended. It exists once for each
checkpoint root and changes by compare-and-swap only: version v is the file `epochs/<v>.json`, created exclusively and whole, so
of two processes that change version v - 1 one finds the name taken. Raising the run epoch and claiming the result contend for the
same name. So workers of a generation that was given up can claim no result any more, and a run that has its result is not raised.

Checkpoints lie under `<run_epoch>/<generation>/<step>`. Workers of an older epoch that still write a manifest write it under that
older epoch, where no reader takes it for the run's.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from frostline_contract.lineage import Place
from frostline_contract.record import Frozen

EPOCHS_FOLDER = "epochs"
MANIFEST_NAME = "manifest.json"
MANIFEST_PATTERN = f"*/*/*/{MANIFEST_NAME}"
EPOCH_DIGITS_MAX = 18
"""The most digits of a number in a file's or folder's name; a name with more is not Frostline's."""


class RunEpoch(Frozen):
    """One version of the epoch object; a root without an epoch file has version 0.

    Attributes:
        start_from: the checkpoint that the epoch began from, relative to the root; "" for the initial weights.
        plan: the generation whose plan raised the epoch ("" for epoch 0).
        result: how the run ended; None while the run goes on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    version: int = Field(0, ge=0)
    run_epoch: int = Field(0, ge=0)
    start_from: str = Field("", alias="from")
    plan: str = ""
    result: Mapping[str, Any] | None = None

    def file(self) -> str:
        """The file of this version, relative to the checkpoint root."""
        return f"{EPOCHS_FOLDER}/{self.version}.json"

    def text(self) -> str:
        """The version as its file has it: indented JSON."""
        return self.model_dump_json(by_alias=True, indent=1)

    def raised(self, run_epoch: int, start_from: str, plan: str) -> "RunEpoch":
        """The next version, in which a new run epoch begins and no result is set.

        Args:
            run_epoch: the new run epoch.
            start_from: the checkpoint from which the run epoch begins; "" for the initial weights.
            plan: the generation whose plan raises the run epoch.
        """
        return RunEpoch(version=self.version + 1, run_epoch=run_epoch, start_from=start_from, plan=plan)

    def with_result(self, result: Mapping[str, Any] | None) -> "RunEpoch":
        """The next version of the same run epoch, with the run's result; None withdraws a result."""
        return self.model_copy(update={"version": self.version + 1, "result": result})


class FoundCheckpoint(Frozen):
    """A complete checkpoint. `path` is its folder, relative to the checkpoint root."""

    path: str
    lineage: int
    step: int

    @property
    def place(self) -> Place:
        """Its step in its lineage, by which checkpoints are ordered."""
        return Place(self.lineage, self.step)

    @property
    def run_epoch(self) -> int:
        """The epoch that it was written under; -1 where the path names none."""
        head = self.path.partition("/")[0]
        return int(head) if head.isdecimal() and len(head) <= EPOCH_DIGITS_MAX else -1


def checkpoint_path(run_epoch: int, generation: str, step: int) -> str:
    """A checkpoint's folder, relative to the checkpoint root."""
    return f"{run_epoch}/{generation}/{step}"


def parse_epochs(files: Mapping[str, str]) -> list[RunEpoch]:
    """All versions of the epoch object, oldest first; version 0 is always the first.

    Args:
        files: content by file name of everything in the epochs folder; other names than versions' are ignored.

    Raises:
        ValueError: a version cannot be read. It was complete when it appeared, so somebody has changed it.
    """
    versions = [RunEpoch()]
    for name, text in files.items():
        stem, _, kind = name.partition(".")
        if kind != "json" or not stem.isdecimal() or len(stem) > EPOCH_DIGITS_MAX:
            continue
        try:
            version = RunEpoch.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(f"{EPOCHS_FOLDER}/{name} is damaged: {error}; restore it") from error
        if version.version != int(stem):
            raise ValueError(f"{EPOCHS_FOLDER}/{name} says that it is version {version.version}; restore it")
        versions.append(version)
    return sorted(versions, key=lambda version: version.version)


def read_epochs(root: Path) -> list[RunEpoch]:
    """All versions of the epoch object under a checkpoint root, oldest first. Raises ValueError for a damaged one, OSError."""
    folder = Path(root) / EPOCHS_FOLDER
    paths = folder.glob("*.json") if folder.is_dir() else ()
    return parse_epochs({path.name: path.read_text(encoding="utf-8") for path in paths})


def surviving(versions: Sequence[RunEpoch], found: Iterable[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """The checkpoints on the run's own history, oldest (lineage, step) first.

    All of the current epoch count; of an earlier epoch those that are no newer than the checkpoint that each later epoch began
    from.
    """
    found = list(found)
    places = {one.path: one.place for one in found}
    current = versions[-1].run_epoch
    starts = {version.run_epoch: places.get(version.start_from) for version in versions}

    def counts(one: FoundCheckpoint) -> bool:
        later = [starts.get(number) for number in range(one.run_epoch + 1, current + 1)]
        return 0 <= one.run_epoch <= current and all(start is not None and one.place <= start for start in later)

    return sorted(filter(counts, found), key=lambda one: (one.place, one.run_epoch, one.path))


def newest(versions: Sequence[RunEpoch], found: Iterable[FoundCheckpoint]) -> FoundCheckpoint | None:
    """The newest checkpoint of the current epoch, else the one that the epoch began from; None where it began from none.

    Raises ValueError where the checkpoint that the epoch began from is gone: starting from the initial weights instead would
    lose the run without an error.
    """
    found, now = list(found), versions[-1]
    own = [one for one in found if one.run_epoch == now.run_epoch]
    if own:
        return max(own, key=lambda one: (one.place, one.path))
    if not now.start_from:
        return None
    for one in found:
        if one.path == now.start_from:
            return one
    raise ValueError(
        f"run epoch {now.run_epoch} began from checkpoint {now.start_from}, which is gone or damaged, and has none of its own; "
        "restore that folder to go on"
    )
