"""Builds a job's model, cut into units, with the same bits in every worker; freezes units, and saves the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from frostline_contract.job import Job
from frostline_contract.seeds import seed_of
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.adapters import add_adapters
from frostline_trainer.families.base import CutModel, Unit, learnable
from frostline_trainer.families.checkpoints import quiet
from frostline_trainer.families.registry import family_named
from frostline_trainer.families.saved_adapters import save_adapters
from frostline_trainer.step.alignment import align_weights
from frostline_trainer.step.precision import precision_of

HOST = torch.device("cpu")
"""The device on which models are built; with precision auto, weights have the same type on any device."""


def build_cut_model(job: Job, sizes: DataSizes, *, pretrained: bool = True) -> CutModel:
    """The job's model on the CPU, in train mode, cut into units: the same bits in every worker.

    New weights are drawn in float32 from the seed ("model", job.seed), then cast, so that all precisions start from the
    same model; the process's own random state does not change. `pretrained=False` builds the structure with new
    weights and reads no checkpoint, for a worker that gets its state from a peer. With model.untie_on_freeze a tied
    head becomes an untied one that starts as the embedding's copy. With model.adapters the adapters are added, drawn from
    ("adapters", job.seed); the model below them is the same as without them.
    Raises ValueError if model, task, data and checkpoint do not fit.
    """
    family = family_named(job.model.family)
    config = family.config(job.model, job.task, sizes)
    section = job.model if pretrained else job.model.model_copy(update={"path": None, "hub": None})
    with seeded_cpu(seed_of("model", job.seed)):
        model = family.model(config, job.task.kind, section)
    cast_weights(model, precision_of(job.training.precision, HOST).weights)
    align_weights(model)
    model.train()
    cut = family.cut(model, job.task.kind)
    if job.model.untie_on_freeze and cut.tied is not None:
        cut.tied = None
        model.config.tie_word_embeddings = False
    if job.model.adapters is not None:
        with seeded_cpu(seed_of("adapters", job.seed)):
            add_adapters(cut, job.model)
    return cut


@contextmanager
def seeded_cpu(seed: int) -> Iterator[None]:
    """A context in which torch's default CPU generator starts at `seed`; its state is restored afterwards. No device is used.

    The generator is the process's. No other thread may draw from it meanwhile, so models are never built during a training step.
    """
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters and persistent buffers in place; ties stay.

    Non-persistent buffers, which a model computes from its config (rotary frequencies), keep their type, as they do when
    transformers loads a checkpoint in that type.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to(dtype)


def save_model(cut: CutModel, directory: str | Path, processor: Any = None, dtype: torch.dtype | None = None) -> None:
    """Save the model for plain transformers: config, safetensors weights, and tokenizer or image processor if given. A model with
    adapters is saved for plain peft.

    A tied head is written as tied, from unit 0; an untied one as its own matrix with tie_word_embeddings false. The
    model does not change. dtype: of the written weights; None: the model's. Raises OSError if the directory cannot be written.
    """
    Path(directory).mkdir(parents=True, exist_ok=True)
    with retied(cut), cast_meanwhile(cut.model, dtype), quiet():
        if cut.adapted is not None:
            save_adapters(cut, cut.adapted, Path(directory))
        else:
            cut.model.save_pretrained(directory, safe_serialization=True)
    if processor is not None:
        processor.save_pretrained(directory)


def numbers_saved(cut: CutModel) -> int:
    """The number of elements that `save_model` writes: all weights, or only those that learn if a checkpoint has the rest."""
    if cut.adapted is not None and (cut.adapted.path or cut.adapted.hub):
        return sum(parameter.numel() for unit in cut.units for parameter in learnable(unit).values())
    return sum(parameter.numel() for parameter in cut.model.parameters())


@contextmanager
def cast_meanwhile(model: PreTrainedModel, dtype: torch.dtype | None) -> Iterator[None]:
    """A context in which weights and persistent buffers have another type; afterwards the original tensors are back."""
    weights = {parameter: parameter.data for parameter in model.parameters()}
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    if dtype is not None:
        cast_weights(model, dtype)
    try:
        yield
    finally:
        for parameter, tensor in weights.items():
            parameter.data = tensor
        for module, own in buffers:
            module._buffers.update(own)


@contextmanager
def retied(cut: CutModel) -> Iterator[PreTrainedModel]:
    """A context with the unsplit model, in which a tied head uses the embedding's own parameter."""
    pair = cut.tied_parameters()
    if pair is None or cut.tied is None:
        yield cut.model
        return
    embedding, own = pair
    assert torch.equal(embedding, own), "the two uses of the tied matrix have parted"
    module_name, _, leaf = cut.tied[1].rpartition(".")
    head = cut.units[-1].get_submodule(module_name)
    setattr(head, leaf, embedding)
    try:
        yield cut.model
    finally:
        setattr(head, leaf, own)


def no_decay(unit: nn.Module, name: str, parameter: Tensor) -> bool:
    """Whether a parameter has no weight decay: biases and normalisation weights, that is, tensors of at most one dimension."""
    return parameter.ndim <= 1


def set_frozen(unit: nn.Module, frozen: bool) -> None:
    """Freeze or unfreeze one unit: a frozen one has no gradients and is in eval mode. Weights that never learn get no gradient.

    `train()` on a unit or a container of units leaves a frozen Unit in eval mode. `train()` on the Hugging Face model bypasses
    the units and would undo it; do not call it.
    """
    if isinstance(unit, Unit):
        unit.frozen = frozen
    unit.requires_grad_(False)
    for parameter in learnable(unit).values():
        parameter.requires_grad_(not frozen)
    unit.train(not frozen)
