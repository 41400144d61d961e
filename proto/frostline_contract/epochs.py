"""The run's epoch object, and which checkpoints count under it (docs/protocols.md 5.5 and 8.1). Names, schema and rules; no I/O.

There is one epoch object a checkpoint root. It changes by compare-and-swap only: on a file system version v of it is the file
`epochs/<v>.json`, created exclusively and whole, so of two that want to change version v - 1 one finds the name taken. A raised
run_epoch and a claimed result contend for the same name: a world that is being left behind cannot claim a result any more, and
a run that has its result is not raised.

Checkpoints lie under `<run_epoch>/<generation>/<step>`. A manifest that a world of an older epoch still writes lies under that
older epoch, where no reader takes it for the run's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from frostline_contract.record import Frozen

EPOCHS_FOLDER = "epochs"
MANIFEST_NAME = "manifest.json"
MANIFEST_PATTERN = f"*/*/*/{MANIFEST_NAME}"
EPOCH_DIGITS_MAX = 18
"""Of a number in a file's or folder's name; more is no name of ours."""


class RunEpoch(Frozen):
    """One version of the epoch object; version 0 is that of a root without any.

    start_from: the checkpoint that the epoch began from, relative to the root; "" for the initial weights. plan: the generation
    whose plan raised it ("" for epoch 0). result: what the run ended with, None while it goes on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    version: int = Field(0, ge=0)
    run_epoch: int = Field(0, ge=0)
    start_from: str = Field("", alias="from")
    plan: str = ""
    result: Mapping[str, Any] | None = None

    def file(self) -> str:
        """Where this version lies, relative to the checkpoint root."""
        return f"{EPOCHS_FOLDER}/{self.version}.json"

    def text(self) -> str:
        """The version as its file has it: indented JSON."""
        return self.model_dump_json(by_alias=True, indent=1)

    def raised(self, run_epoch: int, start_from: str, plan: str) -> "RunEpoch":
        """The next version, in which a new run epoch begins and no result is set.

        start_from: the checkpoint it begins from, "" for the initial weights. plan: the generation whose plan raises it.
        """
        return RunEpoch(version=self.version + 1, run_epoch=run_epoch, start_from=start_from, plan=plan)

    def with_result(self, result: Mapping[str, Any] | None) -> "RunEpoch":
        """The next version of the same run epoch, with what the run ended with; None takes a result back."""
        return self.model_copy(update={"version": self.version + 1, "result": result})


class FoundCheckpoint(Frozen):
    """A complete checkpoint. path: its folder, relative to the checkpoint root."""

    path: str
    lineage: int
    step: int

    @property
    def place(self) -> tuple[int, int]:
        """(lineage, step), by which checkpoints are ordered."""
        return self.lineage, self.step

    @property
    def run_epoch(self) -> int:
        """The epoch that it was written under; -1 where the path names none."""
        head = self.path.partition("/")[0]
        return int(head) if head.isdecimal() and len(head) <= EPOCH_DIGITS_MAX else -1


def checkpoint_path(run_epoch: int, generation: str, step: int) -> str:
    """A checkpoint's folder, relative to the checkpoint root."""
    return f"{run_epoch}/{generation}/{step}"


def parse_epochs(files: Mapping[str, str]) -> list[RunEpoch]:
    """All versions of the epoch object, oldest first, version 0 always among them.

    files: content by file name of everything in the epochs folder; names that are no version are passed over. Raises ValueError
    for a version that cannot be read: it was complete when it appeared, so somebody has changed it.
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


def surviving(versions: Sequence[RunEpoch], found: Iterable[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """The checkpoints on the run's own history, oldest (lineage, step) first.

    Those of the current epoch; and of an earlier one what is not newer than the checkpoint that each later epoch began from.
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
    """The newest checkpoint under the current epoch, else exactly the one that it began from; None where that is none.

    Raises ValueError where the epoch began from a checkpoint that is gone: to start afresh instead would lose the run unsaid.
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
