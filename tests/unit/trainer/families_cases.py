"""Small models of every family and task, and inputs for them, shared by the tests of families."""

from typing import Any

import torch
from torch import Tensor

from frostline_contract.job import Job, parse_job
from frostline_trainer.data.sizes import DataSizes

SAMPLES, TOKENS, VOCABULARY = 5, 12, 97
IMAGES = DataSizes(num_labels=10, image_size=16, channels=1)
TEXT = DataSizes(num_labels=3, vocabulary_size=VOCABULARY, sequence_length=TOKENS)

CASES: dict[str, tuple[str, str, dict[str, Any], DataSizes]] = {
    "vit": (
        "vit",
        "image_classification",
        {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "patch_size": 4},
        IMAGES,
    ),
    "bert": (
        "bert",
        "text_classification",
        {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48},
        TEXT,
    ),
    "bert-regression": (
        "bert",
        "text_classification",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
        DataSizes(num_labels=1, vocabulary_size=VOCABULARY, sequence_length=TOKENS, regression=True),
    ),
    "bert-answers": (
        "bert",
        "question_answering",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
        TEXT,
    ),
    "gpt2": ("gpt2", "language_modeling", {"n_embd": 32, "n_layer": 3, "n_head": 4}, TEXT),
    "gpt2-untied": ("gpt2", "language_modeling", {"n_embd": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False}, TEXT),
    "llama": (
        "llama",
        "language_modeling",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
        },
        TEXT,
    ),
    "llama-tied": (
        "llama",
        "language_modeling",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "tie_word_embeddings": True,
        },
        TEXT,
    ),
}


def job_of(case: str, *, config: dict[str, Any] | None = None, precision: str = "float32", seed: int = 3, **model: Any) -> Job:
    """Return a job with a case's model; `config` adds to its fields, `model` to the model section."""
    family, task, fields, _ = CASES[case]
    source = {} if "path" in model else fields
    return parse_job(
        {
            "seed": seed,
            "model": {"family": family, "dropout": 0.0, "config": {**source, **(config or {})}, **model},
            "task": {"kind": task},
            "data": {"source": "digits"},
            "training": {"steps": 1, "precision": precision, "reduction_leaves": 4},
        }
    )


def sizes_of(case: str) -> DataSizes:
    return CASES[case][3]


def inputs_of(case: str, *, padded: bool = True, seed: int = 1) -> dict[str, Tensor]:
    """Return a micro-batch; padded: right, left and in the middle, and one sample that is nothing but padding."""
    generator = torch.Generator().manual_seed(seed)
    if CASES[case][0] == "vit":
        return {"pixel_values": torch.randn(SAMPLES, 1, 16, 16, generator=generator)}
    inputs = {"input_ids": torch.randint(0, VOCABULARY, (SAMPLES, TOKENS), generator=generator)}
    if CASES[case][0] == "bert":
        inputs["token_type_ids"] = torch.randint(0, 2, (SAMPLES, TOKENS), generator=generator)
    mask = torch.ones(SAMPLES, TOKENS, dtype=torch.long)
    if padded:
        mask[0, 7:] = 0
        mask[1, :3] = 0
        mask[2, 4:6] = 0
        mask[3] = 0
    inputs["attention_mask"] = mask
    return inputs


def run_units(units: list[torch.nn.Module], inputs: dict[str, Tensor]) -> Tensor:
    x = None
    for unit in units:
        x = unit(x, inputs)
    assert x is not None
    return x


def plain_logits(output: Any) -> Tensor:
    """Return the logits of a plain transformers output; question answering gives start and end apart."""
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    return output.logits
