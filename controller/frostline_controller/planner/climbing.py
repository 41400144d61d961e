"""Hill climbing from a good cut and grouping to a better one, by the seconds of a simulated step.

One boundary moves at a time, as long as that makes the step faster. The search before it cuts stages by their whole
micro-batches, and groups cells for a mean stage. A simulated step counts the order too in which stages fill the pipeline, and the
waits for uneven slices.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise, product

Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""(bounds of the stages, cells of each slice); () stands for one slice with all cells."""


def climb(start: Cut, cells: int, first_cut: int, price: Callable[[Cut], float], may_regroup: bool, most_prices: int) -> Cut:
    """Return the cut where repeated moves to the best neighbour end, from `start` on.

    Args:
        start: the first cut.
        cells: of a sequence.
        first_cut: the lowest unit that a second stage may begin with.
        price: returns the seconds of a cut; infinite for an impossible cut.
        may_regroup: whether slices may change.
        most_prices: most neighbours to be priced.
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
    """Yield the cuts with one bound moved by a unit, alone or with all bounds after it."""
    bounds, slices = cut
    last = len(bounds) - 2
    for place in range(1, last + 1):
        for end, step in product(dict.fromkeys((place, last)), (-1, 1)):
            moved = (*bounds[:place], *(bound + step for bound in bounds[place : end + 1]), *bounds[end + 1 :])
            if moved[1] >= first_cut and all(low < high for low, high in pairwise(moved)):
                yield moved, slices


def _regrouped(cut: Cut, cells: int) -> Iterator[Cut]:
    """Yield the cuts with one edge between two slices moved by a cell, added or removed."""
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
