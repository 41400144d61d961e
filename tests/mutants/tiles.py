"""Bugs of tensor tiles: what a plain loop over the same tiles, or one worker beside a group, must find."""

from tests.mutants.plant import Edit, Mutant

SHARDED = "trainer/frostline_trainer/tensor/"
EXACT = ("tests/integration/test_exactness_tensor_tiles.py", "-m", "not wide")
GROUPS = ("tests/integration/test_tensor_groups.py",)

TILE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "tiles-summed-one-after-the-other",
        "sums over tiles are made from the first to the last instead of by pairs",
        (
            Edit(
                SHARDED + "pairs.py",
                "level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]",
                "level = [level[0] + level[1], *level[2:]]",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "a-fused-bias",
        "a column layer's bias is fused with its product",
        (
            Edit(
                SHARDED + "linear.py",
                "found = [own.add_(one.tile(bias, *_places_of_bias(tiles, place))) for place, own in enumerate(found)]",
                "found = [torch.addmm(one.tile(bias, *_places_of_bias(tiles, place)), rows[0], wide[0] if one.transposed else "
                "wide[0].t()) for place, wide in enumerate(one.tiles(weights[number], tiles.box))]",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "one-mask-for-all-tiles",
        "dropout's seed does not have the tile",
        (Edit(SHARDED + "dropout.py", "seed_of(kind, seed, site, number)", "seed_of(kind, seed, site)"),),
        EXACT,
    ),
    Mutant(
        "masks-by-place-in-the-group",
        "dropout's seed has a tile's place among those held instead of its number in the run",
        (Edit(SHARDED + "dropout.py", "seed, site, number)", "seed, site, place)"),),
        GROUPS,
    ),
    Mutant(
        "a-node-rounded-where-a-rank-ends",
        "what a group adds up is rounded to bfloat16 on the way",
        (Edit(SHARDED + "group.py", "flat = node.reshape(-1)", "flat = node.reshape(-1).bfloat16().to(node.dtype)"),),
        GROUPS,
    ),
    Mutant(
        "hidden-tiles-summed-in-half",
        "partial products of hidden tiles are added in the type of the computation, and not in float32",
        (Edit(SHARDED + "hidden.py", "pairwise([addend(one) for one in own])", "pairwise(own)"),),
        EXACT,
    ),
    Mutant(
        "levels-side-by-side-in-arrival-order",
        "a group with levels puts the parts of the hidden width side by side from its own level on",
        (
            Edit(
                SHARDED + "group.py",
                "[found[member] for member in self._members()], 1)",
                "[found[member - self._group.index] for member in self._members()], 1)",
            ),
        ),
        GROUPS,
    ),
    Mutant(
        "a-bias-of-one-column",
        "a column layer's whole bias gets the gradient of the tiles that a member computes alone",
        (Edit(SHARDED + "linear.py", "parts = tiles.collected(own).split(", "parts = own.expand(tiles.total, -1).split("),),
        GROUPS,
    ),
    Mutant(
        "each-layer-its-own-sum",
        "column layers that read one input hand back a sum over tiles each",
        (
            Edit(
                SHARDED + "install.py",
                "for endings in table.together:",
                "for endings in ():",
            ),
        ),
        EXACT,
    ),
)
