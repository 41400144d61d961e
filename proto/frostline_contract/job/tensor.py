"""The job file's section `training.tensor_tiles`: the matrices that are computed in tiles."""

from pydantic import model_validator

from frostline_contract.job.section import Section, fixed
from frostline_contract.tile_grid import TileGrid

TILES_MAX = 1024


class TensorTiles(Section):
    """The grid that matrices are computed in, fixed for a run and part of its numerics. A product of tiles is a call of
    its own, and sums over tiles are made by pairs in their order, so who computes which tile changes no bit."""

    inner: int = fixed(
        1,
        ge=1,
        le=TILES_MAX,
        doc="Tiles of the inner widths (heads, feed-forward), a power of two that divides the heads. 1: whole matrices; more not "
        "with training.compile.",
    )
    vocabulary: bool = fixed(
        False,
        later=True,
        doc="Whether tiles cut the vocabulary too: the embedding's matrix and, in language modeling, the head's and its logits.",
    )
    hidden: int = fixed(
        1,
        ge=1,
        le=TILES_MAX,
        doc="Tiles of the hidden width in the blocks' matrices, a power of two: the largest placement.tp_depth. Not with vocabulary, "
        "rows, training.compile or model.adapters.",
    )
    rows: int = fixed(
        1,
        ge=1,
        le=TILES_MAX,
        doc="Row tiles, equal parts of a micro-batch's samples in which norms and dropout of blocks are computed: a power of two, at "
        "most inner, that divides micro_batch_size. The largest group of workers that can divide samples (placement.tensor_rows).",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "TensorTiles":
        for name in ("inner", "hidden", "rows"):
            if (number := getattr(self, name)) & (number - 1):
                raise ValueError(f"{name} is {number}; it must be a power of two")
        if self.rows > self.inner:
            raise ValueError(
                f"rows is {self.rows} and inner is {self.inner}; no group of workers is larger than inner: lower rows, or raise inner"
            )
        if self.vocabulary and self.inner == 1:
            raise ValueError("vocabulary is true and inner is 1; one tile cuts nothing: set inner to 2 or more")
        if self.hidden > 1 and (self.vocabulary or self.rows > 1):
            other, back = ("vocabulary is true", "false") if self.vocabulary else (f"rows is {self.rows}", "1")
            raise ValueError(
                f"hidden is {self.hidden} and {other}; with tiles of the hidden width the blocks' matrices alone are cut: set "
                f"{other.split()[0]} to {back}, or hidden to 1"
            )
        return self

    @property
    def grid(self) -> TileGrid:
        """The tiles of each matrix of a block."""
        return TileGrid(self.inner, self.hidden)
