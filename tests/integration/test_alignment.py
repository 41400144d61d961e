"""Every tensor that a unit reads begins at a 64-byte boundary, whatever its source: files, numpy, slices, messages, the cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from frostline_contract.job import Job, parse_job
from frostline_contract.plan import SAMPLE, Decision
from frostline_rpc.auth import WORKER
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.model import save_model
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.process.setup import build_context
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.evaluation import evaluate
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import export_unit, import_unit
from tests.cache_stack import CacheStack, admitted_fraction, cache_stack, wait_until
from tests.engine_member import Run, train_step
from tests.exact_cases import LEAVES, Case
from tests.hand_made_plans import Layout, lone_plan

CASE = Case("vit", freezing=((2, 2),), steps=4)
TOKENS, WIDTH, MICRO_BATCH = 5, 20, 3
"""A boundary activation of 5 x 20 float32 is 400 bytes, a micro-batch 1,200: neither is a multiple of 64."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[CacheStack]:
    with cache_stack(tmp_path) as started:
        yield started


def job(path: str = "") -> Job:
    return parse_job({
        "model": {"family": "vit", **({"path": path} if path else {"config": {
            "hidden_size": WIDTH, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 36, "patch_size": 4,
        }})},
        "task": {"kind": "image_classification"},
        "data": {"source": "digits", "max_samples": 60, "augmentation": {"mode": "off", "shift_pixels": 0}},
        "training": {"steps": CASE.steps, "batch_size": 24, "micro_batch_size": MICRO_BATCH, "reduction_leaves": LEAVES,
                     "device": "cpu"},
        "cache": {"use": "always", "shadow_audit_fraction": 1.0},
    })  # fmt: skip


class Walk:
    """An observer of every call of a unit: checks its operands, weights, gradients and the gradients of its outputs."""

    def __init__(self, context: RunContext) -> None:
        self.calls, self.gradients, self.faults = 0, 0, list[str]()
        self._context = context
        for number, unit in enumerate(context.cut.units):
            unit.register_forward_pre_hook(lambda unit, given, number=number: self._look(number, unit, *given))
            unit.register_forward_hook(lambda unit, given, output, number=number: self._follow(number, output))

    def _look(self, number: int, unit: torch.nn.Module, hidden: torch.Tensor | None, inputs: dict[str, torch.Tensor]) -> None:
        self.calls += 1
        self._note(number, "input", *([] if hidden is None else [hidden]))
        for name, tensor in inputs.items():
            self._note(number, name, tensor)
        for name, parameter in unit.named_parameters():
            self._note(number, name, parameter, *([] if parameter.grad is None else [parameter.grad]))
            moments = self._context.moments.get((number, name), {})
            self._note(number, f"moment of {name}", *(m for m in moments.values() if isinstance(m, torch.Tensor)))
        for name, buffer in unit.named_buffers():
            self._note(number, name, buffer)

    def _follow(self, number: int, output: torch.Tensor) -> None:
        """Check the gradient of a unit's output as soon as it is computed.

        PyTorch's hook for a module's backward is meant for modules whose inputs have gradients, and warns of others: the
        first unit that learns has none.
        """
        if output.requires_grad:
            output.register_hook(lambda gradient: self._arrive(number, gradient))

    def _arrive(self, number: int, gradient: torch.Tensor) -> None:
        self.gradients += 1
        self._note(number, "gradient", gradient)

    def _note(self, number: int, what: str, *tensors: torch.Tensor) -> None:
        self.faults += [f"unit {number}: {what} at {t.data_ptr() % 64}" for t in tensors if not is_aligned(t)]


def train(context: RunContext, stack: CacheStack, walk: Walk, **plan_fields: Any) -> int:
    """Train four steps, frozen and cached from the second on; evaluate the guard split at the end. Return the cache's hits."""
    caching = CacheUse(context, stack.address, stack.tokens.by_role[WORKER], f"w-{id(walk)}", stack.run_dir)
    placement = Layout(1, 1).placement(0).model_copy(update={"use_cache": True})
    generation = Generation(context, lone_plan(placement).model_copy(update=plan_fields), 0, lone_groups(), 0, lambda name: None)
    state, hits = RunState(), 0
    try:
        for step in range(1, CASE.steps + 1):
            if step == 2:
                state.decisions.append(Decision(number=1, interval=1, effective_step=2, freeze_point=2, kind="freeze"))
                state.freeze_point = 2
                state.codec_chain.append(2)
                generation.freeze_to(2, (2,), caching.round_trip)
                caching.connect(generation, state)
                assert caching.cache is not None
                wait_until(lambda: admitted_fraction(caching.cache) == 1.0)
            train_step(generation, CASE, step, Run())
            if caching.cache is not None:
                assert caching.cache.flush(20.0)
                hits += caching.cache.take_counts().hits
        evaluate(generation, context.data.guard, 0)
    finally:
        caching.close()
    return hits


@pytest.mark.parametrize("plan_fields", [{}, {"prefix_tile": SAMPLE}], ids=["micro_batches", "one_sample"])
def test_from_a_checkpoint_by_a_message_through_the_cache(plan_fields: dict, stack: CacheStack, tmp_path: Path) -> None:
    drawn = build_context(job())
    save_model(drawn.cut, tmp_path / "model")
    context = build_context(job(str(tmp_path / "model")))
    for number, unit in enumerate(context.cut.units):
        state = export_unit(number, drawn.cut.units[number], {})
        import_unit(number, unit, context.moments, unpack(pack(state)))
    assert context.hidden_shape == (TOKENS, WIDTH)
    if context.place_dependence and not plan_fields:
        pytest.skip(f"no run caches whole micro-batches on this machine: {context.place_dependence}")
    walk = Walk(context)
    assert train(context, stack, walk, **plan_fields) > 0
    assert walk.calls > 100 and walk.gradients > 100
    assert not walk.faults, walk.faults[:5]
