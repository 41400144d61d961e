"""How the model is trained: the job file's `training`, `evaluation` and `checkpoint` sections."""

from typing import Literal

from pydantic import field_validator, model_validator

from frostline_contract.job.section import AUTO, Section, fixed, live, number_or_auto
from frostline_contract.job.tensor import TensorTiles
from frostline_contract.precision import PrecisionName

LEAVES_MAX = 1024
MicroBatchSize = number_or_auto(ge=1)
ReductionLeaves = number_or_auto(ge=1, le=LEAVES_MAX)


class OptimizerSection(Section):
    name: Literal["adamw", "sgd"] = fixed("adamw", doc="adamw or sgd.")
    learning_rate: float = fixed(1e-3, gt=0.0, doc="Peak learning rate.")
    weight_decay: float = fixed(0.01, ge=0.0, doc="Decoupled (adamw) or L2 (sgd); never on biases and normalisation weights.")
    beta1: float = fixed(0.9, ge=0.0, lt=1.0, doc="adamw.")
    beta2: float = fixed(0.999, ge=0.0, lt=1.0, doc="adamw.")
    epsilon: float = fixed(1e-8, gt=0.0, doc="adamw.")
    momentum: float = fixed(0.9, ge=0.0, lt=1.0, doc="sgd.")


class ScheduleSection(Section):
    name: Literal["constant", "cosine", "linear"] = fixed("cosine", doc="Learning-rate decay after the warm-up.")
    warmup_fraction: float = fixed(0.06, ge=0.0, lt=1.0, doc="Share of the steps in which the rate rises linearly from 0.")
    final_fraction: float = fixed(0.0, ge=0.0, le=1.0, doc="Rate at the end, as a share of the peak.")


class TrainingSection(Section):
    """The numerics of a step. Everything here fixes bits; nothing here says who computes them."""

    epochs: float | None = fixed(None, gt=0.0, le=1e6, doc="Passes over the training data; give this or steps.")
    steps: int | None = fixed(None, ge=1, le=10**9, doc="Global batches; give this or epochs.")
    batch_size: int = fixed(
        64, ge=1, le=2**31, doc="Samples a step: the global batch, or each replica's with batch: per_replica."
    )
    micro_batch_size: MicroBatchSize = fixed(
        8,
        doc="Samples a micro-batch; `frostline plan` advises on it. auto: settled once, before the first step, from what the machine "
        "measures.",
    )
    reduction_leaves: ReductionLeaves = fixed(
        8,
        doc="Leaves of the summation tree, a power of two: the largest dp_degree that the run can reach. auto: settled as "
        "micro_batch_size is, enough for placement.workers.",
    )
    state_ranges: int = fixed(
        1,
        ge=1,
        le=1024,
        later=True,
        doc="Ranges that each unit's state is cut into, or with tensor_tiles each tile's and the rest's: the pieces that are owned, "
        "moved, kept by buddies, checkpointed and digested, which placement.shard can share out over as many replicas. Gradient norms "
        "are summed by pieces, so it is a part of the numerics: it changes the run's digest and, where clipping scales, last bits of weights.",
    )
    batch: Literal["global", "per_replica"] = fixed(
        "global", doc="global: the batch never changes. per_replica: the paper's mode, the global batch grows with dp_degree."
    )
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = fixed("none", doc="With batch: per_replica, by dp_degree.")
    optimizer: OptimizerSection = fixed(OptimizerSection(), doc="Optimizer.")
    schedule: ScheduleSection = fixed(ScheduleSection(), doc="Learning-rate schedule, by accepted steps.")
    clip_norm: float | None = fixed(1.0, gt=0.0, doc="Largest total gradient norm; null never clips.")
    precision: PrecisionName = fixed(
        "auto",
        doc="Type of weights and arithmetic. mixed_bfloat16 computes in bfloat16 over float32 weights, sums of gradients and moments, "
        "and sends boundaries in bfloat16; auto: mixed_bfloat16 on GPUs, float32 on CPUs.",
    )
    activation_checkpointing: bool = fixed(False, doc="Keep only each unit's input and compute it again in the backward.")
    compile: bool = fixed(
        False,
        doc="Run each unit as torch's compiler makes it; part of the numerics, with the compiler's versions. Needs a C++ compiler.",
    )
    loss_chunk_tokens: int = fixed(
        0,
        ge=0,
        le=2**31,
        doc="Tokens of each sample for which the head and the loss are computed at once, for large vocabularies; part of the "
        "numerics; 0: all. Language modeling only.",
    )
    token_cells: int | tuple[int, ...] = fixed(
        1,
        later=True,
        doc="Cells that the tokens of each sequence are computed in, one after another: 1: none; a number: so many of equal FLOPs; a "
        "list: their lengths. Part of the numerics. Language modeling with a causal family only.",
    )
    tensor_tiles: TensorTiles = fixed(TensorTiles(), later=True, doc="Tiles that the blocks' matrices are computed in.")
    numerics: Literal["exact", "fast"] = fixed(
        "exact", doc="exact: placement changes no bit (docs/protocols.md 1). fast: the library's all-reduce, equal to rounding."
    )
    threads: int = fixed(1, ge=1, le=1024, doc="CPU threads a worker; part of the numerics.")
    device: Literal["auto", "cpu", "cuda"] = fixed("auto", doc="auto: cuda where there is one.")
    audit_every_steps: int = live(
        100,
        ge=0,
        doc="Steps between audits, in which each worker computes one micro-batch of a peer again and all compare bits; 0 never. Exact numerics only.",
    )
    refused_steps_max: int = fixed(10, ge=0, doc="Steps refused for non-finite values before the run stops.")

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingSection":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"epochs is {self.epochs} and steps is {self.steps}; give exactly one of them")
        if self.reduction_leaves != AUTO and self.reduction_leaves & (self.reduction_leaves - 1):
            raise ValueError(f"reduction_leaves is {self.reduction_leaves}; it must be a power of two")
        if self.state_tiles > 1 and self.compile:
            field = "inner" if self.tensor_tiles.inner > 1 else "hidden"
            raise ValueError(
                f"tensor_tiles.{field} is {getattr(self.tensor_tiles, field)} and compile is true; tiles are not compiled: set one of "
                "them back"
            )
        if self.tensor_tiles.rows > 1 and (self.micro_batch_size == AUTO or self.micro_batch_size % self.tensor_tiles.rows):
            raise ValueError(
                f"tensor_tiles.rows is {self.tensor_tiles.rows} and micro_batch_size is {self.micro_batch_size}; row tiles are equal "
                f"parts of a micro-batch: set micro_batch_size to a multiple of {self.tensor_tiles.rows}"
            )
        self._check_cells()
        if self.micro_batch_size == AUTO:
            if self.reduction_leaves != AUTO and self.reduction_leaves > self.batch_size:
                raise ValueError(
                    f"reduction_leaves {self.reduction_leaves} exceeds batch_size {self.batch_size}: no micro-batch would be left for "
                    "some leaves; lower reduction_leaves or set it to auto"
                )
            return self
        if self.batch_size < self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is smaller than micro_batch_size {self.micro_batch_size}; lower micro_batch_size"
            )
        if self.reduction_leaves != AUTO and self.num_microbatches < self.reduction_leaves:
            raise ValueError(
                f"{self.num_microbatches} micro-batches (batch_size {self.batch_size} / micro_batch_size {self.micro_batch_size}) are "
                f"fewer than reduction_leaves {self.reduction_leaves}; lower reduction_leaves to a power of two <= {self.num_microbatches}"
            )
        return self

    def _check_cells(self) -> None:
        if not self.token_cells or min(self.cell_lengths, default=self.token_cells) < 1:
            raise ValueError(
                f"token_cells is {self.token_cells}; give a number of cells from 1 on, or a list of lengths from 1 on"
            )
        if self.has_cells and self.loss_chunk_tokens:
            raise ValueError(
                f"token_cells is {self.token_cells} and loss_chunk_tokens is {self.loss_chunk_tokens}; head and loss are computed cell "
                "by cell already: set loss_chunk_tokens to 0"
            )
        if self.has_cells and self.compile:
            raise ValueError(
                f"token_cells is {self.token_cells} and compile is true; cells are not compiled: set one of them back"
            )

    @property
    def cell_lengths(self) -> tuple[int, ...]:
        """The list of token_cells; empty where it is a number."""
        return () if isinstance(self.token_cells, int) else self.token_cells

    @property
    def num_cells(self) -> int:
        """Cells of a sequence; 1: it is computed as a whole."""
        return self.token_cells if isinstance(self.token_cells, int) else len(self.token_cells)

    @property
    def has_cells(self) -> bool:
        """Whether sequences are computed cell by cell."""
        return self.num_cells > 1

    @property
    def state_tiles(self) -> int:
        """Tiles of each unit that have pieces of their own; 1: none has."""
        return self.tensor_tiles.grid.size

    @property
    def automatic(self) -> tuple[str, ...]:
        """Names of the fields that are yet to be settled; nothing of a step can be computed before."""
        return tuple(name for name in ("micro_batch_size", "reduction_leaves") if getattr(self, name) == AUTO)

    @property
    def num_microbatches(self) -> int:
        """M: micro-batches a step; the last are padded with items of weight 0. 0 while micro_batch_size is yet to be settled."""
        return 0 if self.micro_batch_size == AUTO else -(-self.batch_size // self.micro_batch_size)


class EvaluationSection(Section):
    every_intervals: int = fixed(1, ge=0, doc="Evaluate the guard split at the end of every this many intervals, and of each while a "
                              "freeze is watched; 0 never.")  # fmt: skip
    test_at_end: bool = fixed(True, doc="Score the test split when the run ends; nothing that steers the run reads it.")


class CheckpointSection(Section):
    every_steps: int = live(0, ge=0, doc="Steps between checkpoints; 0: only at the end, on drain and where the guard needs one.")
    keep_last: int = live(
        2, ge=1, doc="Complete checkpoints kept (2 at least), beside the best one and those the guard may roll back to."
    )
    saved_precision: Literal["float32", "float64", "bfloat16", "float16"] | None = live(
        None, doc="Type of the weights in the saved model; null: that of the run's weights. Checkpoints keep the run's own."
    )
    uri: str | None = fixed(None, doc="Path of the folder for checkpoints, relative to the run's folder; null: checkpoints.")

    @field_validator("uri")
    @classmethod
    def _is_a_path(cls, uri: str | None) -> str | None:
        scheme, separator, _ = (uri or "").partition("://")
        if separator and scheme.isalnum():
            raise ValueError("is no path; checkpoints go to a folder of a file system: mount it and give its path")
        return uri
