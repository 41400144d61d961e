"""The grid: where a sequence is cut into cells (`training.token_cells`). It follows from job and model alone, not timings."""

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate, pairwise

from transformers import PretrainedConfig

from frostline_contract.job import Job
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.base import Family

Grid = tuple[int, ...]
"""Bounds of the cells in tokens, from 0 to the sequence's length; () if sequences are computed as a whole."""


def grid_of(job: Job, family: Family, config: PretrainedConfig, sizes: DataSizes) -> Grid:
    """The run's grid. Raises ValueError, with field, value and remedy, if the family or the data do not allow the job's cells."""
    wanted, training = job.training.token_cells, job.training
    if not training.has_cells:
        return ()
    if not getattr(family, "causal", False):
        raise ValueError(
            f"training.token_cells is {wanted} and model.family {job.model.family} does not read a sequence in order; set it to "
            "1, or take a causal family (gpt2, llama)"
        )
    tokens = family.hidden_shape(config, sizes)[0]
    if training.cell_lengths:
        if sum(training.cell_lengths) != tokens:
            raise ValueError(
                f"training.token_cells is {list(training.cell_lengths)}, {sum(training.cell_lengths)} tokens, and sequences have "
                f"{tokens}; make the lengths add up, or give a number"
            )
        return (0, *accumulate(training.cell_lengths))
    assert isinstance(wanted, int)
    if wanted > tokens:
        raise ValueError(f"training.token_cells is {wanted} and sequences have {tokens} tokens; lower it to {tokens} or less")
    linear, square = _block_flops(job, family, config, sizes)
    return equal_cells(wanted, tokens, linear, square)


def equal_cells(cells: int, tokens: int, linear: int, square: int) -> Grid:
    """Bounds of `cells` cells of equal FLOPs, none empty.

    Args:
        cells: how many, at most `tokens`.
        tokens: of a sequence.
        linear: FLOPs that grow with the sequence's length.
        square: FLOPs that grow with its square; a causal block needs half of them, since a token attends only to earlier ones.
    """
    whole = _up_to(tokens, tokens, linear, square)
    bounds = [0]
    for cell in range(1, cells):
        fair = bisect_left(range(tokens), whole * cell, key=lambda place: _up_to(place, tokens, linear, square) * cells)
        bounds.append(min(max(fair, bounds[-1] + 1), tokens - (cells - cell)))
    return (*bounds, tokens)


def cells_of(grid: Grid) -> list[tuple[int, int]]:
    """(start, stop) of each cell."""
    return list(pairwise(grid))


def in_words(grid: Grid) -> str:
    """The grid in words, for the numerics hash; "" without cells."""
    return f"tokens in cells of {', '.join(str(stop - start) for start, stop in cells_of(grid))}" if grid else ""


def _up_to(place: int, tokens: int, linear: int, square: int) -> int:
    """FLOPs of the tokens [0, place), times 2 tokens^2, so that the arithmetic is in integers."""
    return 2 * linear * tokens * place + square * place * place


def _block_flops(job: Job, family: Family, config: PretrainedConfig, sizes: DataSizes) -> tuple[int, int]:
    """(linear, square) FLOPs of all blocks, separated by comparing a sequence with one of twice the length."""
    kind = job.task.kind
    once = sum(family.forward_flops(config, sizes, kind)[1:-1])
    twice = sum(family.forward_flops(config, replace(sizes, sequence_length=2 * sizes.sequence_length), kind)[1:-1])
    square = max(0, (twice - 2 * once) // 2)
    return once - square, square
