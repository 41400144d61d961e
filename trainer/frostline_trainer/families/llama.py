"""Llama: causal language modeling with rotary positions and grouped key and value heads."""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.base import CutModel, Unit, assemble, attention_block_flops, first_tensor
from frostline_trainer.families.cells import Cell
from frostline_trainer.families.configuring import SizeFitter
from frostline_trainer.families.hugging_face import HuggingFaceFamily, as_cache, fit_text
from frostline_trainer.families.masks import causal_mask
from frostline_trainer.tensor.table import TensorTable, from_tp_plan


class Embedding(Unit):
    """input_ids (samples, tokens) to (samples, tokens, width)."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.embed_tokens = model.model.embed_tokens

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.embed_tokens(inputs["input_ids"])


Rotation = tuple[Tensor, Tensor, Tensor]
"""Positions (1, tokens), and cosines and sines (1, tokens, width of a head)."""


class Rotations:
    """The rotary embedding of each sequence length, type and device, computed once for all blocks of a model.

    A block would take a dozen small kernels for it in each forward, which a GPU's host cannot launch fast enough. Each stream of
    a GPU has its own, since another stream might read one before it is computed.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, torch.dtype, torch.device, int], Rotation] = {}

    def of(self, x: Tensor, tokens: int, rotary: nn.Module) -> Rotation:
        """Return the rotation of `tokens` tokens, in x's type and on its device; `rotary` computes it where it is not known."""
        if torch.compiler.is_compiling():  # a compiled unit is one graph, without a state
            return self._computed(x, tokens, rotary)
        key = (tokens, x.dtype, x.device, stream_of(x))
        if key not in self._known:
            self._known[key] = self._computed(x, tokens, rotary)
        return self._known[key]

    def _computed(self, x: Tensor, tokens: int, rotary: nn.Module) -> Rotation:
        positions = torch.arange(tokens, device=x.device)[None]
        return (positions, *rotary(x, position_ids=positions))

    def __deepcopy__(self, memo: dict[int, object]) -> "Rotations":
        return self  # a copied block has the same angles


def stream_of(x: Tensor) -> int:
    """The number of the GPU's stream on which the calling thread's kernels run now; 0 on other devices."""
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda and torch.cuda.is_initialized() else 0


class Block(Unit):
    """One decoder layer under the causal and padding mask.

    It has a rotary table of its own, which is not state, so that any stage can run alone.
    """

    def __init__(self, layer: nn.Module, rotary: nn.Module, rotations: Rotations, attention: str) -> None:
        super().__init__()
        self.layer = layer
        self.rotary = rotary
        self.rotations = rotations
        self.attention = attention

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor], cell: Cell | None = None) -> Tensor:
        mask = causal_mask(x, inputs.get("attention_mask"), self.attention, cell)
        positions, *angles = self.rotations.of(x, x.shape[1] if cell is None else cell.tokens, self.rotary)
        if cell is not None:  # cut from the angles of all tokens, since angles may depend on the sequence's length
            positions, *angles = (cell.cut(one) for one in (positions, *angles))
        return first_tensor(
            self.layer(
                x, attention_mask=mask, position_ids=positions, position_embeddings=tuple(angles), **as_cache(self.layer, cell)
            )
        )


class Head(Unit):
    """The final norm and the projection to the vocabulary: logits (samples, tokens, vocabulary)."""

    position_wise = True

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.norm = model.model.norm
        self.lm_head = model.lm_head

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.lm_head(self.norm(x))


class Llama(HuggingFaceFamily):
    """Llama with its language-modeling head."""

    name = "llama"
    causal = True
    padding_blind = True
    config_class = LlamaConfig
    model_classes = {"language_modeling": LlamaForCausalLM}  # noqa: RUF012

    def fit(self, fitter: SizeFitter, sizes: DataSizes) -> None:
        fit_text(fitter, sizes)

    def cut(self, model: PreTrainedModel, task_kind: str) -> CutModel:
        """Units: the token embedding, one decoder layer each with its own rotary table, final norm with projection."""
        self.check_task(task_kind)
        attention = model.config._attn_implementation
        # A table for each block: a unit that leaves the device would move a shared table with it.
        rotations = Rotations()
        blocks = [Block(layer, deepcopy(model.model.rotary_emb), rotations, attention) for layer in model.model.layers]
        tied = ("embed_tokens.weight", "lm_head.weight") if model.config.tie_word_embeddings else None
        return assemble(model, Embedding(model), blocks, Head(model), tied)

    def tensor_table(self, config: LlamaConfig) -> TensorTable | None:
        """The layers that tensor tiles cut: transformers' own plan of a block, and both uses of the vocabulary; see Family."""
        blocks = from_tp_plan(config)
        return None if blocks is None else replace(blocks, embedding="embed_tokens", logits="lm_head")

    def hidden_shape(self, config: LlamaConfig, sizes: DataSizes) -> tuple[int, int]:
        """(sequence length, hidden_size) of one sample."""
        return sizes.sequence_length, config.hidden_size

    def forward_flops(self, config: LlamaConfig, sizes: DataSizes, task_kind: str) -> tuple[int, ...]:
        """FLOPs of one sample in each unit: matrix products only, two FLOPs a multiply-add; keys and values in groups."""
        tokens, width = self.hidden_shape(config, sizes)
        head_width = config.head_dim or width // config.num_attention_heads
        query, key_value = config.num_attention_heads * head_width, config.num_key_value_heads * head_width
        block = attention_block_flops(tokens, width, query, key_value, config.intermediate_size, inner_matrices=3)
        return (0, *[block] * config.num_hidden_layers, 2 * tokens * width * config.vocab_size)
