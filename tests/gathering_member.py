"""One member's part of what replicas that gather weights do beside exact steps: counted steps, and the plasticity probe."""

from typing import Any

import torch

from frostline_contract.plan import Plan
from frostline_trainer.step.probing import read_likenesses
from tests.engine_member import Run, enter, train_step
from tests.exact_cases import Case, build_case


def weighed(case: Case, worker_id: str, plan: dict[str, Any]) -> int:
    """Train two steps, of which the first is counted. Returns the peak of weights, moments, gradients and activations."""
    torch.set_num_threads(1)
    context = build_case(case)
    placement = context.job.placement.model_copy(update={"worker_memory_bytes": 10**9})
    context.job = context.job.model_copy(update={"placement": placement})
    generation = enter(context, case, Plan.model_validate(plan), worker_id, 0, Run(), "")
    assert generation is not None
    for step in (1, 2):
        train_step(generation, case, step, Run())
    generation.close()
    return generation.weighing.tensor_bytes


def probed(case: Case, worker_id: str, plan: dict[str, Any]) -> list[list[float]]:
    """Train a step, and return the likeness of each unit then."""
    torch.set_num_threads(1)
    context = build_case(case)
    freezing = context.job.freeze.model_copy(update={"probe_samples": 5})
    context.job = context.job.model_copy(update={"freeze": freezing})
    generation = enter(context, case, Plan.model_validate(plan), worker_id, 0, Run(), "")
    assert generation is not None
    train_step(generation, case, 1, Run())
    found = read_likenesses(generation)
    generation.close()
    return found
