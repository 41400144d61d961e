"""Model families by name: the built-in ones, then those of installed packages.

A family is imported on demand: each imports its own model classes of transformers, and a run needs one family.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from frostline_trainer.families.base import Family

ENTRY_POINT_GROUP = "frostline.families"
BUILT_IN = {"vit": "vit:ViT", "bert": "bert:Bert", "gpt2": "gpt2:GPT2", "llama": "llama:Llama"}
"""Name -> module of this package and class."""


@cache
def _built_in(name: str) -> Family:
    module, family = BUILT_IN[name].split(":")
    return getattr(import_module(f"{__package__}.{module}"), family)()


def family_named(name: str) -> Family:
    """The family that `model.family` names.

    An entry point of the group frostline.families is a Family object, or a class or function that makes one without
    arguments. Raises ValueError with the known names if there is no such family.
    """
    if name in BUILT_IN:
        return _built_in(name)
    added = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in added:
        known = ", ".join(sorted({*BUILT_IN, *added}))
        raise ValueError(f"model.family is {name!r}; known families: {known}. Add one by an entry point of {ENTRY_POINT_GROUP}")
    return _load(added[name])


def _load(point: EntryPoint) -> Family:
    try:
        found = point.load()
        family = found if hasattr(found, "cut") and not isinstance(found, type) else found()
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"model.family {point.name!r}: its entry point {point.value} cannot be loaded ({error}); repair it"
        ) from error
    parts = ("name", "tasks", "config", "model", "cut", "hidden_shape", "forward_flops")
    missing = [part for part in parts if not hasattr(family, part)]
    if missing:
        raise ValueError(
            f"model.family {point.name!r}: {point.value} lacks {', '.join(missing)}; see frostline_trainer.families.base.Family"
        )
    return family
