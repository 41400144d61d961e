"""Shape arithmetic, in one place and checked at construction (docs/design.md 11.2)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ParallelShape:
    """A rectangle of workers: `dp_degree` replicas of a pipeline of `pp_degree` ranks, each with `virtual_stages` stages.

    Global ranks run replica by replica: global_rank = dp_rank * pp_degree + pp_rank.
    """

    pp_degree: int
    dp_degree: int
    virtual_stages: int = 1

    def __post_init__(self) -> None:
        for field in ("pp_degree", "dp_degree", "virtual_stages"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.virtual_stages > 1 and self.pp_degree == 1:
            raise ValueError(f"virtual_stages is {self.virtual_stages} with pp_degree 1; one rank has nothing to interleave with")

    @property
    def world_size(self) -> int:
        return self.pp_degree * self.dp_degree

    @property
    def num_stages(self) -> int:
        return self.pp_degree * self.virtual_stages

    def pp_rank(self, global_rank: int) -> int:
        return global_rank % self.pp_degree

    def dp_rank(self, global_rank: int) -> int:
        return global_rank // self.pp_degree

    def global_rank(self, dp_rank: int, pp_rank: int) -> int:
        return dp_rank * self.pp_degree + pp_rank

    def stages_of(self, pp_rank: int) -> list[int]:
        """The stage numbers that a pipeline rank runs: with virtual stages, every pp_degree-th one."""
        return [pp_rank + chunk * self.pp_degree for chunk in range(self.virtual_stages)]

    def check_fits(self, num_units: int, freeze_point: int, reduction_leaves: int) -> None:
        """Raise ValueError where a planned run of this shape is refused (docs/protocols.md 1.14)."""
        trainable = num_units - freeze_point
        if self.num_stages > trainable:
            raise ValueError(
                f"{self.num_stages} stages for {trainable} trainable units (units {freeze_point} to {num_units - 1}): "
                "each stage needs at least one; lower pp_degree or virtual_stages"
            )
        if self.dp_degree > reduction_leaves:
            raise ValueError(
                f"dp_degree {self.dp_degree} exceeds training.reduction_leaves {reduction_leaves}: each replica needs a leaf; "
                "raise reduction_leaves in a new run or lower dp_degree"
            )


def deal_leaves(reduction_leaves: int, dp_degree: int) -> list[tuple[int, int]]:
    """Whole, consecutive leaves [low, high) for each dp rank, as even as possible (docs/protocols.md 1.2)."""
    cuts = [round(i * reduction_leaves / dp_degree) for i in range(dp_degree + 1)]
    return list(zip(cuts, cuts[1:], strict=False))


def leaf_micro_batches(leaf: int, num_microbatches: int, reduction_leaves: int) -> range:
    """The micro-batches of one leaf: [leaf * M / L, (leaf + 1) * M / L)."""
    return range(leaf * num_microbatches // reduction_leaves, (leaf + 1) * num_microbatches // reduction_leaves)
