"""docs/comparison/published.md is what the simulator says today, and what it says of the published figures holds."""

from pathlib import Path

from tests.published.page import PAGE, text
from tests.published.rows import (
    ablation_rows,
    alpha_rows_over_published,
    micro_batch_rows,
    threshold_rows,
    throughput_rows,
    time_rows,
)

COMMITTED = Path(__file__).parents[2] / "docs" / "comparison" / PAGE


def test_the_page_is_what_the_simulator_says() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == text(), "write it again: python -m tests.published"


def test_what_the_page_claims_to_reproduce_is_within_its_goal() -> None:
    met = {row.name for row in (*time_rows(), *ablation_rows(), *micro_batch_rows(), *alpha_rows_over_published()) if row.met}
    for name in (
        "ImageNet, ViT-B/16: speed-up",
        "CIFAR-100, ViT-B/16: PipeTransformer",
        "CIFAR-100, ViT-B/16: speed-up",
        "freeze, pipeline, cache",
        "freeze, pipeline, replicas",
        "all",
        *(row.name for row in alpha_rows_over_published()),
        *(row.name for row in micro_batch_rows()),
    ):
        assert name in met
    assert all(found == reported for _, reported, found in threshold_rows())
    assert all(abs(row.difference) < 0.25 for row in throughput_rows())
