"""The runs of the exactness tests: a small model of each family over rows held in memory, for the engine and for the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from frostline_contract.job import Job, parse_job
from frostline_contract.job.adapters import AdaptersSection, blocks_with_adapters
from frostline_contract.seeds import seed_of
from frostline_trainer.data.order import BatchOrder
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import TaskData
from frostline_trainer.families.adapters import add_adapters
from frostline_trainer.families.registry import family_named
from frostline_trainer.model import seeded_cpu
from frostline_trainer.process.setup import draws_random_numbers, settle_torch, unit_flops
from frostline_trainer.process.tensor_tiles import install_tiles
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.grid import grid_of
from frostline_trainer.tasks import task_for
from tests.oracle.anatomy import anatomy_of
from tests.oracle.models import CLASSES, TOKENS, VOCABULARY, small_batch, small_model
from tests.oracle.plain_loop import IGNORED, Recipe, Trace, run_plain_loop
from tests.oracle.plain_loop import seed_of as oracle_seed

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "mixed_bfloat16": torch.float32}
"""The types of weights."""
BLOCKS = 6
NUM_UNITS = BLOCKS + 2
LEAVES = 4
BATCH, MICRO_BATCH, TRAIN_ROWS = 10, 2, 26
"""Five micro-batches on four leaves; each epoch's last batch has six samples, so that two micro-batches are all padding."""
NUM_MICROBATCHES = -(-BATCH // MICRO_BATCH)

TASK_OF = {
    "vit": ("vit", "image_classification"),
    "bert_classification": ("bert", "text_classification"),
    "bert_regression": ("bert", "text_classification"),
    "bert_question_answering": ("bert", "question_answering"),
    "gpt2_tied": ("gpt2", "language_modeling"),
    "gpt2_untied": ("gpt2", "language_modeling"),
    "llama": ("llama", "language_modeling"),
    "llama_tied": ("llama", "language_modeling"),
}

ADAPTERS = {"rank": 4, "alpha": 8.0}
NEVER: tuple[tuple[int, int], ...] = ()
FREEZING = ((2, 1), (3, 3), (5, 5))
"""(first step, freeze point): nothing, one unit, several, all but the last two blocks and the head."""
THAWING = ((1, 5), (2, 1), (4, 0), (6, 3))


@dataclass(frozen=True)
class Case:
    """The numerics of one run; every field changes bits, none belongs to the placement."""

    family: str
    dtype: str = "float32"
    freezing: tuple[tuple[int, int], ...] = FREEZING
    optimizer: str = "adamw"
    clip_norm: float | None = 1.0
    dropout: float = 0.1
    steps: int = 6
    learning_rate: float = 3e-3
    untie_on_freeze: bool = False
    activation_checkpointing: bool = False
    numerics: str = "exact"
    batch: str = "global"
    codec: str = "none"
    audit_fraction: float = 0.0
    feature_noise: float = 0.0
    audit_every: int = 1
    state_ranges: int = 1
    device: str = "cpu"
    loss_chunk_tokens: int = 0
    cells: int | tuple[int, ...] = 1
    tokens: int = TOKENS
    adapters: str | tuple[int, ...] = ""
    adapter_dropout: float = 0.0
    inner_tiles: int = 1
    vocabulary_tiles: bool = False
    row_tiles: int = 1
    hidden_tiles: int = 1

    @property
    def cut(self) -> tuple[int, int, int]:
        """How state is cut, as of `Pieces.cut`: ranges, tiles, and hidden tiles of them at each inner one."""
        return self.state_ranges, self.inner_tiles * self.hidden_tiles, self.hidden_tiles

    def freeze_point_at(self, step: int) -> int:
        """Return the freeze point in force in `step`."""
        return ([0] + [point for first, point in self.freezing if first <= step])[-1]

    def __str__(self) -> str:
        history = "0" + "".join(f" {point}@{first}" for first, point in self.freezing)
        return f"{self.family} {self.dtype} {self.optimizer} clip {self.clip_norm} dropout {self.dropout} freeze {history}"


class RowSplit:
    """A split over rows in memory; index -1 gives a row of weight 0."""

    def __init__(self, name: str, rows: dict[str, Tensor]) -> None:
        self.name, self.digest, self._rows = name, f"rows-{name}", rows
        if "attention_mask" in rows:
            self.own_tokens = rows["attention_mask"].sum(dim=1).numpy()
        self._terms = [key for key in ("labels", "start_positions", "end_positions") if key in rows]

    def __len__(self) -> int:
        return len(self._rows[self._terms[0]])

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        assert len(indices) == len(variants)
        chosen = torch.tensor(indices)
        batch = {key: tensor[chosen.clamp(min=0)] for key, tensor in self._rows.items()}
        padding = chosen < 0
        if "label_weights" in batch:
            batch["label_weights"] = batch["label_weights"].masked_fill(padding, 0.0)
            return batch
        for key in self._terms:
            batch[key][padding] = IGNORED
        return batch

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        chosen = torch.tensor([index for index in indices if index >= 0], dtype=torch.long)
        if "label_weights" in self._rows:
            return (int(self._rows["label_weights"][chosen].sum()),)
        return tuple(int((self._rows[key][chosen] != IGNORED).sum()) for key in self._terms)

    def references(self) -> Any:
        return self._rows[self._terms[0]].numpy()


@cache
def rows_of(family: str, count: int, seed: int, tokens: int = TOKENS) -> dict[str, Tensor]:
    """Return `count` rows of `tokens` tokens; every third text has no padding, so that some micro-batches have none at all."""
    rows = small_batch(family, count, seed, tokens=tokens)
    full = small_batch(family, count, seed + 1000, tokens=tokens)
    if "attention_mask" in rows:
        third = torch.arange(count) % 3 == 0
        rows["attention_mask"][third] = 1
        rows["input_ids"][third] = full["input_ids"][third].clamp(min=2)
    return rows


def job_of(case: Case) -> Job:
    """Return the job of `case`; the model and the rows come from memory."""
    family, kind = TASK_OF[case.family]
    return parse_job(
        {
            "model": {
                "family": family,
                "dropout": case.dropout,
                "untie_on_freeze": case.untie_on_freeze,
                "adapters": _adapters(case),
            },
            "task": {"kind": kind},
            "data": {"source": "digits", "augmentation": _augmentation(case)},
            "training": {
                "steps": case.steps,
                "batch_size": BATCH,
                "micro_batch_size": MICRO_BATCH,
                "reduction_leaves": LEAVES,
                "optimizer": {"name": case.optimizer, "learning_rate": case.learning_rate},
                "schedule": {"warmup_fraction": 0.2},
                "clip_norm": case.clip_norm,
                "precision": case.dtype,
                "loss_chunk_tokens": case.loss_chunk_tokens,
                "token_cells": case.cells,
                "tensor_tiles": {
                    "inner": case.inner_tiles,
                    "vocabulary": case.vocabulary_tiles,
                    "rows": case.row_tiles,
                    "hidden": case.hidden_tiles,
                },
                "activation_checkpointing": case.activation_checkpointing,
                "numerics": case.numerics,
                "batch": case.batch,
                "audit_every_steps": case.audit_every,
                "state_ranges": case.state_ranges,
                "device": case.device,
            },
            "cache": {"codec": case.codec, "shadow_audit_fraction": case.audit_fraction},
        }
    )


def _adapters(case: Case) -> dict[str, Any] | None:
    return {**ADAPTERS, "dropout": case.adapter_dropout, "blocks": case.adapters} if case.adapters else None


def _augmentation(case: Case) -> dict[str, Any]:
    return {"mode": "pointwise-feature", "feature_noise": case.feature_noise} if case.feature_noise else {}


def build_case(case: Case) -> RunContext:
    """Return the context that a worker builds from its job: the oracle's own model, cut into units, over the case's rows."""
    job, device = job_of(case), torch.device("cpu") if case.device == "cpu" else torch.device(case.device, 0)
    family = family_named(job.model.family)
    settle_torch(device)
    sizes = DataSizes(
        num_labels=1 if case.family == "bert_regression" else CLASSES,
        vocabulary_size=0 if case.family == "vit" else VOCABULARY,
        sequence_length=0 if case.family == "vit" else case.tokens,
        image_size=8 if case.family == "vit" else 0,
        channels=1 if case.family == "vit" else 0,
        regression=case.family == "bert_regression",
    )
    splits = {name: RowSplit(name, rows_of(case.family, count, seed, case.tokens))
              for name, count, seed in (("train", TRAIN_ROWS, 7), ("guard", 9, 8), ("test", 5, 9))}  # fmt: skip
    data = TaskData(**splits, sizes=sizes, processor=None, digest="rows", augmentation_note="none")
    cut = family.cut(small_model(case.family, DTYPES[case.dtype], case.dropout, BLOCKS, tokens=case.tokens), job.task.kind)
    if case.untie_on_freeze:
        cut.tied = None
    if case.adapters:
        with seeded_cpu(seed_of("adapters", 0)):
            add_adapters(cut, job.model)
    for unit in cut.units:
        unit.to(device)
    config = cut.model.config
    context = RunContext(job, data, task_for(job, sizes), cut, device, family.hidden_shape(config, sizes),
                         draws_random_numbers(job, cut), unit_flops(family, cut, sizes, job),
                         grid_of(job, family, config, sizes))  # fmt: skip
    install_tiles(context)
    return context


@cache
def oracle_trace(case: Case) -> Trace:
    """Return the trace of the plain loop over the unsplit model, on the batches of the data order, by deterministic kernels."""
    settle_torch(torch.device(case.device))
    order = BatchOrder(0, TRAIN_ROWS, BATCH)
    split, dtype = RowSplit("train", rows_of(case.family, TRAIN_ROWS, 7, case.tokens)), DTYPES[case.dtype]
    batches = []
    for step in range(1, case.steps + 1):
        rows = split.collate(order.indices(step), [0] * BATCH)
        batches.append({key: _in_type(key, value, dtype).to(case.device) for key, value in rows.items()})
    recipe = Recipe(
        micro_batch_size=MICRO_BATCH,
        reduction_leaves=LEAVES,
        optimizer=case.optimizer,
        learning_rate=case.learning_rate,
        warmup_fraction=0.2,
        clip_norm=case.clip_norm,
        freeze_points=dict(case.freezing),
        untie_on_freeze=case.untie_on_freeze,
        mixed_bfloat16=case.dtype == "mixed_bfloat16",
        cells=(0, *accumulate(case.cells)) if isinstance(case.cells, tuple) else (),
        inner_tiles=case.inner_tiles,
        vocabulary_tiles=case.vocabulary_tiles,
        row_tiles=case.row_tiles,
        hidden_tiles=case.hidden_tiles,
        state_ranges=case.state_ranges,
    )
    model = small_model(case.family, dtype, case.dropout, BLOCKS, tokens=case.tokens).to(case.device)
    if case.adapters:
        adapt(model, case)
    return run_plain_loop(model, batches, recipe)


def adapt(model: PreTrainedModel, case: Case) -> None:
    """Add adapters as plain peft does, with random values by docs/protocols.md 1.4; the head learns with them."""
    from peft import LoraConfig, get_peft_model

    units = anatomy_of(model, untie=False).units
    blocks = blocks_with_adapters(AdaptersSection(blocks=case.adapters), BLOCKS)
    inside = {id(module) for block in blocks for module in units[1 + block][0].modules()}
    layers = [name for name, one in model.named_modules() if id(one) in inside and isinstance(one, nn.Linear | Conv1D)]
    torch.manual_seed(oracle_seed("adapters", 0))
    sizes = {"r": ADAPTERS["rank"], "lora_alpha": ADAPTERS["alpha"]}
    config = LoraConfig(**sizes, lora_dropout=case.adapter_dropout, target_modules=layers)
    get_peft_model(model, config, autocast_adapter_dtype=False)  # they have the type of all weights
    embedding = {id(parameter) for module in units[0] for parameter in module.parameters()}
    for module in units[-1]:
        for parameter in module.parameters():
            parameter.requires_grad_(id(parameter) not in embedding)


def _in_type(key: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast model inputs to the compute type; labels and weights are not cast, since they are no part of the model."""
    return value.to(dtype) if value.is_floating_point() and "label" not in key else value


def without_checkpointing(case: Case) -> Case:
    """Return the case without activation checkpointing, which the oracle does not have and which changes no bit."""
    return replace(case, activation_checkpointing=False)
