"""The base class of the built-in families: a config class, a model class for each task, and fitting both to the data's sizes."""

import inspect
from functools import cache

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from frostline_contract.job.data import ModelSection, TaskSection
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.cells import Cell
from frostline_trainer.families.checkpoints import load_checkpoint
from frostline_trainer.families.configuring import SizeFitter, one_line, read_config


class HuggingFaceFamily:
    """Base of a family whose model and config are classes of the transformers library.

    A subclass sets `name` (the config's model_type), `config_class`, `model_classes` by task and `fresh`. Its methods fit the
    config to the data (`fit`), cut the model, and count FLOPs.
    """

    name: str
    config_class: type[PretrainedConfig]
    model_classes: dict[str, type[PreTrainedModel]]
    causal: bool = False
    padding_blind: bool = False
    fresh: tuple[str, ...] = ()
    """Prefixes of parameter names that a checkpoint may lack: heads of other tasks."""

    @property
    def tasks(self) -> frozenset[str]:
        """Kinds of task for which there is a model class."""
        return frozenset(self.model_classes)

    def config(self, section: ModelSection, task: TaskSection, sizes: DataSizes) -> PretrainedConfig:
        """See Family.config."""
        self.check_task(task.kind)
        config = read_config(section, self.config_class, self.name)
        if config.num_hidden_layers < 1:
            raise ValueError(f"the model has {config.num_hidden_layers} blocks (num_hidden_layers); it needs at least 1")
        fitter = SizeFitter(config, section)
        self.fit(fitter, sizes)
        if task.kind == "question_answering":
            config.num_labels = 2
        elif task.kind != "language_modeling":
            fit_labels(fitter, task, sizes)
        return config

    def model(self, config: PretrainedConfig, task_kind: str, section: ModelSection) -> PreTrainedModel:
        """See Family.model."""
        self.check_task(task_kind)
        model_class = self.model_classes[task_kind]
        if section.path or section.hub:
            return load_checkpoint(model_class, config, section, self.fresh)
        try:
            return model_class(config)
        except (ValueError, KeyError, RuntimeError) as error:
            raise ValueError(f"model.config makes no {self.name}: {one_line(error)}; correct the field") from error

    def fit(self, fitter: SizeFitter, sizes: DataSizes) -> None:
        """Fit the config to images or text. Raises ValueError if a fixed size is too small."""
        raise AssertionError(f"family {self.name} does not say how it meets the data")

    def check_task(self, task_kind: str) -> None:
        """Raise ValueError if the family has no model for the task."""
        if task_kind not in self.model_classes:
            raise ValueError(
                f"task.kind is {task_kind} and model.family {self.name} does {', '.join(sorted(self.tasks))}; change one of them"
            )


def as_cache(layer: nn.Module, cell: Cell | None) -> dict[str, Cell]:
    """The keyword argument that passes a cell to a layer of transformers: 5.x has one name for it, 4.5x two."""
    if cell is None:
        return {}
    return {_cache_argument(type(layer)): cell}


@cache
def _cache_argument(kind: type[nn.Module]) -> str:
    taken = inspect.signature(kind.forward).parameters
    return next(name for name in ("past_key_values", "past_key_value", "layer_past") if name in taken)


def fit_text(fitter: SizeFitter, sizes: DataSizes) -> None:
    """Fit vocabulary and positions of a text model; special tokens beyond a vocabulary left open are dropped."""
    fitter.at_least(
        "vocab_size",
        sizes.vocabulary_size,
        "the tokenizer's vocabulary",
        "use the checkpoint's own tokenizer or raise model.config.vocab_size",
    )
    fitter.at_least(
        "max_position_embeddings",
        sizes.sequence_length,
        "data.sequence_length",
        "lower it or raise model.config.max_position_embeddings",
    )
    for field in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(fitter.config, field, None)
        if isinstance(token, int) and token >= fitter.config.vocab_size and fitter.is_open(field):
            setattr(fitter.config, field, None)


def fit_labels(fitter: SizeFitter, task: TaskSection, sizes: DataSizes) -> None:
    """Set the number of classes: the job's, else model.config's, which must be the data's, else the data's. One is regression."""
    given = None if fitter.is_open("num_labels") or "num_labels" not in fitter.given else fitter.config.num_labels
    labels = task.num_labels or given or sizes.num_labels or fitter.config.num_labels
    if sizes.num_labels > labels:
        raise ValueError(f"the data has {sizes.num_labels} classes and the model {labels}; raise task.num_labels")
    if given and not task.num_labels and given > sizes.num_labels > 0:
        raise ValueError(
            f"model.config.num_labels is {given} and the data has {sizes.num_labels} classes; set task.num_labels instead, which "
            "the scores follow too"
        )
    if labels != fitter.config.num_labels:
        fitter.config.num_labels = labels
    regression = labels == 1 or sizes.regression
    fitter.config.problem_type = "regression" if regression else "single_label_classification"
