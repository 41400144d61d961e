"""bfloat16 over float32 weights learns as float32 does, and keeps updates that bfloat16 weights would lose."""

import math
from functools import cache

import pytest
import torch

from frostline_contract.job import parse_job
from frostline_contract.plan import StateTag
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.process.setup import build_context
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.evaluation import evaluate
from frostline_trainer.step.generation import Generation
from tests.engine_member import Run, train_step
from tests.exact_cases import NEVER, Case
from tests.hand_made_plans import Layout, lone_plan

STEPS = 200
MODEL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "patch_size": 2}


def trained(precision: str, steps: int, learning_rate: float) -> tuple[RunContext, Generation, Run]:
    """Train digits on one worker, without freezing."""
    training = {
        "steps": steps, "batch_size": 64, "micro_batch_size": 16, "reduction_leaves": 4, "precision": precision, "device": "cpu",
        "optimizer": {"learning_rate": learning_rate}, "schedule": {"name": "constant", "warmup_fraction": 0.0},
    }  # fmt: skip
    job = parse_job({
        "model": {"family": "vit", "config": MODEL, "dropout": 0.0}, "task": {"kind": "image_classification"},
        "data": {"source": "digits"}, "training": training, "elastic": {"cache": False},
    })  # fmt: skip
    context, run = build_context(job), Run()
    plan = lone_plan(Layout(1, 1).placement(0).model_copy(update={"stage_bounds": (0, context.num_units), "leaf_bounds": (0, 4)}))
    context.holdings.settle(range(context.num_units), StateTag(lineage=0, step=0, generation=plan.generation))
    generation = Generation(context, plan, 0, lone_groups(), 0, lambda name: None)
    case = Case("vit", precision, freezing=NEVER, steps=steps, learning_rate=learning_rate)
    for step in range(1, steps + 1):
        train_step(generation, case, step, run)
    return context, generation, run


@cache
def learnt(precision: str) -> tuple[float, float, int]:
    """Return (test accuracy, test loss, samples of the test split)."""
    context, generation, _ = trained(precision, STEPS, 2e-3)
    _, metrics = evaluate(generation, context.data.test, 0)
    return metrics["accuracy"], metrics["loss"], len(context.data.test)


@pytest.mark.wide
def test_accuracy_beside_float32() -> None:
    """The bound is the noise of the measurement: three standard deviations of the difference of two accuracies near that of
    float32, each counted over the test split. A precision that loses sums or updates falls far below.
    """
    exact, _, samples = learnt("float32")
    mixed, _, _ = learnt("mixed_bfloat16")
    bound = 3 * math.sqrt(2 * exact * (1 - exact) / samples)
    assert exact > 0.8, "it has learnt: ten classes by chance are 0.1"
    assert abs(mixed - exact) <= bound, f"float32 {exact:.3f}, mixed_bfloat16 {mixed:.3f}, bound {bound:.3f}"


@pytest.mark.parametrize(("precision", "moves"), [("float32", True), ("mixed_bfloat16", True), ("bfloat16", False)])
def test_small_updates_reach_the_master_weights(precision: str, moves: bool) -> None:
    """One AdamW step moves a weight by about the learning rate. At 1e-6 that is lost beside a normalisation's weight of 1 in
    bfloat16, whose neighbours are 2^-8 away, and kept in float32, whose neighbours are 2^-23 = 1.2e-7 away.
    """
    context, _, _ = trained(precision, 3, 1e-6)
    scales = [
        p for unit in context.cut.units for p in unit.parameters() if p.ndim == 1 and bool((p.detach() - 1).abs().max() < 0.5)
    ]
    assert scales and {p.dtype for p in scales} == {torch.bfloat16 if precision == "bfloat16" else torch.float32}
    changed = [bool((p.detach() != 1.0).any()) for p in scales]
    assert all(changed) if moves else not any(changed)


def test_moments_and_gradients_are_kept_in_float32() -> None:
    context, generation, _ = trained("mixed_bfloat16", 1, 1e-3)
    assert {value.dtype for state in context.moments.values() for value in state.values()} == {torch.float32}
    assert {p.dtype for buffers in generation.buffers.values() for p in buffers.parameters} == {torch.float32}
    assert generation.buffers[0].spare_buffer().dtype == torch.float32, "leaves add up in float32"
    assert context.hidden_like().dtype == torch.bfloat16
