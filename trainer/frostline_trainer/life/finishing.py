"""How a run ends: final score, checkpoint, saved model, outcome."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError

from frostline_contract.durable_files import move_durably, sync_file, sync_folder
from frostline_contract.run_status import RunStatus
from frostline_proto.v1 import control_pb2
from frostline_trainer.checkpoints.reading import load_unit, read_manifest
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.evaluation import evaluate
from frostline_trainer.engine.generation import Generation
from frostline_trainer.engine.unit_state import import_unit
from frostline_trainer.model import save_model
from frostline_trainer.training.run_state import RunState

log = logging.getLogger(__name__)
GROWTH_SECONDS = 0.5


def final_score(generation: Generation) -> dict[str, float]:
    """The test split's metrics, measured without a lossy codec; nothing that steers the run reads them."""
    if not generation.context.job.evaluation.test_at_end:
        return {}
    generation.freeze_to(generation.freeze_point)
    _, metrics = evaluate(generation, generation.context.data.test)
    return metrics


def agree_written(generation: Generation, why_not: str) -> str:
    """Whether all members have written their part of the final checkpoint; all wait for the slowest one.

    why_not: what kept this member from it, empty where nothing did. Returns that, or whose part is missing, or "".
    """
    without = who_says(generation, bool(why_not))
    return why_not or (f"members {without} could not write their part" if without else "")


def who_says(generation: Generation, yes: bool) -> list[int]:
    """Members that say yes, by their place in the world: the same answer for all, when all have said something."""
    said = torch.zeros(generation.world.size, dtype=torch.int32)
    said[generation.world.index] = int(yes)
    generation.world.all_reduce_sum(said)
    return list(map(int, said.nonzero().flatten()))


def unwritten_text(step: int, folder: Path, why: str) -> str:
    """For the user: what is missing and what to do. why: the system's words, empty where another member's share is missing."""
    return (
        f"trained to step {step}, but its weights could not be written to {folder} ({why or 'a share of it is missing'}); "
        "free some space and resume from the last complete checkpoint"
    )


def save_final_model(context: RunContext, folder: Path, directory: Path, moved: Callable[[], None] = lambda: None) -> str:
    """Put all units of the final checkpoint together and write what plain transformers loads.

    moved: called with every unit, and as often as the files have grown. Returns what kept it from being written; empty where
    nothing did.
    """
    try:
        manifest = read_manifest(folder)
        for index, unit in enumerate(context.cut.units):
            moved()
            unit.to("cpu")
            import_unit(index, unit, {}, load_unit(folder, manifest, index))
        _save_whole(context, directory, moved)
    except (OSError, SafetensorError) as error:
        return str(error)
    return ""


def _save_whole(context: RunContext, directory: Path, moved: Callable[[], None]) -> None:
    """The directory appears by renaming: a writer that is killed leaves no half model that looks whole."""
    beside = [directory.with_name(f".{directory.name}{suffix}") for suffix in (".partial", ".before")]
    for left in beside:
        shutil.rmtree(left, ignore_errors=True)
    partial, before = beside
    needed = sum(parameter.numel() * parameter.element_size() for parameter in context.cut.model.parameters())
    directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory.parent).free
    if free < needed:
        raise OSError(f"{directory} needs {needed} bytes, {free} are free")
    with _watching_growth(partial, moved):
        save_model(context.cut, partial, context.data.processor)
    for path in partial.iterdir():
        moved()
        sync_file(path)
    sync_folder(partial)
    if directory.exists():
        move_durably(directory, before)
    move_durably(partial, directory)
    shutil.rmtree(before, ignore_errors=True)


@contextmanager
def _watching_growth(folder: Path, moved: Callable[[], None]) -> Iterator[None]:
    """Inside, `moved` is called from another thread whenever the folder's files have grown: what writes them cannot say so."""
    done = threading.Event()

    def watch() -> None:
        size = -1
        while not done.wait(GROWTH_SECONDS):
            with suppress(OSError):  # a file may be renamed just now
                if (now := sum(path.stat().st_size for path in folder.iterdir())) != size:
                    size = now
                    moved()

    watcher = threading.Thread(target=watch, name="model-growth", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def make_outcome(status: RunStatus, context: RunContext, state: RunState, digest: str, metrics: dict[str, float], checkpoint: str,
                 message: str = "") -> control_pb2.RunOutcome:  # fmt: skip
    """What the controller writes into result.json."""
    job = context.job
    settings = {
        "torch": torch.__version__,
        "device": context.device.type,
        "probe_digest": context.probe_digest,
        "probe": context.probe_detail,
        "dataset_digest": context.data.digest,
        "numerics": job.training.numerics,
        "numerics_hash": state.numerics_hash,
        "batch_size": str(job.training.batch_size),
        "micro_batch_size": str(job.training.micro_batch_size),
        "reduction_leaves": str(job.training.reduction_leaves),
        "threads": str(job.training.threads),
        "precision": job.training.precision,
        "seed": str(job.seed),
        "main_metric": context.task.main_metric,
        "lineage": str(state.lineage),
        "accepted_steps": str(state.accepted_steps),
    }
    return control_pb2.RunOutcome(
        status=status,
        digest=digest,
        final=metrics,
        steps=state.step,
        message=message,
        checkpoint_path=checkpoint,
        settings=settings,
    )
