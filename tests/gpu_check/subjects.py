"""Models of realistic sizes over made-up rows: small test models do not exercise a GPU's kernels in the same way."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frostline_contract.job import parse_job
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import TaskData
from frostline_trainer.families.registry import family_named
from frostline_trainer.model import build_cut_model
from frostline_trainer.process.setup import settle_torch, unit_flops
from frostline_trainer.process.tensor_tiles import install_tiles
from frostline_trainer.step.context import RunContext, has_dropout
from frostline_trainer.step.grid import grid_of
from frostline_trainer.tasks import task_for
from tests.exact_cases import RowSplit

LEAVES = 8
LABELS = 10


@dataclass(frozen=True)
class Size:
    """width: of a token. tokens: of a text, or the side of an image in pixels."""

    width: int
    layers: int
    heads: int
    tokens: int
    vocabulary: int
    batch: int
    micro_batch: int
    rows: int


SIZES: dict[tuple[str, str], Size] = {
    ("gpt2", "cuda"): Size(1024, 12, 16, 512, 50304, 64, 8, 256),
    ("llama", "cuda"): Size(1024, 12, 16, 512, 32000, 64, 8, 256),
    ("vit", "cuda"): Size(768, 12, 12, 224, 0, 128, 16, 256),
    ("gpt2", "cpu"): Size(32, 6, 4, 16, 97, 16, 2, 32),
    ("llama", "cpu"): Size(32, 6, 4, 16, 97, 16, 2, 32),
    ("vit", "cpu"): Size(32, 6, 4, 16, 0, 16, 2, 32),
}
"""By family and device; the rehearsal's sizes only show that the code runs."""
FAMILIES = ("gpt2", "llama", "vit")


def words(family: str, device: str) -> str:
    """Return the size in words, for the report."""
    size = SIZES[family, device]
    return (
        f"width {size.width}, {size.layers} layers, {size.tokens} {'pixels' if family == 'vit' else 'tokens'}, batch {size.batch}"
    )


def build(family: str, device: str, precision: str, **training: Any) -> RunContext:
    """Return a fresh model with its rows on a device, as a worker builds them; the first weights are the same each time.

    training: further fields of that section of the job.
    """
    size = SIZES[family, device]
    on = torch.device("cpu") if device == "cpu" else torch.device(device, 0)
    settle_torch(on)
    torch.set_num_threads(1)
    job = parse_job(_job(family, size, precision, training))
    images = family == "vit"
    sizes = DataSizes(
        num_labels=LABELS if images else 0,
        vocabulary_size=size.vocabulary,
        sequence_length=0 if images else size.tokens,
        image_size=size.tokens if images else 0,
        channels=3 if images else 0,
    )
    splits = {name: RowSplit(name, _rows(size, images, seed)) for seed, name in enumerate(("train", "guard", "test"))}
    data = TaskData(**splits, sizes=sizes, processor=None, digest="made", augmentation_note="none")
    for split in splits.values():
        split.padding_comes_last = not images
    made = family_named(family)
    cut = build_cut_model(job, sizes)
    for unit in cut.units:
        unit.to(on)
    config = cut.model.config
    context = RunContext(job, data, task_for(job, sizes), cut, on, made.hidden_shape(config, sizes), has_dropout(config),
                         unit_flops(made, cut, sizes, job), grid_of(job, made, config, sizes), "made")  # fmt: skip
    install_tiles(context)
    return context


def _job(family: str, size: Size, precision: str, training: dict[str, Any]) -> dict[str, Any]:
    wide = {"hidden_size": size.width, "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
            "intermediate_size": 4 * size.width}  # fmt: skip
    configs: dict[str, dict[str, Any]] = {
        "gpt2": {"n_embd": size.width, "n_layer": size.layers, "n_head": size.heads, "n_positions": size.tokens,
                 "vocab_size": size.vocabulary, "tie_word_embeddings": False},
        "llama": {**wide, "num_key_value_heads": size.heads // 2, "vocab_size": size.vocabulary,
                  "max_position_embeddings": size.tokens, "tie_word_embeddings": False},
        "vit": {**wide, "image_size": size.tokens, "patch_size": max(4, size.tokens // 14), "num_channels": 3},
    }  # fmt: skip
    images = family == "vit"
    return {
        "name": f"check-{family}",
        "model": {"family": family, "config": configs[family], "dropout": 0.0},
        "task": {"kind": "image_classification" if images else "language_modeling"},
        # The rows come from memory; the job only has to name a source.
        "data": {"source": "digits"} if images else {"source": "stdlib-text", "sequence_length": size.tokens},
        "training": {
            "steps": 10_000,
            "batch_size": size.batch,
            "micro_batch_size": size.micro_batch,
            "reduction_leaves": LEAVES,
            "optimizer": {"learning_rate": 1e-4},
            "clip_norm": 1.0,
            "precision": precision,
            "audit_every_steps": 0,
            **training,
        },
    }


def _rows(size: Size, images: bool, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if images:
        pixels = torch.rand(size.rows, 3, size.tokens, size.tokens, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(LABELS, (size.rows,), generator=generator)}
    ids = torch.randint(2, size.vocabulary, (size.rows, size.tokens), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.roll(-1, dims=1)}
