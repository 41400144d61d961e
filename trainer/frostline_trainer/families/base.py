"""The interface of a model family, which configures a transformer, builds it, and cuts it into units."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from frostline_contract.job.data import ModelSection, TaskSection
from frostline_trainer.data.sizes import DataSizes


class Unit(nn.Module):
    """The smallest thing that is placed, frozen and stored: the embedding, one transformer block, or the head.

    `forward(x, inputs)` takes the boundary activation of the previous unit, (samples, tokens, width), or None in unit 0,
    and the micro-batch's raw inputs by name (pixel_values, input_ids, token_type_ids, attention_mask: 1 = valid). It
    returns the next boundary activation, or the logits in the last unit. Blocks compute masks and rotary angles from `inputs`
    themselves, so that only one hidden tensor crosses a cut.

    A block of a causal family has `forward(x, inputs, cell=None)`. With a cell, x holds the cell's tokens only; the block passes
    their keys and values to `cell.update`, which returns those of all tokens up to the cell's end. `inputs` are the sequence's.

    A frozen unit stays in eval mode: `train()` on a container of units would otherwise switch its dropout on again.
    """

    frozen = False
    position_wise = False
    """Whether a token's output depends on that token alone. Such a unit needs no cell, and such a head can compute a sample's
    tokens in chunks."""

    def train(self, mode: bool = True) -> "Unit":
        """Set training mode as torch does; a frozen unit stays in eval mode, without dropout."""
        return super().train(mode and not self.frozen)


@dataclass
class CutModel:
    """A Hugging Face model and its units, which consist of the model's own submodules.

    Attributes:
        units: Embedding, blocks in order, head.
        unit_names: One readable name each, e.g. "embedding", "block 3", "head".
        tied: (parameter name in unit 0, parameter name in the last unit) of a tied matrix, or None. The two uses are separate
            parameters with equal values, each with its own gradient; the step adds the two gradients.
        adapted: The job's `model` section if the blocks have adapters, or None.
    """

    model: PreTrainedModel
    units: list[nn.Module]
    unit_names: list[str]
    tied: tuple[str, str] | None = None
    adapted: ModelSection | None = None

    def tied_parameters(self) -> tuple[nn.Parameter, nn.Parameter] | None:
        """(the embedding's, the head's) parameter of the tied matrix, or None."""
        if self.tied is None:
            return None
        return self.units[0].get_parameter(self.tied[0]), self.units[-1].get_parameter(self.tied[1])


class Family(Protocol):
    """One kind of transformer. A new one is one file and one line: in the registry, or an entry point of frostline.families.

    Optional members:

    causal (default False): all units between embedding and head process a sequence's tokens in order, share only keys and values
    between tokens, and take cells (`Unit`). padding_blind (default False): no token's output depends on a padding token behind
    the text, nor do the logits of a task with one prediction for a whole text.

    tensor_table: a method that returns, for a config, the `frostline_trainer.tensor.table.TensorTable` of the blocks, or None if
    they cannot be cut. Without this method, transformers' own plan of the model is used (`from_tp_plan`).
    """

    name: str
    tasks: frozenset[str]

    def config(self, section: ModelSection, task: TaskSection, sizes: DataSizes) -> PretrainedConfig:
        """The model's config from the job's `model` section, fitted to the task and to the data's sizes.

        Raises ValueError, with field, value and remedy, if they do not fit each other.
        """
        ...

    def model(self, config: PretrainedConfig, task_kind: str, section: ModelSection) -> PreTrainedModel:
        """The unsplit model on the CPU: from the checkpoint that the section names, else newly initialised.

        Draws from torch's default CPU generator only. Raises ValueError for a checkpoint that cannot be used.
        """
        ...

    def cut(self, model: PreTrainedModel, task_kind: str) -> CutModel:
        """The model's units: embedding, one per block, head. A tied head gets its own copy of the matrix."""
        ...

    def hidden_shape(self, config: PretrainedConfig, sizes: DataSizes) -> tuple[int, int]:
        """(tokens, width) of one sample's boundary activation: the same at every cut."""
        ...

    def forward_flops(self, config: PretrainedConfig, sizes: DataSizes, task_kind: str) -> tuple[int, ...]:
        """FLOPs of one sample's forward in each unit: two for each multiply-add of matrix products and convolutions.

        Other operations (lookups, normalisation, softmax) are not counted, so a text embedding has 0.
        """
        ...


def assemble(
    model: PreTrainedModel,
    embedding: nn.Module,
    blocks: Sequence[nn.Module],
    head: nn.Module,
    tied: tuple[str, str] | None = None,
) -> CutModel:
    """A CutModel from its parts; a tied matrix becomes two parameters of equal value.

    Args:
        model: the whole model.
        embedding, blocks, head: the model's units, in this order.
        tied: names of the shared matrix in the embedding and in the head; None: there is none.
    """
    names = ["embedding", *(f"block {index}" for index in range(len(blocks))), "head"]
    cut = CutModel(model, [embedding, *blocks, head], names, tied)
    shared = cut.tied_parameters()
    if tied is not None and shared is not None and shared[0] is shared[1]:
        owner, _, leaf = tied[1].rpartition(".")
        setattr(head.get_submodule(owner), leaf, nn.Parameter(shared[0].detach().clone(), requires_grad=shared[0].requires_grad))
    return cut


def never_learns(unit: nn.Module, names: Iterable[str]) -> None:
    """Mark parameters of a unit that learn in no step of the run, even unfrozen: those below adapters."""
    unit.never_learning = frozenset(names)


def learnable(unit: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a unit that learn while the unit is not frozen, by name, in order."""
    still = still_names(unit)
    return {name: parameter for name, parameter in unit.named_parameters() if name not in still}


def still_names(unit: nn.Module) -> frozenset[str]:
    """Names of the parameters that never learn."""
    return getattr(unit, "never_learning", frozenset())


def first_tensor(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """A layer's hidden states: transformers 5 returns the tensor, 4.5x a tuple that starts with it."""
    return output[0] if isinstance(output, tuple) else output


def attention_block_flops(tokens: int, width: int, query: int, key_value: int, inner: int, inner_matrices: int = 2) -> int:
    """FLOPs of one transformer block over `tokens` tokens.

    Projections: query and output 2 T d q each, key and value 2 T d k each; scores and their product with the values 2 T^2 q each;
    feed-forward 2 T d f a matrix. The whole square is counted, also with a causal mask.

    Args:
        tokens: T.
        width: d.
        query: q, the width of all query heads together.
        key_value: k, the width of all key (or value) heads together.
        inner: f, the width of the feed-forward.
        inner_matrices: matrices of the feed-forward.
    """
    projections = 2 * tokens * width * (2 * query + 2 * key_value)
    attention = 4 * tokens * tokens * query
    return projections + attention + inner_matrices * 2 * tokens * width * inner
