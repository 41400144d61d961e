"""GPT-2: causal language modeling, its head tied to the token embedding unless the config unties it."""

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.base import CutModel, Unit, assemble, attention_block_flops, first_tensor
from frostline_trainer.families.cells import Cell
from frostline_trainer.families.configuring import SizeFitter
from frostline_trainer.families.hugging_face import HuggingFaceFamily, as_cache, fit_text
from frostline_trainer.families.masks import causal_mask
from frostline_trainer.tensor.table import TensorTable


class Embedding(Unit):
    """input_ids (samples, tokens) to token plus position embeddings (samples, tokens, width)."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.wte = model.transformer.wte
        self.wpe = model.transformer.wpe
        self.drop = model.transformer.drop

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        tokens = inputs["input_ids"]
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return self.drop(self.wte(tokens) + self.wpe(positions))


class Block(Unit):
    """One decoder layer under the causal and padding mask."""

    def __init__(self, layer: nn.Module, attention: str) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor], cell: Cell | None = None) -> Tensor:
        mask = causal_mask(x, inputs.get("attention_mask"), self.attention, cell)
        return first_tensor(self.layer(x, attention_mask=mask, **as_cache(self.layer, cell)))


class Head(Unit):
    """The final norm and the projection to the vocabulary: logits (samples, tokens, vocabulary)."""

    position_wise = True

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.ln_f = model.transformer.ln_f
        self.lm_head = model.lm_head

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.lm_head(self.ln_f(x))


class GPT2(HuggingFaceFamily):
    """GPT-2 with its language-modeling head."""

    name = "gpt2"
    causal = True
    padding_blind = True
    config_class = GPT2Config
    model_classes = {"language_modeling": GPT2LMHeadModel}  # noqa: RUF012

    def fit(self, fitter: SizeFitter, sizes: DataSizes) -> None:
        fit_text(fitter, sizes)

    def cut(self, model: PreTrainedModel, task_kind: str) -> CutModel:
        """Units: token and position embeddings, one decoder layer each, and the final norm with the projection."""
        self.check_task(task_kind)
        blocks = [Block(layer, model.config._attn_implementation) for layer in model.transformer.h]
        tied = ("wte.weight", "lm_head.weight") if model.config.tie_word_embeddings else None
        return assemble(model, Embedding(model), blocks, Head(model), tied)

    def tensor_table(self, config: GPT2Config) -> TensorTable:
        """The linear layers of a block that tensor tiles cut; see Family."""
        return TensorTable(
            columns=("attn.c_attn", "mlp.c_fc"),
            rows=("attn.c_proj", "mlp.c_proj"),
            parts={"attn.c_attn": 3},
            embedding="wte",
            logits="lm_head",
            inner_attributes=("attn.split_size",),
        )

    def hidden_shape(self, config: GPT2Config, sizes: DataSizes) -> tuple[int, int]:
        """(sequence length, n_embd) of one sample."""
        return sizes.sequence_length, config.n_embd

    def forward_flops(self, config: GPT2Config, sizes: DataSizes, task_kind: str) -> tuple[int, ...]:
        """FLOPs of one sample in each unit: matrix products only, two FLOPs a multiply-add."""
        tokens, width = self.hidden_shape(config, sizes)
        block = attention_block_flops(tokens, width, width, width, config.n_inner or 4 * width)
        return (0, *[block] * config.n_layer, 2 * tokens * width * config.vocab_size)
