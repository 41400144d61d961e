"""How the members of a tensor-parallel group have a micro-batch's samples outside of tiled layers (`placement.tensor_rows`).

It changes no bit of any result.

whole  Every member has all samples and computes the same: norms, dropout, residual additions.
split  Each member has an equal part of the samples, whole row tiles of them (`training.tensor_tiles.rows`), which takes so much
       less memory. They are gathered before column layers, and sums of row layers are scattered, with as many bytes as before.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator

WHOLE, SPLIT = "whole", "split"
TensorRows = Annotated[Literal["whole", "split"], BeforeValidator(lambda value: value or WHOLE)]
"""The field of a placement; empty, in messages of versions without the choice, means "whole"."""


def rows_problem(tensor_rows: str, columns: int, depth: int, row_tiles: int, place: str = "placement.") -> str:
    """Why a group cannot divide samples; empty where it can.

    Args:
        tensor_rows: placement.tensor_rows.
        columns, depth: the degrees of a group.
        row_tiles: training.tensor_tiles.rows.
        place: what the text puts before the names of the degrees.
    """
    if tensor_rows != SPLIT or (depth == 1 and columns <= row_tiles):
        return ""
    if depth > 1:
        return (
            f"{place}tp_depth is {depth} and placement.tensor_rows is split; members of a group with levels have all samples: "
            f"set tensor_rows to whole, or {place}tp_depth to 1"
        )
    return (
        f"{place}tp_degree {columns} exceeds training.tensor_tiles.rows {row_tiles} with placement.tensor_rows split: each "
        "worker needs a part of the samples; raise rows in a new run, lower the degree, or set tensor_rows to whole"
    )
