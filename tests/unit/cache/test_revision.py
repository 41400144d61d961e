"""The prefix revision changes with everything that a boundary activation depends on, and with nothing else."""

import torch
from transformers import GPT2Config, ViTConfig

from frostline_contract.job import parse_job
from frostline_trainer.cache.revision import prefix_revision
from frostline_trainer.prefix.cache_use import function_of, preprocessing_of


def states() -> list[dict[str, torch.Tensor]]:
    return [
        {"weight": torch.arange(6.0).view(2, 3), "bias": torch.zeros(2)},
        {"weight": torch.ones(2, 2, dtype=torch.float64), "running": torch.tensor(3)},
    ]


def revision(unit_states: list[dict[str, torch.Tensor]] | None = None, **changed: object) -> str:
    arguments = {"tile_shape": (8, 16), "codec_chain": [(2, "none")], "preprocessing": "resize 8", "prefix_digest": "abc"}
    return prefix_revision(states() if unit_states is None else unit_states, **(arguments | changed))


def test_the_same_prefix_has_the_same_revision_whatever_the_order_of_names_or_layout_in_memory() -> None:
    reordered = [dict(reversed(state.items())) for state in states()]
    reordered[0]["weight"] = reordered[0]["weight"].t().contiguous().t()
    assert revision(reordered) == revision()
    assert len(revision()) == 64


def test_every_part_counts() -> None:
    def edited(change) -> str:  # type: ignore[no-untyped-def]
        edit = states()
        change(edit)
        return revision(edit)

    variants = [
        edited(lambda s: s[0]["weight"].__setitem__((1, 2), 5.0000005)),
        edited(lambda s: s[0].__setitem__("weight", s[0]["weight"].view(3, 2))),
        edited(lambda s: s[0].__setitem__("weight", s[0]["weight"].view(torch.int32))),
        edited(lambda s: s[1].__setitem__("running", torch.tensor(4))),
        edited(lambda s: s[1].__setitem__("renamed", s[1].pop("running"))),
        edited(lambda s: s.reverse()),
        edited(lambda s: s.pop()),
        edited(lambda s: s.append({})),
        edited(lambda s: s[0]["bias"].neg_()),
        revision(tile_shape=(4, 16)),
        revision(codec_chain=[(2, "int8")]),
        revision(codec_chain=[(3, "none")]),
        revision(codec_chain=[(2, "none"), (3, "none")]),
        revision(preprocessing="resize 9"),
        revision(prefix_digest="abd"),
    ]
    assert len({revision(), *variants}) == len(variants) + 1


def test_a_seed_counts_where_it_draws_how_samples_look() -> None:
    values = {"model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
              "training": {"steps": 8}}  # fmt: skip
    config = ViTConfig()
    plain = [preprocessing_of(parse_job({**values, "seed": seed}), "float32", config) for seed in (1, 2)]
    assert plain[0] == plain[1]
    varied = {"source": "digits", "augmentation": {"mode": "k-variants", "variants": 2, "shift_pixels": 1}}
    drawn = [preprocessing_of(parse_job({**values, "data": varied, "seed": seed}), "float32", config) for seed in (1, 2)]
    assert drawn[0] != drawn[1]
    assert preprocessing_of(parse_job(values), "mixed_bfloat16", config) != plain[0], "and so does the precision"


def test_how_blocks_compute_counts_though_weights_and_the_first_block_do_not_show_it() -> None:
    """With the flag the first block of a GPT-2 divides attention by one, and each later one by more."""
    plain, scaled = GPT2Config(), GPT2Config(scale_attn_by_inverse_layer_idx=True)
    assert function_of(plain) != function_of(scaled)
    same = GPT2Config(attn_pdrop=0.3, num_labels=7, name_or_path="elsewhere", dtype="float16")
    assert function_of(same) == function_of(plain), "what frozen units do not compute by is shared"
