"""The job file's sections `model`, `task` and `data`."""

from typing import Any, Literal

from pydantic import model_validator

from frostline_contract.job.adapters import AdaptersSection
from frostline_contract.job.section import Section, fixed


class ModelSection(Section):
    """Which transformer, and where its weights come from: exactly one of `path`, `hub` and `config`."""

    family: str = fixed(
        doc="Model family: vit, bert, gpt2, llama, or one that an entry point of the group frostline.families adds."
    )
    path: str | None = fixed(None, doc="Local checkpoint directory as save_pretrained writes it; relative to the job file.")
    hub: str | None = fixed(None, doc="Hub id, e.g. bert-base-uncased, where the network reaches the hub.")
    revision: str | None = fixed(None, doc="Hub revision; ignored for a local path.")
    config: dict[str, Any] = fixed(
        {}, doc="Fields of the transformers config: the whole model where neither path nor hub is given, overrides otherwise."
    )
    dropout: float | None = fixed(
        None, ge=0.0, lt=1.0, doc="Sets every dropout probability of the config; null keeps the config's."
    )
    untie_on_freeze: bool = fixed(
        False, doc="Train and save an untied head, so that freezing the embedding leaves the head learning."
    )
    attention: Literal["sdpa", "eager"] = fixed(
        "sdpa", doc="Attention kernel. On CUDA with exact numerics sdpa runs its deterministic variant."
    )
    adapters: AdaptersSection | None = fixed(
        None, later=True, doc="Small matrices that learn in the place of the model's own weights; null: all weights learn."
    )

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSection":
        if self.path and self.hub:
            raise ValueError(f"path is {self.path!r} and hub is {self.hub!r}; give one of them")
        if self.adapters is not None and self.untie_on_freeze:
            raise ValueError(
                "untie_on_freeze is true and adapters is given: a head of its own is no adapter of the model; set it to false"
            )
        return self


class AugmentationSection(Section):
    """How a sample varies between epochs, said explicitly: undeclared randomness refuses the cache."""

    mode: Literal["off", "deterministic", "k-variants", "pointwise-feature", "recompute"] = fixed(
        "off",
        doc="off: none. deterministic: one pinned augmentation a sample. k-variants: k pinned ones, chosen anew each step. "
        "pointwise-feature: noise on the boundary activation, after the cache. recompute: fresh randomness each step, no cache.",
    )
    variants: int = fixed(4, ge=1, le=1024, doc="k of k-variants.")
    shift_pixels: int = fixed(0, ge=0, doc="Images: random shift by up to this many pixels each way.")
    horizontal_flip: bool = fixed(False, doc="Images: random mirror.")
    feature_noise: float = fixed(
        0.0, ge=0.0, doc="pointwise-feature: standard deviation of the noise, relative to the activation's RMS."
    )


class DataSection(Section):
    """Where samples come from and how they are cut into train, guard and test."""

    source: str = fixed(
        doc="digits, stdlib-text, image-folder, csv, jsonl, glue, squad, text, or one that an entry point of frostline.datasets adds."
    )
    path: str | None = fixed(None, doc="File or directory of the training data; relative to the job file.")
    test_path: str | None = fixed(None, doc="File or directory of the test data; null: test_fraction of the training data.")
    columns: dict[str, str] = fixed({}, doc="Column names for csv and jsonl, e.g. {text: sentence, label: label}.")
    glue_task: str | None = fixed(
        None, doc="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli: columns, labels and metric follow."
    )
    test_fraction: float = fixed(0.2, gt=0.0, lt=1.0, doc="Share of samples for the test split where no test_path is given.")
    guard_fraction: float = fixed(
        0.1, gt=0.0, lt=0.5, doc="Share of the training samples held out for the guard (never trained on)."
    )
    guard_samples_max: int = fixed(1024, ge=1, doc="At most this many samples in the guard split.")
    max_samples: int | None = fixed(None, ge=1, doc="Use only this many samples (chosen by seed) of the training data.")
    sequence_length: int = fixed(
        128, ge=4, le=2**20, doc="Text: tokens a sample; longer ones are cut (or windowed, for squad), shorter padded."
    )
    doc_stride: int = fixed(64, ge=1, doc="squad: overlap of the windows of a long context, in tokens.")
    image_size: int | None = fixed(
        None, ge=4, le=2**14, doc="Images are resized to this many pixels square; null keeps the model config's."
    )
    decoding_processes: int | None = fixed(
        None,
        ge=0,
        le=64,
        doc="Processes of each worker that decode image files; null: on a GPU its share of the machine's processors less one, 8 at "
        "most, and none on a CPU, where they would take from the model.",
    )
    tokenizer: str | None = fixed(
        None, doc="Tokenizer directory or hub id; null: the model checkpoint's, or one trained on the data."
    )
    vocabulary_size: int = fixed(2048, ge=64, le=2**24, doc="Size of a tokenizer trained on the data.")
    augmentation: AugmentationSection = fixed(AugmentationSection(), doc="How samples vary between epochs.")


class TaskSection(Section):
    """What is learnt and how it is scored."""

    kind: Literal["image_classification", "text_classification", "question_answering", "language_modeling"] = fixed(
        doc="The task; it fixes the loss, the head and the metric."
    )
    metric: str | None = fixed(
        None, doc="accuracy, f1, matthews, pearson, spearman, exact_match, perplexity; null: the task's own."
    )
    num_labels: int | None = fixed(None, ge=1, doc="Number of classes (1: regression); null: read from the data.")
