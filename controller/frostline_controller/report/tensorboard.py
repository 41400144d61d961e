"""metrics.jsonl as TensorBoard event files, written by TensorBoard's own writer, without torch."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import StepRecord
from frostline_controller.report.data import RunData, read_run


def write_tensorboard(run_dir: str | Path) -> Path:
    """Write <run_dir>/tensorboard/ anew from the surviving records and return its path.

    All files are replaced, since scalars of a cut lineage cannot be removed from an event file. Raises ValueError as read_run
    does.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    run = read_run(run_dir)
    folder = RunDirectory(run_dir).tensorboard
    shutil.rmtree(folder, ignore_errors=True)
    writer = EventFileWriter(str(folder))
    try:
        for record in run.records:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
            writer.add_event(Event(wall_time=record.time_seconds, step=record.step, summary=Summary(value=values)))
        final = [Summary.Value(tag=f"test/{name}", simple_value=value) for name, value in run.final.items()]
        if final and run.records:
            last = run.records[-1]
            writer.add_event(Event(wall_time=last.time_seconds, step=last.step, summary=Summary(value=final)))
    finally:
        writer.close()
    return folder


def scalars(record: StepRecord) -> Iterator[tuple[str, float]]:
    """Yield the (tag, value) pairs of one step."""
    yield from (("train/loss", record.loss), ("train/learning_rate", record.learning_rate))
    yield "train/gradient_norm", record.gradient_norm
    yield "shape/freeze_point", record.freeze_point
    yield from ((f"shape/{axis}_degree", degree) for axis, degree in record.degrees.items())
    yield from (("speed/step_seconds", record.step_seconds), ("speed/samples_per_second", record.samples_per_second))
    yield from ((f"step_parts/{name}", seconds) for name, seconds in record.step_parts.items())
    yield from (("cache/hits", record.cache_hits), ("cache/misses", record.cache_misses))
    yield from ((f"guard/{name}", value) for name, value in record.evaluation.items())
    yield from ((f"unit_gradient_norm/{unit:03d}", norm) for unit, norm in enumerate(record.unit_gradient_norms) if norm > 0)


def summary_line(run: RunData) -> str:
    """Return one line about the run, for the end of the terminal's output."""
    final = ", ".join(f"{name} {value:.4g}" for name, value in run.final.items())
    steps = run.records[-1].step if run.records else 0
    return f"{run.name}: {run.result.get('status', 'unfinished')} after {steps} steps" + (f"; test {final}" if final else "")
