"""LoRA adapters of the library `peft` in chosen blocks of a cut model: small matrices learn, the model's own weights never do.

The functions import peft themselves, so that only workers of a job with adapters spend time on it.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from frostline_contract.job.adapters import AdaptersSection, blocks_with_adapters
from frostline_contract.job.data import ModelSection
from frostline_trainer.families.base import CutModel, never_learns
from frostline_trainer.families.configuring import one_line
from frostline_trainer.process.lean_imports import import_peft
from frostline_trainer.tensor.linear import TiledLinear

PREFIX = "lora_"
"""Prefix of the submodules that peft adds to a layer."""


def add_adapters(cut: CutModel, section: ModelSection) -> None:
    """Put adapters into the blocks that the section names; from then on only they and the head learn.

    Draws from torch's default CPU generator. Raises ValueError, with field, value and remedy, for blocks and targets that the
    model does not have.
    """
    assert section.adapters is not None
    adapted = adapted_layers(cut, section.adapters)
    try:
        import_peft().inject_adapter_in_model(lora_config(cut, section.adapters, adapted), cut.model)
    except ValueError as error:
        raise ValueError(f"model.adapters: peft cannot adapt these layers ({one_line(error)}); set targets to others") from error
    cut.adapted = section
    for unit in cut.units[:-1]:
        never_learns(unit, (name for name, _ in unit.named_parameters() if PREFIX not in name))
    if cut.tied is not None:  # the head uses the embedding's matrix, which does not learn
        never_learns(cut.units[-1], [cut.tied[1]])


def adapted_layers(cut: CutModel, section: AdaptersSection) -> list[str]:
    """Names, in the unsplit model, of the layers that get adapters, in the model's order.

    Raises ValueError for a target that is no linear layer of each chosen block.
    """
    names = {id(module): name for name, module in cut.model.named_modules()}
    found: list[str] = []
    for block in blocks_with_adapters(section, len(cut.units) - 2):
        unit = cut.units[1 + block]
        linear = {names[id(layer)]: layer for _, layer in unit.named_modules() if id(layer) in names and _is_linear(layer)}
        for target in section.targets:
            if not any(_matches(name, target) for name in linear):
                known = ", ".join(_short(linear)) or "none"
                raise ValueError(
                    f"model.adapters.targets has {target!r}, which names no linear layer of block {block}; those are {known}"
                )
        if not linear:
            raise ValueError(f"model.adapters.blocks names block {block}, which has no linear layer; name others")
        found += [name for name in linear if not section.targets or any(_matches(name, one) for one in section.targets)]
    return found


def lora_config(cut: CutModel, section: AdaptersSection, adapted: list[str], **more: Any) -> Any:
    """peft's configuration of these adapters.

    Args:
        cut: the model, cut into units.
        section: the job's `adapters`.
        adapted: names of the layers that have adapters.
        more: fields for a saved adapter only.
    """
    layers = [cut.model.get_submodule(name) for name in adapted]
    return import_peft().LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=adapted,
        fan_in_fan_out=any(_is_transposed(getattr(layer, "base_layer", layer)) for layer in layers),
        **more,
    )


def parameters_added(unit: nn.Module) -> int:
    """Number of parameters in a unit's adapters."""
    return sum(parameter.numel() for name, parameter in unit.named_parameters() if PREFIX in name)


def adapted_pairs(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(parent module, name in it, layer) of every layer with an adapter."""
    with_adapter = import_peft().tuners.lora.LoraLayer
    for owner in list(model.modules()):
        for name, layer in list(owner.named_children()):
            if isinstance(layer, with_adapter):
                yield owner, name, layer


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear | TiledLinear) or _is_transposed(layer)


def _is_transposed(layer: nn.Module) -> bool:
    """Whether a layer's weight is (in, out), as in GPT-2's linear layers."""
    return layer.cut.transposed if isinstance(layer, TiledLinear) else type(layer).__name__ == "Conv1D"


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _short(names: Any) -> list[str]:
    """The last two parts of each name, which distinguish a block's layers."""
    return sorted({".".join(name.split(".")[-2:]) for name in names})
