"""Groups of workers that share the tiles of blocks: a group of any size has the bits of one worker."""

import pytest

from tests.exact_cases import Case
from tests.integration.test_groups import plans_for
from tests.warm_workers import Call, WarmWorkers

CASES = (
    Case("vit", inner_tiles=4),
    Case("bert_classification", "bfloat16", inner_tiles=4, activation_checkpointing=True),
    Case("gpt2_untied", "float64", inner_tiles=4),
    Case("llama", "mixed_bfloat16", inner_tiles=2),
    Case("gpt2_untied", "mixed_bfloat16", inner_tiles=2, hidden_tiles=2),
    Case("bert_classification", "float64", inner_tiles=2, hidden_tiles=4),
    Case("llama", inner_tiles=1, hidden_tiles=2),
)
SHAPES = ((1, 2), (2, 1), (4, 1), (2, 2), (1, 4))
"""(columns, levels) of the groups."""


def trained(workers: WarmWorkers, case: Case, columns: int = 1, levels: int = 1) -> list[dict[str, str]]:
    """Train in a group of columns x levels workers; return each member's digests by name."""
    (plan,) = plans_for(workers, columns * levels, 1)
    plan["placement"] |= {"degrees": {"dp": 1, "pp": 1, "tp_columns": columns, "tp_depth": levels}}
    calls = [{"worker_id": f"w{number}", "plan": plan, "case": case} for number in range(columns * levels)]
    return workers.call([Call("tests.tile_member:train_blocks", arguments) for arguments in calls])


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.family}-{case.dtype}-tiles{case.inner_tiles}x{case.hidden_tiles}"
)
def test_a_group_of_any_size_has_the_bits_of_one_worker(case: Case, warm_workers: WarmWorkers) -> None:
    (alone,) = trained(warm_workers, case)
    for columns, levels in [shape for shape in SHAPES if shape[0] <= case.inner_tiles and shape[1] <= case.hidden_tiles]:
        together: dict[str, str] = {}
        for member in trained(warm_workers, case, columns, levels):
            assert all(together.get(name, digest) == digest for name, digest in member.items()), (
                "members differ in what all share"
            )
            together |= member
        assert together.keys() == alone.keys()
        assert [name for name in alone if alone[name] != together[name]] == []
