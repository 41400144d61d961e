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
)


def trained(workers: WarmWorkers, case: Case, degree: int) -> list[dict[str, str]]:
    """Train in a group of `degree` workers; return each member's digests by name."""
    (plan,) = plans_for(workers, degree, 1)
    plan["placement"] |= {"degrees": {"dp": 1, "pp": 1, "tp_columns": degree}}
    calls = [{"worker_id": f"w{number}", "plan": plan, "case": case} for number in range(degree)]
    return workers.call([Call("tests.tile_member:train_blocks", arguments) for arguments in calls])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.dtype}-tiles{case.inner_tiles}")
def test_a_group_of_any_size_has_the_bits_of_one_worker(case: Case, warm_workers: WarmWorkers) -> None:
    (alone,) = trained(warm_workers, case, 1)
    for degree in [size for size in (2, 4) if size <= case.inner_tiles]:
        together: dict[str, str] = {}
        for member in trained(warm_workers, case, degree):
            assert all(together.get(name, digest) == digest for name, digest in member.items()), (
                "members differ in what all share"
            )
            together |= member
        assert together.keys() == alone.keys()
        assert [name for name in alone if alone[name] != together[name]] == []
