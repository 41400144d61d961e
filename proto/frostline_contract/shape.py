"""Shapes: a mesh with the stages of its pipeline, and the division of leaves and samples over it (docs/design.md 11.2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from frostline_contract.mesh import Mesh
from frostline_contract.tile_grid import WHOLE, TileGrid


@dataclass(frozen=True)
class ParallelShape:
    """A mesh with its pipeline stages: which global rank runs which stage. The ranks are those of `frostline_contract.mesh`.

    Args:
        pp_degree: depth of the pipeline.
        dp_degree: number of its replicas.
        virtual_stages: stages of each pipeline rank.
        tp_columns, tp_depth: degrees of the workers that share one stage of one replica.
        folded: virtual stages lie in a V: every second round of them runs from the last rank to the first.

    Raises:
        ValueError: for a degree below 1, or virtual stages on a pipeline of one rank.
    """

    pp_degree: int
    dp_degree: int
    virtual_stages: int = 1
    tp_columns: int = 1
    tp_depth: int = 1
    folded: bool = False

    def __post_init__(self) -> None:
        if self.virtual_stages < 1:
            raise ValueError(f"virtual_stages is {self.virtual_stages}; it must be at least 1")
        _ = self.mesh  # it checks the degrees
        if self.virtual_stages > 1 and self.pp_degree == 1:
            raise ValueError(f"virtual_stages is {self.virtual_stages} with pp_degree 1; one rank has nothing to interleave with")

    @classmethod
    def of(cls, degrees: Mapping[str, int], virtual_stages: int = 1, folded: bool = False) -> "ParallelShape":
        """The shape with these degrees by axis name. Raises ValueError as `Mesh.of` does."""
        mesh = Mesh.of(degrees)
        tensor = {axis: mesh.degree(axis) for axis in ("tp_columns", "tp_depth")}
        return cls(mesh.degree("pp"), mesh.degree("dp"), virtual_stages, **tensor, folded=folded)

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of all four axes; an axis that is not used has degree 1."""
        return Mesh.of({"dp": self.dp_degree, "pp": self.pp_degree, "tp_columns": self.tp_columns, "tp_depth": self.tp_depth})

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees by axis name, as the wire and the run directory have them."""
        return self.mesh.degrees

    @property
    def world_size(self) -> int:
        """Members of the generation: one for each coordinate of the mesh."""
        return self.mesh.size

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline, `virtual_stages` a pipeline rank."""
        return self.pp_degree * self.virtual_stages

    def pp_rank(self, global_rank: int) -> int:
        """The place in its pipeline of a global rank, from 0."""
        return self.mesh.coordinate_on("pp", global_rank)

    def dp_rank(self, global_rank: int) -> int:
        """The replica of a global rank, from 0."""
        return self.mesh.coordinate_on("dp", global_rank)

    def global_rank(self, dp_rank: int, pp_rank: int, **tensor: int) -> int:
        """The global rank at a place.

        Args:
            dp_rank: the replica, from 0.
            pp_rank: the pipeline rank, from 0.
            tensor: indices on tp_columns and tp_depth, where their degree is above 1.
        """
        return self.mesh.global_rank(dp=dp_rank, pp=pp_rank, **tensor)

    def group_at(self, dp_rank: int, pp_rank: int) -> tuple[int, ...]:
        """The global ranks that compute a pipeline rank's stages in one replica, ascending: one where tensors are not cut."""
        return self.mesh.ranks_at(dp=dp_rank, pp=pp_rank)

    def first_at(self, dp_rank: int, pp_rank: int) -> int:
        """The first global rank of those that compute a pipeline rank's stages in one replica; it acts for all of them."""
        return self.group_at(dp_rank, pp_rank)[0]

    def tp_rank(self, global_rank: int) -> int:
        """The place of a global rank among those that share its stages tile by tile, from 0."""
        return self.mesh.coordinate_on("tp", global_rank)

    @property
    def tp_degree(self) -> int:
        """Workers that share one stage of one replica tile by tile."""
        return self.mesh.degree("tp")

    def replica(self, dp_rank: int) -> tuple[int, ...]:
        """The global ranks of one replica, ascending: its whole pipeline."""
        return self.mesh.ranks_at(dp=dp_rank)

    def owners_of(self, pp_rank: int) -> tuple[int, ...]:
        """The global ranks that compute a pipeline rank's stages, one a replica where tensors are not cut, ascending."""
        return self.mesh.ranks_at(pp=pp_rank)

    def computers_of(self, pp_rank: int, tile: int, grid: TileGrid) -> tuple[int, ...]:
        """The global ranks that compute one of a grid's tiles of a pipeline rank's stages, one a replica, ascending."""
        place = self.place_of_tile(tile, grid)
        return tuple(one for one in self.owners_of(pp_rank) if self.tp_rank(one) == place)

    def place_of_tile(self, tile: int, grid: TileGrid) -> int:
        """The place in its group of the rank that computes a tile of a grid, as in `tile_ranges`."""
        inner, hidden = divmod(tile, grid.hidden)
        return inner * self.tp_columns // grid.inner * self.tp_depth + hidden * self.tp_depth // grid.hidden

    def tiles_of(self, tp_rank: int, grid: TileGrid) -> tuple[int, ...]:
        """The numbers of a grid's tiles that the rank at a place in its group computes, ascending."""
        return grid.numbers(*self.tile_ranges(tp_rank, grid))

    def tile_ranges(self, tp_rank: int, grid: TileGrid) -> tuple[range, range]:
        """The (inner, hidden) tiles that the rank at a place in its group computes: consecutive, as many for each rank."""
        column, level = divmod(tp_rank, self.tp_depth)
        return _share(column, self.tp_columns, grid.inner), _share(level, self.tp_depth, grid.hidden)

    def places_of_owners(self, dp_rank: int) -> range:
        """The places of one replica's ranks within each `owners_of`: one, or as many as share a stage tile by tile."""
        return range(dp_rank * self.tp_degree, (dp_rank + 1) * self.tp_degree)

    def stages_of(self, pp_rank: int) -> list[int]:
        """The stage numbers that a pipeline rank runs, ascending."""
        return stages_of(pp_rank, self.pp_degree, self.virtual_stages, self.folded)

    def pp_rank_of_stage(self, stage: Any) -> Any:
        """The pipeline rank that runs a stage. For an array of stage numbers the result is an array of ranks."""
        return pp_rank_of_stage(stage, self.pp_degree, self.folded)

    def share_of(self, count: int, dp_rank: int) -> range:
        """A replica's consecutive share of `count` items, as even as possible (used for tiles of an evaluated split)."""
        return range(dp_rank * count // self.dp_degree, (dp_rank + 1) * count // self.dp_degree)

    def dp_rank_of_share(self, count: int, number: int) -> int:
        """The replica whose `share_of(count)` contains `number`."""
        return ((number + 1) * self.dp_degree - 1) // count

    def check_fits(self, num_units: int, freeze_point: int, reduction_leaves: int, grid: TileGrid = WHOLE) -> None:
        """Raise ValueError where this shape cannot run a model (docs/protocols.md 1.14).

        Args:
            num_units: number of units of the model.
            freeze_point: units before it are frozen.
            reduction_leaves: training.reduction_leaves.
            grid: tiles of each matrix of a block.
        """
        if problem := tiles_problem(self, grid):
            raise ValueError(problem)
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


def tiles_problem(shape: ParallelShape, grid: TileGrid, columns: str = "tp_columns", depth: str = "tp_depth") -> str:
    """Why a shape's workers cannot share the tiles of blocks; empty where they can.

    Args:
        shape: the shape.
        grid: tiles of each matrix of a block.
        columns, depth: names of the two degrees, for the text.
    """
    cuts = ((columns, shape.tp_columns, "inner", grid.inner), (depth, shape.tp_depth, "hidden", grid.hidden))
    for name, degree, field, tiles in cuts:
        if degree & (degree - 1):
            return f"{name} is {degree}; only powers of two share the tiles of a block: 1, 2, 4 and so on"
        if degree > tiles:
            return (
                f"{name} {degree} exceeds training.tensor_tiles.{field} {tiles}: each worker needs a tile; raise {field} in a "
                f"new run or lower {name}"
            )
    return ""


def _share(place: int, degree: int, tiles: int) -> range:
    """The consecutive tiles of one of `degree` ranks, as many for each."""
    return range(place * tiles // degree, (place + 1) * tiles // degree)


def stages_of(pp_rank: int, pp_degree: int, virtual_stages: int, folded: bool = False) -> list[int]:
    """The stage numbers that a pipeline rank runs, ascending: with virtual stages, every pp_degree-th stage.

    Args:
        virtual_stages: stages of each pipeline rank.
        folded: whether every second round runs from the last rank to the first, so that the two stages of each rank lie in a V.
    """
    last = pp_degree - 1
    return [chunk * pp_degree + (last - pp_rank if folded and chunk % 2 else pp_rank) for chunk in range(virtual_stages)]


def pp_rank_of_stage(stage: Any, pp_degree: int, folded: bool = False) -> Any:
    """The pipeline rank that runs a stage. For an array of stage numbers the result is an array of ranks."""
    place = stage % pp_degree
    if not folded:
        return place
    is_back = stage // pp_degree % 2
    return is_back * (pp_degree - 1 - place) + (1 - is_back) * place


def group_of(global_rank: int, tp_degree: int) -> int:
    """The number of the group whose members share a global rank's stages tile by tile: the ranks of a group follow each other."""
    return global_rank // tp_degree


def deal_leaves(reduction_leaves: int, dp_degree: int) -> list[tuple[int, int]]:
    """Whole, consecutive leaves [low, high) for each dp rank, as even as possible (docs/protocols.md 1.2)."""
    cuts = [round(i * reduction_leaves / dp_degree) for i in range(dp_degree + 1)]
    return list(zip(cuts, cuts[1:], strict=False))


def leaf_micro_batches(leaf: int, num_microbatches: int, reduction_leaves: int) -> range:
    """The micro-batches of one leaf: [leaf * M / L, (leaf + 1) * M / L)."""
    return range(leaf * num_microbatches // reduction_leaves, (leaf + 1) * num_microbatches // reduction_leaves)
