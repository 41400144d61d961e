"""The model of a job, cut into units: built alike by every worker, its state by name, frozen and saved."""

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
"""Where models are built; auto's weights have one type on any device."""


def build_cut_model(job: Job, sizes: DataSizes, *, pretrained: bool = True) -> CutModel:
    """The job's model on the CPU, in train mode, cut into units: the same bits in every worker.

    Fresh weights are drawn in float32 from the seed ("model", job.seed), then cast, so that precisions start from the
    same model; the process's own random state is left as it was. `pretrained=False` builds the structure with fresh
    weights and reads no checkpoint: for a worker that gets the state from a peer. With model.untie_on_freeze a tied
    head becomes an untied one that starts as the embedding's copy. With model.adapters these are put in, drawn from ("adapters",
    job.seed): the model below them is the same with and without.
    Raises ValueError where model, task, data and checkpoint do not fit.
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
    """Torch's default CPU generator starts at `seed` inside, and afterwards goes on where it was. No device is touched.

    The generator is the process's: nothing else may draw from it meanwhile, so build no model beside a training step.
    """
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters and persistent buffers in place; ties stay.

    Tables that a model computes from its config (rotary frequencies: buffers that are no state) keep their type, as
    they do when transformers loads a checkpoint in that type.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to(dtype)


def save_model(cut: CutModel, directory: str | Path, processor: Any = None, dtype: torch.dtype | None = None) -> None:
    """Write what plain transformers loads: config, safetensors weights, and tokenizer or image processor where given. Of a model
    with adapters what plain peft loads.

    A tied head is written as tied, from unit 0; an untied one as its own matrix with tie_word_embeddings false. The
    model is left as it was. dtype: of the written weights; None: of the model's. Raises OSError where the directory cannot be
    written.
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
    """How many numbers `save_model` writes: all weights, or what learns where the model below adapters lies elsewhere."""
    if cut.adapted is not None and (cut.adapted.path or cut.adapted.hub):
        return sum(parameter.numel() for unit in cut.units for parameter in learnable(unit).values())
    return sum(parameter.numel() for parameter in cut.model.parameters())


@contextmanager
def cast_meanwhile(model: PreTrainedModel, dtype: torch.dtype | None) -> Iterator[None]:
    """Weights and persistent buffers are of another type inside, and the very ones that they were afterwards."""
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
    """The unsplit model with its tie in place: inside, the head uses the embedding's own parameter."""
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
    """Whether a parameter is free of weight decay: biases and normalisation weights, all that has one dimension or none."""
    return parameter.ndim <= 1


def set_frozen(unit: nn.Module, frozen: bool) -> None:
    """Freeze or unfreeze one unit: no gradients and eval mode, or both back. What never learns takes no gradient in either.

    `train()` on a unit or a container of units leaves a frozen Unit in eval mode; `train()` on the Hugging Face model
    goes past the units and undoes it: do not call that.
    """
    if isinstance(unit, Unit):
        unit.frozen = frozen
    unit.requires_grad_(False)
    for parameter in learnable(unit).values():
        parameter.requires_grad_(not frozen)
    unit.train(not frozen)
