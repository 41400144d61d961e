"""The units of an unsplit Hugging Face model: embedding, blocks, head. The model is not cut; its modules are only named."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTForImageClassification,
)

IGNORED = -100
"""Label of an item that does not count."""
CAUSAL = (GPT2LMHeadModel, LlamaForCausalLM)


def summed_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over rows that count."""
    return functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")


@dataclass
class Anatomy:
    """An unsplit model seen as units.

    units: the modules of each unit, in the order in which their parameters are laid out; the first module of a unit is the
    first that its forward calls, where dropout is seeded. loss_keys: label entries of a batch, one a loss term.
    tied: (embedding weight, the head's own copy), or None. score: the summed cross entropy of (rows, classes) and labels.
    """

    model: PreTrainedModel
    units: list[list[nn.Module]]
    loss_keys: tuple[str, ...]
    tied: tuple[nn.Parameter, nn.Parameter] | None = None
    regression: bool = False
    score: Callable[[Tensor, Tensor], Tensor] = summed_cross_entropy
    _names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = {id(parameter): name for name, parameter in self.model.named_parameters(remove_duplicate=False)}

    def parameters(self, unit: int) -> list[nn.Parameter]:
        """The unit's parameters, in module order."""
        return [parameter for module in self.units[unit] for parameter in module.parameters()]

    def name(self, parameter: nn.Parameter) -> str:
        """The parameter's name in the Hugging Face model."""
        return self._names[id(parameter)]

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The logits of each loss term; (rows, classes) each, (rows, 1) for regression."""
        ignored = {*self.loss_keys, "label_weights"}
        inputs = {key: value for key, value in batch.items() if key not in ignored}
        if "attention_mask" in inputs and inputs["attention_mask"].device.type != "cpu":
            inputs["attention_mask"] = self.mask(inputs["attention_mask"])
        if isinstance(self.model, CAUSAL):
            return (self.model(**inputs, use_cache=False).logits.flatten(0, 1),)
        output = self.model(**inputs)
        if isinstance(self.model, BertForQuestionAnswering):
            return output.start_logits, output.end_logits
        return (output.logits,)

    def mask(self, valid: Tensor) -> Tensor:
        """The mask (rows, 1, tokens, tokens) of which token attends to which, True: it does. valid: (rows, tokens).

        transformers makes it of the same argument, and none where no token is hidden. So does the engine on a CPU. On a GPU
        kernels have other bits without it, and the engine, which looks at no values there, gives it.
        """
        seen = valid.bool()[:, None, None, :].expand(-1, 1, valid.shape[1], -1)
        return seen.tril() if isinstance(self.model, CAUSAL) else seen


def anatomy_of(model: PreTrainedModel, untie: bool = True) -> Anatomy:
    """Find the units of a ViT, BERT (classification, question answering), GPT-2 or Llama model. Raises ValueError for others.

    With `untie` a tied output matrix gets a parameter of its own with equal bits, so that each use has its own gradient.
    """
    match model:
        case ViTForImageClassification():
            layers = getattr(model.vit, "layers", None) or model.vit.encoder.layer
            return Anatomy(model, [[model.vit.embeddings], *_each(layers), [model.vit.layernorm, model.classifier]], ("labels",))
        case BertForSequenceClassification():
            head = [model.bert.pooler, model.dropout, model.classifier]
            units = [[model.bert.embeddings], *_each(model.bert.encoder.layer), head]
            return Anatomy(model, units, ("labels",), regression=model.config.num_labels == 1)
        case BertForQuestionAnswering():
            units = [[model.bert.embeddings], *_each(model.bert.encoder.layer), [model.qa_outputs]]
            return Anatomy(model, units, ("start_positions", "end_positions"))
        case GPT2LMHeadModel():
            body = model.transformer
            tied = _untie(model, body.wte) if untie else None
            units = [[body.wte, body.wpe, body.drop], *_each(body.h), [body.ln_f, model.lm_head]]
            return Anatomy(model, units, ("labels",), tied)
        case LlamaForCausalLM():
            tied = _untie(model, model.model.embed_tokens) if untie else None
            units = [[model.model.embed_tokens], *_each(model.model.layers), [model.model.norm, model.lm_head]]
            return Anatomy(model, units, ("labels",), tied)
    raise ValueError(f"{type(model).__name__}: the oracle knows ViT, BERT, GPT-2 and Llama models")


def _each(layers: nn.ModuleList) -> list[list[nn.Module]]:
    return [[layer] for layer in layers]


def _untie(model: PreTrainedModel, embedding: nn.Embedding) -> tuple[nn.Parameter, nn.Parameter] | None:
    if model.lm_head.weight is not embedding.weight:
        return None
    model.lm_head.weight = nn.Parameter(embedding.weight.detach().clone())
    return embedding.weight, model.lm_head.weight
