"""Loads the weights of a whole checkpoint into an unsplit model, and reports what is wrong with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from frostline_contract.job.data import ModelSection
from frostline_trainer.families.configuring import one_line


def load_checkpoint(
    model_class: type[PreTrainedModel], config: PretrainedConfig, section: ModelSection, fresh: tuple[str, ...]
) -> PreTrainedModel:
    """The model with a checkpoint's weights, on the CPU, in float32 (float64 if the checkpoint is).

    Weights are read from safetensors files only, never from pickles.

    Args:
        model_class: the class of the model.
        config: the model's config.
        section: the job's `model`, which names the checkpoint.
        fresh: prefixes of parameter names that may be missing or of another shape, e.g. a head for another task: these are
            initialised from torch's default generator.

    Raises:
        ValueError: in one line that names the checkpoint and the remedy.
    """
    source = section.path or section.hub
    assert source is not None, "load_checkpoint without a checkpoint"
    width = torch.float64 if _declared_dtype(config) == torch.float64 else torch.float32
    try:
        with quiet():
            model, found = model_class.from_pretrained(
                source,
                config=config,
                revision=section.revision,
                local_files_only=section.path is not None,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **{_dtype_argument(): width},
            )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ValueError(f"{_named(section)}: {_what_is_wrong(section, error)}") from error
    _check_complete(model_class, config, section, found, fresh)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and load reports out of a worker's log; problems are raised as errors."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_complete(
    model_class: type[PreTrainedModel],
    config: PretrainedConfig,
    section: ModelSection,
    found: dict[str, Any],
    fresh: tuple[str, ...],
) -> None:
    """Raise ValueError where weights are missing, or of another shape, that must come from the checkpoint.

    Args:
        model_class: the class of the model.
        config: the model's config.
        section: the job's `model`, which names the checkpoint.
        found: transformers' information on loading.
        fresh: prefixes of parameter names that may be missing or of another shape.
    """
    missing = sorted(name for name in found["missing_keys"] if not name.startswith(fresh))
    if missing:
        remedy = (
            "model.untie_on_freeze: true starts an untied head from the embedding"
            if _is_head(missing)
            else "give a whole checkpoint"
        )
        raise ValueError(f"{_named(section)}: {len(missing)} weights are missing, e.g. {missing[0]}; {remedy}")
    # transformers 5 gives (name, stored shape, expected shape), 4.5x the name alone
    mismatched = sorted((entry, "", "") if isinstance(entry, str) else entry for entry in found["mismatched_keys"])
    wrong = [entry for entry in mismatched if not entry[0].startswith(fresh)]
    if wrong:
        name, stored, wanted = wrong[0]
        shapes = f" has {tuple(stored)}, expected {tuple(wanted)}" if stored else ""
        raise ValueError(
            f"{_named(section)}: {len(wrong)} weights have another shape than the config says, e.g. {name}{shapes}; "
            "remove the override from model.config"
        )


def _is_head(missing: list[str]) -> bool:
    return missing == ["lm_head.weight"]


def _named(section: ModelSection) -> str:
    return f"model.path {section.path}" if section.path is not None else f"model.hub {section.hub}"


def _what_is_wrong(section: ModelSection, error: Exception) -> str:
    if section.path is None:
        return f"cannot be loaded ({one_line(error)}); check the id and the network, or give model.path"
    files = sorted(file.name for file in Path(section.path).iterdir())
    if not any(name.endswith(".safetensors") for name in files):
        pickled = [name for name in files if name.endswith((".bin", ".pt", ".pth"))]
        if pickled:
            return f"its weights are in {pickled[0]}, a pickle, which is never opened; save it again as safetensors"
        return "there are no weights (model.safetensors) in it; give a directory as save_pretrained writes it"
    return f"its weights cannot be read ({one_line(error)}); a file is truncated, damaged or missing: copy the checkpoint again"


def _declared_dtype(config: PretrainedConfig) -> torch.dtype | None:
    declared = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return getattr(torch, declared, None) if isinstance(declared, str) else declared


def _dtype_argument() -> str:
    """The name of the dtype argument: transformers 4.56 renamed torch_dtype."""
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"
