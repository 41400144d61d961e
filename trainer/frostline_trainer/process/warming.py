"""Imports for the workers of one run, in the preload process: the run's model family, the module that reads its data, and peft if
the run has adapters.

The run's job file is only a hint for this. If it is missing or invalid, the worker imports the rest itself, and reports errors.
"""

import importlib
import logging
from contextlib import suppress
from pathlib import Path

import yaml

from frostline_contract.job import read_yaml
from frostline_contract.run_directory import RunDirectory
from frostline_trainer.data.sources import source_named
from frostline_trainer.process.lean_imports import import_peft, lean_imports

log = logging.getLogger(__name__)

USED_BY_BACKWARD = "torch.fx.experimental.symbolic_shapes"
"""torch imports this module, with sympy, in the first backward that starts from a given gradient; here once for all workers."""


def import_for(run_dir: str) -> None:
    """Import the modules that workers of the run in `run_dir` need; for an empty `run_dir`, those of all built-in families."""
    family, source, adapters = _named_in(RunDirectory(run_dir).job) if run_dir else ("", "", False)
    with lean_imports():
        registry = importlib.import_module("frostline_trainer.families.registry")
        for name in [family] if family else registry.BUILT_IN:
            with suppress(ValueError):  # the worker reports the error to the controller
                registry.family_named(name)
    if adapters:
        import_peft()
    importlib.import_module(USED_BY_BACKWARD)
    if source:
        with suppress(ValueError):
            source_named(source)


def _named_in(file: Path) -> tuple[str, str, bool]:
    """model.family and data.source of a job file, and whether it has model.adapters; empty if the file cannot be read."""
    try:
        found = read_yaml(file.read_text(encoding="utf-8"))
        model = found["model"]
        return str(model["family"]), str(found["data"]["source"]), model.get("adapters") is not None
    except (OSError, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.info("all families are imported: %s says no model.family and data.source (%s)", file, error)
        return "", "", False
