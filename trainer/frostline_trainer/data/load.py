"""Loads a job's data: reads records, cuts them into splits, makes tensors on demand."""

from dataclasses import replace
from typing import Any

from frostline_contract.job import Job
from frostline_trainer.data.augment import check_augmentation
from frostline_trainer.data.decoding import Decoders
from frostline_trainer.data.images import build_image_data
from frostline_trainer.data.language import build_language_data
from frostline_trainer.data.questions import build_question_data
from frostline_trainer.data.records import Documents, Images, Questions, Texts
from frostline_trainer.data.sources import source_named
from frostline_trainer.data.split import TaskData
from frostline_trainer.data.texts import build_text_data

BUILDERS = {
    "image_classification": (Images, build_image_data),
    "text_classification": (Texts, build_text_data),
    "question_answering": (Questions, build_question_data),
    "language_modeling": (Documents, build_language_data),
}
"""For each task its kind of records, and the function that cuts them into splits."""


def load_data(job: Job, decoders: int = 0) -> TaskData:
    """Read a job's data and cut it into train, guard and test; a pure function of the job and the files.

    Args:
        job: the job.
        decoders: number of processes that decode images, if the source decodes on demand; 0: none.

    Raises:
        ValueError: in one line that names place, value and remedy: missing or malformed input, labels out of range, an empty
            split, undeclared randomness, or a source that does not serve the task.
    """
    check_augmentation(job)
    read = source_named(job.data.source)
    kind, build = BUILDERS[job.task.kind]
    train = read(job, job.data.path, "train")
    test = read(job, job.data.test_path, "test") if job.data.test_path is not None else None
    for records in (train, test):
        if records is not None and not isinstance(records, kind):
            raise ValueError(
                f"data.source {job.data.source} gives {type(records).__name__.lower()}, task.kind {job.task.kind} learns from "
                f"{kind.__name__.lower()}; choose another source or task"
            )
    pool = Decoders(decoders) if decoders and getattr(train, "wanted", None) is not None else None
    return build(job, _decoded_by(pool, train), _decoded_by(pool, test))


def _decoded_by(pool: Decoders | None, records: Any) -> Any:
    return replace(records, decoders=pool) if pool is not None and isinstance(records, Images) else records
