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


def rows_problem(tensor_rows: str, tp_degree: int, row_tiles: int, field: str = "placement.tp_degree") -> str:
    """Why a group cannot divide samples; empty where it can.

    Args:
        tensor_rows: placement.tensor_rows.
        tp_degree: workers of a group.
        row_tiles: training.tensor_tiles.rows.
        field: name of the degree, for the text.
    """
    if tensor_rows != SPLIT or tp_degree <= row_tiles:
        return ""
    return (
        f"{field} {tp_degree} exceeds training.tensor_tiles.rows {row_tiles} with placement.tensor_rows split: each worker "
        "needs a part of the samples; raise rows in a new run, lower the degree, or set tensor_rows to whole"
    )
