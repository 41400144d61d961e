"""Data sources by name: the built-in ones, one file each, and those of the entry point group `frostline.datasets`."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from frostline_contract.job import Job
from frostline_trainer.data.records import Part, Records

Source = Callable[[Job, str | None, Part], Records]
"""Reads data.path (part "train") or data.test_path (part "test"), which is the second argument, into records of the job's
task. Raises ValueError for bad input."""

ENTRY_POINT_GROUP = "frostline.datasets"

BUILT_IN = {
    "digits": "digits:read_digits",
    "stdlib-text": "stdlib_text:read_stdlib_text",
    "image-folder": "image_folder:read_image_folder",
    "csv": "tables:read_csv",
    "jsonl": "tables:read_jsonl",
    "glue": "glue:read_glue",
    "squad": "squad:read_squad",
    "text": "text:read_text",
}


def source_named(name: str) -> Source:
    """The source of that name: built in, or an entry point's. Raises ValueError that lists the known ones."""
    if name in BUILT_IN:
        module, function = BUILT_IN[name].split(":")
        return getattr(import_module(f"{__name__}.{module}"), function)
    others = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name in others:
        return others[name].load()
    known = ", ".join([*BUILT_IN, *sorted(others)])
    raise ValueError(f"data.source is {name!r}; known: {known} (entry points of {ENTRY_POINT_GROUP} add others)")
