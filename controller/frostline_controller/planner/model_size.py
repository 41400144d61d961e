"""The size of a job's model, from its job file or a config.json beside its weights: an input of planning, without torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.job import Job
from frostline_controller.local_run.errors import UserMistake

HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
DIGITS_PIXELS = 8
DIGITS_CLASSES = 10


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model.

    Attributes:
        num_blocks: blocks between embedding and head.
        hidden: width of the hidden activations.
        sequence: tokens of a sample.
        outputs: size of the vocabulary, or number of classes.
        head_positions: scored positions of a sample.
        embedding_parameters: weights of unit 0.
        tied: whether the head uses the embedding's matrix.
    """

    num_blocks: int
    hidden: int
    sequence: int
    outputs: int
    head_positions: int
    embedding_parameters: int
    tied: bool

    @property
    def num_units(self) -> int:
        """The number of units: the blocks, the embedding and the head."""
        return self.num_blocks + 2


def model_size(job: Job) -> ModelSize:
    """Return the size of the job's model. Raises UserMistake where neither the job nor a local config.json has it."""
    config = {**_checkpoint_config(job), **job.model.config}
    hidden, blocks = _number(config, HIDDEN), _number(config, LAYERS)
    if hidden is None or blocks is None:
        missing = [names[0] for names, value in ((HIDDEN, hidden), (LAYERS, blocks)) if value is None]
        source = f"hub {job.model.hub!r}, which is not on this machine" if job.model.hub else "no local checkpoint"
        raise UserMistake(
            f"model.config lacks {' and '.join(missing)}, and there is {source}; add them to the job, e.g. "
            "--set model.config.hidden_size=768 --set model.config.num_hidden_layers=12"
        )
    kind = job.task.kind
    if kind == "image_classification":
        pixels = job.data.image_size or config.get("image_size") or (DIGITS_PIXELS if job.data.source == "digits" else 224)
        patch, channels = (
            int(config.get("patch_size", 16)),
            int(config.get("num_channels", 1 if job.data.source == "digits" else 3)),
        )
        sequence = (int(pixels) // patch) ** 2 + 1
        embedding = channels * patch**2 * hidden + (sequence + 2) * hidden
        return ModelSize(blocks, hidden, sequence, _classes(job), 1, embedding, tied=False)
    sequence = job.data.sequence_length
    vocabulary = int(config.get("vocab_size", job.data.vocabulary_size))
    embedding = (vocabulary + int(config.get("max_position_embeddings", config.get("n_positions", sequence)))) * hidden
    if kind == "language_modeling":
        # Llama's head has a matrix of its own unless its config says otherwise; GPT-2's head uses the embedding's.
        tied = bool(config.get("tie_word_embeddings", job.model.family != "llama")) and not job.model.untie_on_freeze
        return ModelSize(blocks, hidden, sequence, vocabulary, sequence, embedding, tied)
    scored, outputs = (sequence, 2) if kind == "question_answering" else (1, _classes(job))
    return ModelSize(blocks, hidden, sequence, outputs, scored, embedding, tied=False)


def _checkpoint_config(job: Job) -> dict[str, Any]:
    if not job.model.path:
        return {}
    file = Path(job.model.path) / "config.json"
    if not file.exists():
        raise UserMistake(f"model.path {job.model.path!r} holds no config.json; give a directory that save_pretrained wrote")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def _number(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(config[name]) for name in names if config.get(name)), None)


def _classes(job: Job) -> int:
    """Return the number of classes of the head; without data a guess suffices, since such a head costs next to nothing."""
    return job.task.num_labels or (DIGITS_CLASSES if job.data.source == "digits" else 2)
