"""Saves adapters in peft's own format: `PeftModel.from_pretrained(model, folder)` loads them into their base model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from frostline_contract.job.data import ModelSection
from frostline_trainer.families.adapters import PREFIX, adapted_layers, adapted_pairs, lora_config
from frostline_trainer.families.base import CutModel, learnable

BASE_FOLDER = "base"
"""Folder below the saved adapters for their base model, if that came from no checkpoint."""
WEIGHTS = "adapter_model.safetensors"
OF_MODEL = "base_model.model."
"""Prefix of peft's weight names, before the model's own name."""
ADAPTER = ".default"
"""peft's name of the adapter, which saved weight names leave out."""


def save_adapters(cut: CutModel, section: ModelSection, directory: Path) -> None:
    """Write adapters and head, and in a folder below them the base model if it came from no checkpoint.

    Raises OSError if the directory cannot be written.
    """
    assert section.adapters is not None
    head = head_modules(cut)
    tensors = dict(_tensors(cut, head))
    with without_adapters(cut.model):
        layers = adapted_layers(cut, section.adapters)
        source = section.path or section.hub
        if source is None:
            source = str(directory / BASE_FOLDER)
            cut.model.save_pretrained(source)
        config = lora_config(
            cut, section.adapters, layers, modules_to_save=head, inference_mode=True, revision=section.revision,
            base_model_name_or_path=section.path or section.hub,
        )  # fmt: skip
    config.save_pretrained(str(directory))
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def head_modules(cut: CutModel) -> list[str]:
    """Names, in the unsplit model, of the head's modules that learn: peft's modules_to_save."""
    names = {id(module): name for name, module in cut.model.named_modules()}
    learning = {name.partition(".")[0] for name in learnable(cut.units[-1])}
    return [names[id(child)] for name, child in cut.units[-1].named_children() if name in learning]


def _tensors(cut: CutModel, head: list[str]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in cut.model.state_dict().items():
        if PREFIX in name:
            yield OF_MODEL + name.replace(ADAPTER, ""), tensor.detach().contiguous()
        elif name.startswith(tuple(f"{module}." for module in head)):
            yield OF_MODEL + name, tensor.detach().contiguous()


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """A context in which the unsplit model has its original layers in place of those with adapters."""
    pairs = list(adapted_pairs(model))
    for owner, name, layer in pairs:
        setattr(owner, name, layer.base_layer)
    try:
        yield
    finally:
        for owner, name, layer in pairs:
            setattr(owner, name, layer)
