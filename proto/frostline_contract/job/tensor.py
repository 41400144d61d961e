"""The job file's section `training.tensor_tiles`: the matrices that are computed in tiles."""

from pydantic import model_validator

from frostline_contract.job.section import Section, fixed

TILES_MAX = 1024


class TensorTiles(Section):
    """The grid that matrices are computed in, fixed for a run and part of its numerics. A product of tiles is a call of
    its own, and sums over tiles are made by pairs in their order, so who computes which tile changes no bit."""

    inner: int = fixed(
        1,
        ge=1,
        le=TILES_MAX,
        doc="Tiles of the inner widths (heads, feed-forward), a power of two that divides the heads. 1: whole matrices.",
    )
    vocabulary: bool = fixed(
        False,
        later=True,
        doc="Whether tiles cut the vocabulary too: the embedding's matrix and, in language modeling, the head's and its logits.",
    )
    hidden: int = fixed(1, ge=1, le=TILES_MAX, doc="Tiles of the hidden width: only 1 (ADR 21 says why).")
    rows: int = fixed(
        1,
        ge=1,
        le=TILES_MAX,
        doc="Row tiles, equal parts of a micro-batch's samples in which norms and dropout of blocks are computed: a power of two, at "
        "most inner, that divides micro_batch_size. The largest group of workers that can divide samples (placement.tensor_rows).",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "TensorTiles":
        if self.hidden > 1:
            raise ValueError(f"hidden is {self.hidden}; the hidden width is not cut (docs/adr/0021-depth.md): set it to 1")
        for name in ("inner", "rows"):
            if (number := getattr(self, name)) & (number - 1):
                raise ValueError(f"{name} is {number}; it must be a power of two")
        if self.rows > self.inner:
            raise ValueError(
                f"rows is {self.rows} and inner is {self.inner}; no group of workers is larger than inner: lower rows, or raise inner"
            )
        if self.vocabulary and self.inner == 1:
            raise ValueError("vocabulary is true and inner is 1; one tile cuts nothing: set inner to 2 or more")
        return self
