"""The two models of most benchmarks: the digits job's ViT, and a 6-layer BERT over generated data."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from frostline_contract.job import Job, load_job, parse_job
from frostline_contract.plan import Placement
from frostline_contract.shape import deal_leaves
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.data.split import IGNORED, TaskData
from frostline_trainer.families.registry import family_named
from frostline_trainer.model import build_cut_model
from frostline_trainer.process.setup import build_context
from frostline_trainer.step.context import RunContext, has_dropout
from frostline_trainer.tasks import task_for
from tests.even_bounds import even_bounds

SUBJECTS = ("digits", "bert")
NUM_UNITS, LEAVES = 8, 8
"""Of both models: embedding, six blocks, head; eight micro-batches, a leaf each."""
DIGITS_JOB = Path(__file__).parents[2] / "examples" / "image_classification" / "digits.yaml"
BERT_TOKENS, BERT_VOCABULARY, BERT_LABELS, BERT_ROWS = 64, 8192, 2, 128


class MadeSplit:
    """A split with its rows in memory; index -1 gives a row that counts in no loss."""

    def __init__(self, name: str, rows: dict[str, Tensor]) -> None:
        self.name, self.digest, self._rows = name, f"made-{name}", rows
        self.own_tokens = rows["attention_mask"].sum(dim=1).numpy()

    def __len__(self) -> int:
        return len(self._rows["labels"])

    def collate(self, indices: Sequence[int], variants: Sequence[int]) -> dict[str, Tensor]:
        chosen = torch.tensor(indices)
        batch = {key: tensor[chosen.clamp(min=0)] for key, tensor in self._rows.items()}
        batch["labels"] = batch["labels"].masked_fill(chosen < 0, IGNORED)
        return batch

    def valid_counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        return (sum(index >= 0 for index in indices),)

    def references(self) -> Any:
        return self._rows["labels"].numpy()


def new_context(subject: str, *overrides: str) -> RunContext:
    """Return a fresh model and its data, as a worker builds them. overrides: in the form of `--set`."""
    if subject == "digits":
        return build_context(load_job(DIGITS_JOB, ["training.device=cpu", *overrides]))
    return bert_context(bert_job())


def with_training(context: RunContext, **changes: Any) -> RunContext:
    """Return the same model, data and moments under other fields of `training`, so that both contexts can take turns on one
    state."""
    training = context.job.training.model_copy(update=changes)
    return replace(context, job=context.job.model_copy(update={"training": training}))


def unsplit_model(context: RunContext) -> PreTrainedModel:
    """Return another copy of the context's model, uncut, with the same first weights, in train mode."""
    return build_cut_model(context.job, context.data.sizes).model


def placement_of(pp_degree: int, dp_degree: int, num_units: int = NUM_UNITS, num_leaves: int = LEAVES) -> Placement:
    """Return a placement of either subject: an even cut under 1F1B, on the workers w0, w1, ..."""
    dealt = deal_leaves(num_leaves, dp_degree)
    return Placement(
        pp_degree=pp_degree,
        dp_degree=dp_degree,
        stage_bounds=even_bounds(num_units, 0, pp_degree),
        leaf_bounds=(0, *(high for _, high in dealt)),
        workers=tuple(f"w{number}" for number in range(pp_degree * dp_degree)),
    )


def bert_job(**model: Any) -> Job:
    """Hidden size 384, six layers; batches of 32 in micro-batches of 4. model: further fields of the section."""
    config = {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
        "vocab_size": BERT_VOCABULARY,
        "max_position_embeddings": BERT_TOKENS,
    }
    return parse_job(
        {
            "name": "bench-bert",
            "model": {"family": "bert", "config": config, "dropout": 0.0, **model},
            "task": {"kind": "text_classification"},
            # The rows come from memory; the job must name a source all the same.
            "data": {"source": "stdlib-text", "sequence_length": BERT_TOKENS},
            "training": {
                "steps": 10_000,
                "batch_size": 32,
                "micro_batch_size": 4,
                "reduction_leaves": LEAVES,
                "optimizer": {"learning_rate": 1e-4},
                "clip_norm": 1.0,
                "device": "cpu",
            },
        }
    )


@cache
def _bert_rows(seed: int) -> dict[str, Tensor]:
    """Return random token ids and labels, with half of the texts padded."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(BERT_TOKENS // 2, 2 * BERT_TOKENS, (BERT_ROWS,), generator=generator)
    mask = (torch.arange(BERT_TOKENS) < lengths[:, None]).long()
    ids = torch.randint(2, BERT_VOCABULARY, (BERT_ROWS, BERT_TOKENS), generator=generator)
    labels = torch.randint(BERT_LABELS, (BERT_ROWS,), generator=generator)
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids), "labels": labels}


def bert_context(job: Job) -> RunContext:
    """Return the context of the job's BERT, with any adapters of the job, over generated data."""
    torch.set_num_threads(1)
    sizes = DataSizes(num_labels=BERT_LABELS, vocabulary_size=BERT_VOCABULARY, sequence_length=BERT_TOKENS)
    splits = {name: MadeSplit(name, _bert_rows(seed)) for seed, name in enumerate(("train", "guard", "test"))}
    data = TaskData(**splits, sizes=sizes, processor=None, digest="made", augmentation_note="none")
    family = family_named("bert")
    cut = build_cut_model(job, sizes)
    config = cut.model.config
    return RunContext(job, data, task_for(job, sizes), cut, torch.device("cpu"), family.hidden_shape(config, sizes),
                      has_dropout(config), family.forward_flops(config, sizes, job.task.kind),
                      probe_digest="made", prefix_digest="made")  # fmt: skip
