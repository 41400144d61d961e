"""Makes a transformers config from the job's `model` section: checkpoint or fields, overrides, dropout, attention kernel."""

import difflib
import json
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from frostline_contract.job.data import ModelSection

SET_ELSEWHERE = {
    "attn_implementation": "model.attention",
    "_attn_implementation": "model.attention",
    "dtype": "training.precision",
    "torch_dtype": "training.precision",
    "problem_type": "task.kind and task.num_labels",
}
"""Config fields that another field of the job sets, with that field."""

CROSS_TALK = ("is_decoder", "add_cross_attention", "is_encoder_decoder")
"""Fields that would give a block a second input or another kind of mask: a cut carries one hidden tensor."""


def read_config(section: ModelSection, config_class: type[PretrainedConfig], family: str) -> PretrainedConfig:
    """The config of a checkpoint (section.path or section.hub) or of section.config's fields, with the job's overrides.

    Raises ValueError naming field, value and remedy.
    """
    _check_fields(section, config_class, family)
    fields = {key: value for key, value in section.config.items() if key != "model_type"}
    if section.path is None and section.hub is None:
        try:
            config = config_class(**fields, attn_implementation=section.attention)
        except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
            raise ValueError(f"model.config is no {family} config: {one_line(error)}; correct the field") from error
    else:
        config = _checkpoint_config(section, family)
        for key, value in fields.items():
            setattr(config, key, value)
    if section.dropout is not None:
        set_dropout(config, section.dropout)
    config.use_cache = False
    return config


def set_dropout(config: PretrainedConfig, probability: float) -> None:
    """Set every dropout probability of a config: the fields named ...dropout..., or ...pdrop as GPT-2 does."""
    for field in list(vars(config)):
        if "dropout" in field or field.endswith("pdrop"):
            setattr(config, field, probability)


class SizeFitter:
    """Fits a config's sizes to the data's: a size that the job leaves open is set, a fixed one must be large enough."""

    def __init__(self, config: PretrainedConfig, section: ModelSection) -> None:
        aliases = type(config).attribute_map
        self.config = config
        self.checkpoint = section.path or section.hub
        self.given = {aliases.get(key, key) for key in section.config}
        self.aliases = aliases

    def is_open(self, field: str) -> bool:
        """Whether neither a checkpoint nor the job file fixes the field."""
        return self.checkpoint is None and self.aliases.get(field, field) not in self.given

    def at_least(self, field: str, needed: int, what: str, remedy: str) -> None:
        """Make `field` at least `needed` (0: unknown, nothing to do). Raises ValueError if it is fixed and smaller."""
        if needed and self.is_open(field):
            setattr(self.config, field, needed)
        elif getattr(self.config, field) < needed:
            raise ValueError(f"{what} is {needed} and the model's {field} is {getattr(self.config, field)}; {remedy}")

    def exactly(self, field: str, needed: int, what: str, remedy: str) -> None:
        """Make `field` equal `needed` (0: unknown, nothing to do). Raises ValueError if it is fixed and differs."""
        value = getattr(self.config, field)
        if needed and self.is_open(field):
            setattr(self.config, field, needed)
        elif needed and any(side != needed for side in pair(value)):
            raise ValueError(f"{what} is {needed} and the model's {field} is {value}; {remedy}")


def pair(size: int | list[int] | tuple[int, ...]) -> tuple[int, int]:
    """(height, width) of a size that a config gives as one number or as two."""
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def one_line(error: BaseException) -> str:
    """A library's error on one line, at most 200 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."


def _check_fields(section: ModelSection, config_class: type[PretrainedConfig], family: str) -> None:
    known = sorted(field for field in {*vars(config_class()), *config_class.attribute_map} if not field.startswith("_"))
    for key, value in section.config.items():
        if key in SET_ELSEWHERE:
            raise ValueError(f"model.config.{key} is {value!r}; that is decided by {SET_ELSEWHERE[key]}: set it there")
        if key in CROSS_TALK and value:
            raise ValueError(f"model.config.{key} is {value!r}; blocks with a second input cannot be cut: remove it")
        if key == "model_type" and value != config_class.model_type:
            raise ValueError(f"model.config.model_type is {value!r} and model.family is {family!r}; make them agree")
        if not hasattr(config_class(), key) and key != "model_type":
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"fields are those of {config_class.__name__}"
            raise ValueError(f"model.config.{key} is {value!r}; {family} has no such field: {hint}")


def _checkpoint_config(section: ModelSection, family: str) -> PretrainedConfig:
    source: Any = section.path or section.hub
    if section.path is not None:
        _check_directory(Path(section.path))
    try:
        config = AutoConfig.from_pretrained(
            source, revision=section.revision, attn_implementation=section.attention, local_files_only=section.path is not None
        )
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        field = "path" if section.path is not None else "hub"
        raise ValueError(
            f"model.{field} {source}: its config cannot be read ({one_line(error)}); give a whole checkpoint"
        ) from error
    if config.model_type != family:
        raise ValueError(
            f"{source} holds a {config.model_type} and model.family is {family}; set model.family: {config.model_type}"
        )
    for field in CROSS_TALK:
        if getattr(config, field, False):
            raise ValueError(f"{source} has {field}: true; blocks with a second input cannot be cut: give another checkpoint")
    return config


def _check_directory(path: Path) -> None:
    """Check a checkpoint directory, with errors in the user's terms, before a library raises its own."""
    remedy = "give a directory as save_pretrained writes it"
    if not path.is_dir():
        raise ValueError(f"model.path {path}: no such directory; {remedy}")
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"model.path {path}: there is no config.json in it; {remedy}")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path {path}: config.json cannot be read ({one_line(error)}); {remedy}") from error
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise ValueError(f"model.path {path}: config.json names no model_type; {remedy}")
