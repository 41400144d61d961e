"""The elements of a unit's tensors in each range of its state, by the rule of docs/protocols.md."""


def ranges_of(sizes: list[int], state_ranges: int) -> list[list[tuple[int, int]]]:
    """Return for each range of a unit's state the elements [low, high) of every tensor in it.

    Tensors lie one behind the other, each from a multiple of 64 elements on, and ranges end at such multiples.
    """
    blocks = [-(-size // 64) for size in sizes]
    edges = [number * sum(blocks) // state_ranges for number in range(state_ranges + 1)]
    found = []
    for first, end in zip(edges, edges[1:], strict=False):
        inside, before = [], 0
        for size, count in zip(sizes, blocks, strict=True):
            inside.append(tuple(min(max(edge - before, 0) * 64, size) for edge in (first, end)))
            before += count
        found.append(inside)
    return found
