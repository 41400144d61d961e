"""The run's context in one worker, shared by all generations: the job, its data, the model's units and the derived numerics."""

from dataclasses import dataclass, field
from typing import Any

import torch

from frostline_contract.job import Job
from frostline_contract.pieces import Pieces
from frostline_contract.shape import deal_leaves
from frostline_trainer.data.load import TaskData
from frostline_trainer.data.order import BatchOrder
from frostline_trainer.model import CutModel
from frostline_trainer.process.plug import Plug
from frostline_trainer.replication.inventory import Holdings
from frostline_trainer.step import transfer
from frostline_trainer.step.alignment import aligned
from frostline_trainer.step.compiling import compiler_versions
from frostline_trainer.step.device_clock import DeviceClock, clock_of
from frostline_trainer.step.device_trail import Trail
from frostline_trainer.step.grid import Grid, in_words
from frostline_trainer.step.optimizer import Moments
from frostline_trainer.step.precision import Precision, precision_of
from frostline_trainer.step.side_copies import SideCopies
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.rows import Rows
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.transport.traffic import Traffic


@dataclass
class RunContext:
    """Constants of the run in this process, and the mutable state that outlives generations (moments, inventory, counters).

    Attributes:
        hidden_shape: (tokens, width) of one sample's boundary activation.
        dropout: Whether any unit draws random numbers.
        unit_flops: Forward FLOPs of one sample through each unit.
        grid: Bounds of the token cells, () for none.
        probe_digest: Digest of this machine's numerics.
        prefix_digest: Digest of what frozen units compute on this machine; empty if nothing is cached.
        weights_digest: Digest of the run's initial weights.
        place_dependence: Which unit gives a sample other bits at another place of its tile, in words; empty if none does.
        padding_dependence: Which unit gives other bits for other padding behind a text, in words; empty if none does.
        sample_tile_cost: Time of the prefix sample by sample, as a multiple of its time by micro-batch; 0: not measured.
        moments: Optimizer state of all units that this worker holds.
        holdings: Inventory: which of their pieces are intact, and at which state.
        plug: Hook by which planned faults may change a step's computation.
        device_clock: Measures the device's time.
        trail: How far the device has come in its queue of work.
        copies: Copies pieces into host memory, on a stream of their own.
        traffic: What this worker has sent and received.
    """

    job: Job
    data: TaskData
    task: Any
    cut: CutModel
    device: torch.device
    hidden_shape: tuple[int, int]
    dropout: bool
    unit_flops: tuple[int, ...]
    grid: Grid = ()
    probe_digest: str = ""
    probe_detail: str = ""
    prefix_digest: str = ""
    weights_digest: str = ""
    place_dependence: str = ""
    padding_dependence: str = ""
    sample_tile_cost: float = 0.0
    moments: Moments = field(default_factory=dict)
    holdings: Holdings = field(default_factory=Holdings)
    plug: Plug = field(default_factory=Plug)
    traffic: Traffic = field(default_factory=Traffic)
    device_clock: DeviceClock = field(init=False)
    trail: Trail = field(init=False)
    copies: SideCopies = field(init=False)

    def __post_init__(self) -> None:
        self.device_clock = clock_of(self.device)
        self.trail = Trail(lambda: self.device_clock)
        self.copies = SideCopies(lambda: self.device, lambda: self.device_clock)
        self.holdings.before_writing = self.copies.join

    @property
    def num_units(self) -> int:
        """Units of the model: its blocks, the embedding and the head."""
        return len(self.cut.units)

    @property
    def pieces(self) -> Pieces:
        """The table of the run's pieces."""
        training = self.job.training
        return Pieces.cut(self.num_units, training.state_ranges, training.state_tiles, training.tensor_tiles.hidden)

    @property
    def tiles(self) -> Tiles:
        """All tensor tiles of the run."""
        grid = self.job.training.tensor_tiles
        return Tiles(grid.inner, rows=Rows(grid.rows), hidden=Hidden(grid.hidden))

    @property
    def precision(self) -> Precision:
        """The types of weights and boundaries on this worker's device."""
        return precision_of(self.job.training.precision, self.device)

    @property
    def dtype(self) -> torch.dtype:
        """The type of boundary activations, whether they are sent, cached or passed on within a stage."""
        return self.precision.boundary

    @property
    def numerics(self) -> str:
        """What the numerics hash chains beside freeze points, in words; "" for a run with default numerics."""
        training = self.job.training
        chunk = f"loss in chunks of {training.loss_chunk_tokens} tokens" if training.loss_chunk_tokens else ""
        compiled = compiler_versions(self.device.type) if training.compile else ""
        grid, ranges, are_cut = training.tensor_tiles, training.state_ranges, training.state_tiles > 1
        cut = "inner widths and vocabulary" if grid.vocabulary else "inner widths"
        widths = {cut: grid.inner, "samples": grid.rows, "hidden width": grid.hidden}
        first, *rest = [f"{name} in {count}" for name, count in widths.items() if count > 1] or [""]
        tiles = ", ".join([f"{first} tiles", *rest]) if first else ""
        norms = f"norms of {ranges} ranges a {'tile' if are_cut else 'unit'}" if ranges > 1 else ""
        return ", ".join(filter(None, (self.precision.numerics, chunk, compiled, in_words(self.grid), tiles, norms)))

    @property
    def micro_batch_size(self) -> int:
        """Samples of a micro-batch; the last one of a step is padded to it."""
        return self.job.training.micro_batch_size

    @property
    def exact(self) -> bool:
        """Whether gradients are summed in the tree's fixed order, so that bits do not depend on the placement."""
        return self.job.training.numerics == "exact"

    def order(self, dp_degree: int, origin: tuple[int, int, int] = (0, 0, 0)) -> BatchOrder:
        """The data order. With batch: per_replica the global batch is dp_degree times the job's."""
        return BatchOrder(self.job.seed, len(self.data.train), self.batch_size(dp_degree), origin)

    def batch_size(self, dp_degree: int) -> int:
        """Samples of a step with `dp_degree` replicas; the number grows with them if the job says `batch: per_replica`."""
        widened = dp_degree if self.job.training.batch == "per_replica" else 1
        return self.job.training.batch_size * widened

    def num_microbatches(self, dp_degree: int) -> int:
        """Micro-batches of a whole step with `dp_degree` replicas, the last one perhaps padded."""
        return -(-self.batch_size(dp_degree) // self.micro_batch_size)

    def leaf_bounds(self, dp_degree: int) -> tuple[int, ...]:
        """dp_degree + 1 leaf indices; replica r computes the leaves [bounds[r], bounds[r + 1])."""
        dealt = deal_leaves(self.job.training.reduction_leaves, dp_degree)
        return (0, *(high for _, high in dealt))

    @property
    def boundary_bytes_per_sample(self) -> int:
        """Bytes of one sample's boundary activation."""
        tokens, width = self.hidden_shape
        return tokens * width * self.dtype.itemsize

    def hidden_like(self) -> torch.Tensor:
        """An empty boundary activation of one micro-batch."""
        return torch.empty(self.micro_batch_size, *self.hidden_shape, dtype=self.dtype, device=self.device)

    def for_device(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Collated inputs cast to the weights' type (not integers and labels), in page-locked host memory for a GPU.

        On a GPU the attention mask of a causal language model is left out if all padding stands behind the text: no counted
        token attends to padding then, and the mask would rule out the fastest attention kernels. On a CPU the mask stays: the
        kernels are as fast with it, and runs keep the bits of earlier versions.
        """
        causal = self.job.task.kind == "language_modeling" and getattr(self.data.train, "padding_comes_last", False)
        unmasked = causal and self.device.type != "cpu"
        weights = self.precision.weights
        cast = {
            name: tensor.to(weights if tensor.is_floating_point() and "label" not in name else tensor.dtype)
            for name, tensor in inputs.items()
            if not (unmasked and name == "attention_mask")
        }
        return cast if self.device.type == "cpu" else {name: transfer.page_locked(tensor) for name, tensor in cast.items()}

    def on_device(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Collated inputs in the compute type, on the device, aligned."""
        return {name: aligned(transfer.to_device(tensor, self.device)) for name, tensor in self.for_device(inputs).items()}


def has_dropout(config: Any) -> bool:
    """Whether any dropout probability of a transformers config is above 0."""
    return any("drop" in key and isinstance(value, (int, float)) and value > 0 for key, value in config.to_dict().items())
