"""Small unsplit models of every family, and batches with padding and unequal counts, the same on every machine."""

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from tests.oracle.plain_loop import IGNORED

FAMILIES = (
    "vit",
    "bert_classification",
    "bert_regression",
    "bert_question_answering",
    "gpt2_tied",
    "gpt2_untied",
    "llama",
    "llama_tied",
)
VOCABULARY, TOKENS, CLASSES = 97, 16, 5


def small_model(
    family: str, dtype: torch.dtype = torch.float32, dropout: float = 0.0, blocks: int = 4, seed: int = 1, tokens: int = TOKENS
) -> PreTrainedModel:
    """Return a model of `blocks` blocks, hidden size 32, for texts of at most `tokens` tokens.

    Its random weights depend on (family, blocks, seed, tokens) only.
    """
    sizes = {"hidden_size": 32, "num_hidden_layers": blocks, "num_attention_heads": 4, "intermediate_size": 64}
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": tokens}
    torch.manual_seed(seed)
    match family:
        case "vit":
            model = ViTForImageClassification(
                ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=CLASSES, **sizes, **drops)
            )
        case "bert_classification":
            model = BertForSequenceClassification(BertConfig(num_labels=CLASSES, **text, **sizes, **drops))
        case "bert_regression":
            model = BertForSequenceClassification(BertConfig(num_labels=1, **text, **sizes, **drops))
        case "bert_question_answering":
            model = BertForQuestionAnswering(BertConfig(num_labels=2, **text, **sizes, **drops))
        case "gpt2_tied" | "gpt2_untied":
            config = GPT2Config(
                vocab_size=VOCABULARY, n_positions=tokens, n_embd=32, n_layer=blocks, n_head=4, n_inner=64, resid_pdrop=dropout,
                embd_pdrop=dropout, attn_pdrop=dropout, tie_word_embeddings=family == "gpt2_tied", bos_token_id=1, eos_token_id=1,
            )  # fmt: skip
            model = GPT2LMHeadModel(config)
        case "llama" | "llama_tied":
            tie = family == "llama_tied"
            config = LlamaConfig(num_key_value_heads=2, attention_dropout=dropout, tie_word_embeddings=tie, **text, **sizes)
            model = LlamaForCausalLM(config)
        case _:
            raise ValueError(f"family is {family!r}; known: {', '.join(FAMILIES)}")
    return cast(model, dtype).train()


def cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast weights only: tables computed from the config (rotary frequencies) keep float32, as in a loaded checkpoint."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def small_batch(
    family: str, rows: int, seed: int = 7, padding_rows: int = 0, dtype: torch.dtype = torch.float32, tokens: int = TOKENS
) -> dict[str, Tensor]:
    """Return one batch; the last `padding_rows` of its rows are padding items, whose labels are all ignored.

    Texts have between 5 and `tokens` tokens, so valid counts differ from micro-batch to micro-batch.
    """
    generator = torch.Generator().manual_seed(seed)
    if family == "vit":
        pixels = torch.rand(rows, 1, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
        return {"pixel_values": pixels, "labels": _ignore(torch.randint(CLASSES, (rows,), generator=generator), padding_rows)}
    ids = torch.randint(2, VOCABULARY, (rows, tokens), generator=generator)
    lengths = torch.randint(5, tokens + 1, (rows,), generator=generator)
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    if family.startswith("bert"):
        batch["token_type_ids"] = (torch.arange(tokens) >= lengths[:, None] // 2).long() * mask
    if family == "bert_classification":
        batch["labels"] = _ignore(torch.randint(CLASSES, (rows,), generator=generator), padding_rows)
    elif family == "bert_regression":
        batch["labels"] = torch.rand(rows, generator=generator) * 5.0
        batch["label_weights"] = (torch.arange(rows) < rows - padding_rows).float()
    elif family == "bert_question_answering":
        start = (torch.rand(rows, generator=generator) * lengths).long()
        end = torch.minimum(start + 2, lengths - 1)
        # Every fifth span lies outside its window: ignored, at the start only, so that the two counts differ.
        start = torch.where(torch.arange(rows) % 5 == 3, IGNORED, start)
        batch |= {"start_positions": _ignore(start, padding_rows), "end_positions": _ignore(end, padding_rows)}
    else:
        shifted = torch.cat([batch["input_ids"][:, 1:], torch.full((rows, 1), IGNORED)], dim=1)
        following = torch.cat([mask[:, 1:], torch.zeros(rows, 1, dtype=torch.long)], dim=1)
        batch["labels"] = _ignore(torch.where(following.bool(), shifted, IGNORED), padding_rows)
    return batch


def _ignore(labels: Tensor, padding_rows: int) -> Tensor:
    if padding_rows:
        labels[-padding_rows:] = IGNORED
    return labels
