"""Writing checkpoints in the background: each member its share, then the manifest, once (docs/protocols.md 8.2).

The copy is taken at a commit point; a share is written at once; the manifest is published when all shares are there and the step
is stable. Member 0 does that; where it is gone, or its generation was abandoned, any other member that has the copy.
Nothing here waits for another member: what is not to be had yet is looked for again.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

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
from frostline_trainer.checkpoints.reading import is_complete, read_epochs
from frostline_trainer.checkpoints.retention import Retention, prune, sweep
from frostline_trainer.step.device_clock import HostMark, Mark
from frostline_trainer.step.side_copies import await_copies
from frostline_trainer.step.unit_state import UnitState

log = logging.getLogger(__name__)
POLL_SECONDS = 0.02
STAND_IN_SECONDS = 5.0
"""How long the other members leave a checkpoint to its publisher."""
GIVE_UP_SECONDS = 300.0
"""A member that is alive and has neither written its share nor said that it cannot is waited for no longer than this."""
FINISH_SECONDS = 30.0
"""A run's last checkpoint has all its shares; what else is not whole by then is not worth the waiting."""


@dataclass
class Snapshot:
    """One member's share of a checkpoint.

    pieces: their state, by number. tied_names: by unit, what counts in another one's digest. table: of all the run's pieces.
    manifest: its fields. publishes: whether this member is the first to publish it.

    base: the generation before, where it may still be publishing. stable: set once a later vote has passed.
    copied: the mark behind which the copies are whole. size: their bytes.
    written: set once the share is on disk, or cannot be. last: the run ends with it; its members agree on what became of it, and
    try again where it could not be written.
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
        """The checkpoint root that its folder lies in."""
        return self.folder.parents[2]

    @property
    def run_epoch(self) -> int:
        """The run epoch of the generation that took it, from the folder's path."""
        return int(self.folder.parents[1].name)


@dataclass
class WriterNotices:
    """What the writer tells, in its own thread.

    published(folder, manifest, seconds since the copy). trouble(step, reason): checkpoints are not written any more; told once,
    and of the run's last one each time.
    fenced(run_epoch): that later epoch has begun; each is told once. before(operation, step): ahead of every file operation.
    """

    published: Callable[[Path, dict, float], None] = lambda folder, manifest, seconds: None
    trouble: Callable[[int, str], None] = lambda step, reason: None
    fenced: Callable[[int], None] = lambda run_epoch: None
    before: Callable[[str, int], None] = lambda operation, step: None


class CheckpointWriter:
    """Writes snapshots one after the other in a background thread; a full disk costs a warning, never the run.

    not_written: what went wrong, by folder. operations: file operations begun so far, one for each few megabytes.
    The newest run epoch that was read is kept: snapshots of an older one are not waited for.
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
        """Hand a snapshot to the background thread, behind those that it has; nothing is waited for."""
        self._queue.put(snapshot)

    def abandon(self, seen_step: int = -1) -> None:
        """The generation has failed: what is stable and whole is published now, by whoever is left; the rest is given up.

        seen_step: the step of the newest vote that was seen; what was copied before it is stable. Returns at once.
        """
        self._queue.put(lambda: self._decide_all(seen_step))

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait until everything handed in so far is written and published, or given up, at most about `seconds`."""
        self.finishing(seconds).wait()

    def finishing(self, seconds: float = FINISH_SECONDS) -> threading.Event:
        """Set when `finish` would return."""
        done = threading.Event()
        self._queue.put(lambda: self._finish(time.monotonic() + seconds, done))
        return done

    def close(self) -> None:
        """Finish, and end the thread: nothing may be handed in afterwards."""
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
            except Exception:  # a mistake of ours costs this checkpoint, and nobody waits for a thread that is gone
                log.exception("the checkpoint writer failed")

    def _patience(self) -> float | None:
        """How long nothing needs to be looked at."""
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
            # What has been published by whoever stood in for the publisher is not written again.
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
        """Of a share that could not be written. Whoever writes a last checkpoint agrees with the others, and needs no marker."""
        if snapshot.publishes:
            remove_folder(snapshot.folder, self._before(snapshot))
            return
        drop_share(snapshot.folder, snapshot.table, list(snapshot.pieces))
        if not snapshot.last:
            write_failure(snapshot.folder, snapshot.table, list(snapshot.pieces), reason)

    def _settle(self) -> None:
        """Publish what can be published, give up what cannot; what may still come stays."""
        for snapshot in list(self._open):
            if snapshot.publishes or time.monotonic() - snapshot.taken_at > STAND_IN_SECONDS:
                self._try(snapshot, final=time.monotonic() - snapshot.taken_at > GIVE_UP_SECONDS)

    def _decide_all(self, seen_step: int) -> None:
        for snapshot in list(self._open):
            if snapshot.manifest["step"] < seen_step:
                snapshot.stable.set()
            self._try(snapshot, final=True)

    def _try(self, snapshot: Snapshot, final: bool) -> None:
        """Try to publish a checkpoint; after a failure it is tried again later, unless `final`: that is now or never."""
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
        """What keeps the manifest from being written; empty where it is there. Raises OSError where it never will be."""
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
        """Looked at right before the manifest is written. One that slips past lies under the old epoch: nobody reads it."""
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
        """One clear warning, not one a checkpoint."""
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
        """It is tried again: what became of it before counts no more."""
        self.not_written = {folder: why for folder, why in self.not_written.items() if folder != snapshot.folder}

    def _note(self, snapshot: Snapshot, reason: str) -> None:
        self.not_written = {**dict(list(self.not_written.items())[-7:]), snapshot.folder: reason}

    def _before(self, snapshot: Snapshot) -> Callable[[str], None]:
        def before(operation: str) -> None:
            self.operations += 1
            self._notices.before(operation, snapshot.manifest["step"])

        return before
