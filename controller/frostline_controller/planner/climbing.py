"""From a good cut and grouping to a better one, by what a step takes on paper: one boundary moves at a time, while that pays.

The search cuts stages by their whole micro-batches, and groups cells for a mean stage. On paper it also counts which stage fills
the pipeline first, and where an uneven slice is waited for.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise, product

Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""(bounds of the stages, cells of each slice; () for all in one)."""


def climb(start: Cut, cells: int, first_cut: int, price: Callable[[Cut], float], may_regroup: bool, most_prices: int) -> Cut:
    """The best cut that steps from `start` lead to, each to the best neighbour.

    Args:
        cells: of a sequence.
        first_cut: the lowest unit that a second stage may begin with.
        price: seconds; infinite for what cannot be.
        may_regroup: whether slices may change.
        most_prices: neighbours that are priced at most.
    """
    best, least, left = start, price(start), most_prices
    while True:
        near = [*_moved_bounds(best, first_cut), *(_regrouped(best, cells) if may_regroup else ())]
        left -= len(near)
        if not near or left < 0:
            return best
        seconds, place = min((price(cut), place) for place, cut in enumerate(near))
        if not seconds < least * (1 - 1e-9):
            return best
        best, least = near[place], seconds


def _moved_bounds(cut: Cut, first_cut: int) -> Iterator[Cut]:
    """A bound is moved by a unit, alone or with all that follow."""
    bounds, slices = cut
    last = len(bounds) - 2
    for place in range(1, last + 1):
        for end, step in product(dict.fromkeys((place, last)), (-1, 1)):
            moved = (*bounds[:place], *(bound + step for bound in bounds[place : end + 1]), *bounds[end + 1 :])
            if moved[1] >= first_cut and all(low < high for low, high in pairwise(moved)):
                yield moved, slices


def _regrouped(cut: Cut, cells: int) -> Iterator[Cut]:
    """An edge between two slices is moved by a cell, added or taken away."""
    bounds, slices = cut
    edges = set(accumulate(slices[:-1]))
    for edge in range(1, cells):
        if edge not in edges:
            yield bounds, _lengths({*edges, edge}, cells)
            continue
        yield bounds, _lengths(edges - {edge}, cells)
        for other in (edge - 1, edge + 1):
            if 0 < other < cells and other not in edges:
                yield bounds, _lengths({*edges - {edge}, other}, cells)


def _lengths(edges: set[int], cells: int) -> tuple[int, ...]:
    bounds = [0, *sorted(edges), cells]
    return tuple(high - low for low, high in pairwise(bounds)) if edges else ()
