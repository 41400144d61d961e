"""The checkpoint writer, a background thread: each member writes its share; then one writes the manifest (docs/protocols.md 8.2).

A copy is taken at a commit point, and the share is written at once. The manifest is published when all shares are on disk and the
step is stable: by member 0 or, if it is gone or its generation was abandoned, by any other member with the copy. The writer never
blocks on another member: it polls for missing shares.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

from frostline_contract.epochs import read_epochs
from frostline_contract.pieces import Pieces
from frostline_contract.plan import GenerationId
from frostline_trainer.checkpoints.files import (
    digest_file,
    drop_share,
    piece_file,
    publish_manifest,
    read_failures,
    remove_folder,
    with_digests,
    write_failure,
    write_piece,
)
from frostline_trainer.checkpoints.reading import is_complete
from frostline_trainer.checkpoints.retention import Retention, prune, sweep
from frostline_trainer.step.device_clock import HostMark, Mark
from frostline_trainer.step.side_copies import await_copies
from frostline_trainer.step.unit_state import UnitState

log = logging.getLogger(__name__)
POLL_SECONDS = 0.02
STAND_IN_SECONDS = 5.0
"""How long the other members wait for the publisher of a checkpoint before they publish it themselves."""
GIVE_UP_SECONDS = 300.0
"""Limit of the wait for a share of a live member that neither writes it nor reports that it cannot."""
FINISH_SECONDS = 30.0
"""Limit of the wait at a run's end: its last checkpoint has all its shares then, and older incomplete ones are dropped."""


@dataclass
class Snapshot:
    """One member's share of a checkpoint.

    Attributes:
        pieces: States by piece number.
        tied_names: By unit, names that count in another unit's digest.
        table: All pieces of the run.
        manifest: Fields of the manifest.
        publishes: Whether this member is the first choice to publish the checkpoint.
        base: The previous generation, if it may still be publishing.
        last: Whether it is the run's last checkpoint: members agree on its outcome, and retry if it could not be written.
        copied: The mark behind which the copies are complete.
        size: Bytes of the copies.
        stable: Set once a later vote has passed.
        written: Set once the share is on disk, or cannot be written.
    """

    folder: Path
    pieces: dict[int, UnitState]
    tied_names: dict[int, frozenset[str]]
    table: Pieces
    generation: GenerationId
    manifest: dict
    publishes: bool
    base: GenerationId | None = None
    last: bool = False
    copied: Mark = field(default_factory=lambda: HostMark(0.0))
    size: int = 0
    stable: threading.Event = field(default_factory=threading.Event)
    written: threading.Event = field(default_factory=threading.Event)
    taken_at: float = field(default_factory=time.monotonic)

    @property
    def root(self) -> Path:
        """The checkpoint root that contains its folder."""
        return self.folder.parents[2]

    @property
    def run_epoch(self) -> int:
        """The run epoch of the generation that took it, from the folder's path."""
        return int(self.folder.parents[1].name)


@dataclass
class WriterNotices:
    """Callbacks of the writer, called in its thread.

    published(folder, manifest, seconds since the copy). trouble(step, reason): checkpoints cannot be written; called once, and
    for the run's last one each time.
    fenced(run_epoch): this later epoch has begun; called once for each. before(operation, step): before every file operation.
    """

    published: Callable[[Path, dict, float], None] = lambda folder, manifest, seconds: None
    trouble: Callable[[int, str], None] = lambda step, reason: None
    fenced: Callable[[int], None] = lambda run_epoch: None
    before: Callable[[str, int], None] = lambda operation, step: None


class CheckpointWriter:
    """Writes snapshots one after the other in a background thread; a full disk causes a warning, never the end of the run.

    The writer remembers the newest run epoch that it has read, and does not wait for snapshots of older ones.

    `not_written` has the errors by folder, `operations` the number of file operations so far, one for each few megabytes.
    """

    def __init__(self, retention: Retention, notices: WriterNotices) -> None:
        self.retention, self._notices = retention, notices
        self.not_written: dict[Path, str] = {}
        self.operations = 0
        self._queue: Queue[Snapshot | Callable[[], None]] = Queue()
        self._open: list[Snapshot] = []
        self._failing = self._ended = False
        self._epoch = 0
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    def write(self, snapshot: Snapshot) -> None:
        """Queue a snapshot for the background thread. Returns at once."""
        self._queue.put(snapshot)

    def abandon(self, seen_step: int = -1) -> None:
        """Abandon a failed generation: remaining members publish complete, stable checkpoints now, and drop others.

        Returns at once. `seen_step` is the step of the newest vote that this member has seen; copies of earlier steps are stable.
        """
        self._queue.put(lambda: self._decide_all(seen_step))

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait until all queued snapshots are written and published, or given up, at most about `seconds`."""
        self.finishing(seconds).wait()

    def finishing(self, seconds: float = FINISH_SECONDS) -> threading.Event:
        """An event that is set when `finish` would return."""
        done = threading.Event()
        self._queue.put(lambda: self._finish(time.monotonic() + seconds, done))
        return done

    def close(self) -> None:
        """Finish, and end the thread; no snapshot may be queued afterwards."""
        self.finish()
        self._queue.put(self._end)
        self._thread.join()

    # ---- the thread

    def _work(self) -> None:
        while not self._ended:
            try:
                item = self._queue.get(timeout=self._patience())
            except Empty:
                item = self._settle
            try:
                if isinstance(item, Snapshot):
                    self._write_share(item)
                    self._settle()
                else:
                    item()
            except Exception:  # a bug costs this checkpoint only; the thread must go on, since callers wait for it
                log.exception("the checkpoint writer failed")

    def _patience(self) -> float | None:
        """Seconds until the next check is due; None: no check is needed."""
        if not self._open:
            return None
        return POLL_SECONDS if any(snapshot.publishes for snapshot in self._open) else STAND_IN_SECONDS

    def _finish(self, deadline: float, done: threading.Event) -> None:
        try:
            self._settle()
            while any(snapshot.publishes for snapshot in self._open) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                self._settle()
        finally:
            done.set()

    def _end(self) -> None:
        self._ended = True

    def _write_share(self, snapshot: Snapshot) -> None:
        self._forget(snapshot)
        try:
            # Another member may have published it already, in place of its publisher.
            if not is_complete(snapshot.folder):
                self._write_pieces(snapshot)
        except OSError as error:
            self._not_written(snapshot, str(error))
            try:
                self._clear(snapshot, str(error))
            except OSError as unsaid:
                text = "checkpoint of step %d: it cannot be cleared away, nor the others be told (%s)"
                log.info(text, snapshot.manifest["step"], unsaid)
        else:
            self._open.append(snapshot)
        finally:
            snapshot.pieces = {}
            snapshot.written.set()

    def _write_pieces(self, snapshot: Snapshot) -> None:
        await_copies(snapshot.copied)
        for piece, state in snapshot.pieces.items():
            tied = snapshot.tied_names.get(snapshot.table.unit_of(piece), frozenset())
            write_piece(snapshot.folder, snapshot.table, piece, state, tied, str(snapshot.generation), self._before(snapshot))

    def _clear(self, snapshot: Snapshot, reason: str) -> None:
        """Delete a share that could not be written, and leave a marker; not for a last checkpoint, on which members agree."""
        if snapshot.publishes:
            remove_folder(snapshot.folder, self._before(snapshot))
            return
        drop_share(snapshot.folder, snapshot.table, list(snapshot.pieces))
        if not snapshot.last:
            write_failure(snapshot.folder, snapshot.table, list(snapshot.pieces), reason)

    def _settle(self) -> None:
        """Publish the checkpoints that are ready, give up those that cannot be published, keep the others."""
        for snapshot in list(self._open):
            if snapshot.publishes or time.monotonic() - snapshot.taken_at > STAND_IN_SECONDS:
                self._try(snapshot, final=time.monotonic() - snapshot.taken_at > GIVE_UP_SECONDS)

    def _decide_all(self, seen_step: int) -> None:
        for snapshot in list(self._open):
            if snapshot.manifest["step"] < seen_step:
                snapshot.stable.set()
            self._try(snapshot, final=True)

    def _try(self, snapshot: Snapshot, final: bool) -> None:
        """Try to publish a checkpoint; after a failure it is tried again later, unless this is the `final` try."""
        try:
            why_not = self._publish(snapshot)
        except (OSError, ValueError) as error:
            self._open.remove(snapshot)
            if snapshot.publishes:
                self._not_written(snapshot, str(error))
            return
        fenced = snapshot.run_epoch < self._epoch
        if why_not and not (final or fenced):
            return
        self._open.remove(snapshot)
        if why_not and snapshot.publishes:
            self._note(snapshot, why_not)
        if why_not and snapshot.publishes and not fenced:
            log.info("checkpoint %s given up: %s", snapshot.folder, why_not)

    def _publish(self, snapshot: Snapshot) -> str:
        """Publish a checkpoint. Returns why it cannot be published yet; empty if it is. Raises OSError if it never can be."""
        if is_complete(snapshot.folder):
            return ""
        if not snapshot.folder.is_dir():
            raise OSError("its folder has been removed")
        if failures := read_failures(snapshot.folder):
            remove_folder(snapshot.folder, self._before(snapshot))
            raise OSError(failures)
        table = snapshot.table
        missing = [piece for piece in range(table.count) if not digest_file(snapshot.folder, table, piece).exists()]
        if missing or not snapshot.stable.is_set():
            return f"{piece_file(snapshot.folder, table, missing[0]).name} is missing" if missing else "no later vote has passed"
        manifest = with_digests(snapshot.manifest, snapshot.folder, table, snapshot.generation)
        if self._is_fenced(snapshot):
            return "another world goes on with the run"
        if publish_manifest(snapshot.folder, manifest, self._before(snapshot)):
            self._published(snapshot, manifest)
        return ""

    def _is_fenced(self, snapshot: Snapshot) -> bool:
        """Whether a later run epoch has begun. A manifest written after this check is ignored, being in the old folder."""
        now = read_epochs(snapshot.root)[-1].run_epoch
        if now < snapshot.run_epoch:
            raise OSError(f"the run epoch is {now}, and this plan's is {snapshot.run_epoch}: its object has been removed")
        if now > max(snapshot.run_epoch, self._epoch):
            self._epoch = now
            log.warning("run epoch %d has begun: this world, of epoch %d, publishes nothing more", now, snapshot.run_epoch)
            self._notices.fenced(now)
        return now > snapshot.run_epoch

    def _published(self, snapshot: Snapshot, manifest: dict) -> None:
        if self._failing:
            self._failing = False
            log.info("checkpoints are written again: %s", snapshot.folder)
        self._notices.published(snapshot.folder, manifest, time.monotonic() - snapshot.taken_at)
        try:
            prune(snapshot.root, self.retention, snapshot.run_epoch, self._before(snapshot))
            under_way = {other.folder for other in self._open}
            sweep(snapshot.folder, snapshot.base, under_way, self._before(snapshot))
        except (OSError, ValueError) as error:
            log.warning("old checkpoints under %s not removed: %s", snapshot.root, error)

    def _not_written(self, snapshot: Snapshot, reason: str) -> None:
        """Note that a share was not written, with one warning, not one for each checkpoint."""
        self._note(snapshot, reason)
        if snapshot.last:
            self._failing = True
            self._notices.trouble(snapshot.manifest["step"], reason)
            return
        if self._failing:
            log.debug("checkpoint %s not written: %s", snapshot.folder, reason)
            return
        self._failing = True
        log.warning("checkpoint %s not written: %s; training goes on, free some space", snapshot.folder, reason)
        self._notices.trouble(snapshot.manifest["step"], reason)

    def _forget(self, snapshot: Snapshot) -> None:
        """Forget an earlier failure of a snapshot that is tried again."""
        self.not_written = {folder: why for folder, why in self.not_written.items() if folder != snapshot.folder}

    def _note(self, snapshot: Snapshot, reason: str) -> None:
        self.not_written = {**dict(list(self.not_written.items())[-7:]), snapshot.folder: reason}

    def _before(self, snapshot: Snapshot) -> Callable[[str], None]:
        def before(operation: str) -> None:
            self.operations += 1
            self._notices.before(operation, snapshot.manifest["step"])

        return before
