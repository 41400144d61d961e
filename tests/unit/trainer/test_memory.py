"""Bytes are counted as tensors come and go, and the profile never holds more than one unit on the device."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from frostline_trainer import update_cost
from frostline_trainer.families.registry import family_named
from frostline_trainer.memory import LiveBytes, metered
from frostline_trainer.profile import profile_units
from frostline_trainer.step import norms, transfer
from frostline_trainer.step.context import RunContext
from tests.exact_cases import Case, build_case

CPU, DEVICE = torch.device("cpu"), torch.device("meta")
"""meta has sizes and no values: enough to count what lies where."""
WIDTH, BLOCKS, VOCABULARY = 256, 8, 512


def test_what_is_made_inside_is_counted_until_it_is_freed() -> None:
    before = torch.ones(1000)
    with LiveBytes(CPU) as meter:
        first = torch.zeros(1000)
        before.add_(first)
        assert (meter.now, meter.peak) == (4000, 4000), "what was there before is not counted"
        second = first + before
        del first
        assert (meter.now, meter.peak) == (4000, 8000)
        view = second.view(10, 100)
        del second
        assert meter.now == 4000, "a view keeps its memory"
        del view
        assert (meter.now, meter.peak) == (0, 8000)


def test_what_a_graph_keeps_is_counted() -> None:
    weight = torch.ones(100, 100, requires_grad=True)
    with metered(CPU) as meter:
        root = (weight * 2.0).exp().sum()
        kept = meter.now
        root.backward()
    assert kept == 40_000 + root.nbytes, "exp keeps its result"
    assert meter.peak >= kept + weight.grad.nbytes


def large_model(context: RunContext, on: torch.device) -> RunContext:
    """Return a context of a large model: the blocks alone are 25 MB, and a block with its gradient, moments apart, is 6.3."""
    family = family_named("gpt2")
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=WIDTH, n_layer=BLOCKS, n_head=4, tie_word_embeddings=False,
                        bos_token_id=1, eos_token_id=1)  # fmt: skip
    cut = family.cut(GPT2LMHeadModel(config), "language_modeling")
    return replace(context, cut=cut, device=on, hidden_shape=(16, WIDTH), dropout=False)


def to_or_without_values(self: nn.Module, device: torch.device) -> nn.Module:
    """Act as `Module.to`, but give empty memory on the CPU: `to` cannot copy from the meta device, which has no values."""
    return self.to_empty(device=device) if device == CPU else _to(self, device)


_to = nn.Module.to


def test_the_profile_holds_one_unit_on_the_device_and_puts_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    context = large_model(build_case(Case("gpt2_tied")), DEVICE)
    whole = sum(parameter.nbytes for unit in context.cut.units for parameter in unit.parameters())
    monkeypatch.setattr(nn.Module, "to", to_or_without_values)
    monkeypatch.setattr(transfer, "page_locked", lambda tensor: tensor)  # page-locking needs a GPU
    monkeypatch.setattr(norms, "to_host", lambda tensor: torch.zeros(tensor.shape))  # which the meta device has no values for
    monkeypatch.setattr(update_cost, "COPIED_BYTES_MAX", 4 * WIDTH**2)  # far less than a unit's weights, as on a device
    with LiveBytes(DEVICE) as resident:
        profile = profile_units(context)
    assert all(parameter.device == CPU for unit in context.cut.units for parameter in unit.parameters())
    kept = [unit.activation_bytes + unit.split_bytes for unit in profile.units]  # a backward is measured in two parts too
    most = max(2 * unit.parameter_bytes + held + unit.working_bytes for unit, held in zip(profile.units, kept, strict=True))
    slack = 4 * profile.units[0].output_bytes  # the samples, and outputs on their way to the next unit
    assert resident.peak <= most + slack < whole / 2
    assert {unit.parameter_bytes for unit in profile.units[1:-1]} == {12 * WIDTH**2 * 4 + 13 * WIDTH * 4}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_is_kept_and_what_is_needed_meanwhile(checkpointing: bool) -> None:
    case = Case("gpt2_tied", activation_checkpointing=checkpointing)
    exact, mixed = (profile_units(build_case(replace(case, dtype=dtype))) for dtype in ("float32", "mixed_bfloat16"))
    block, head = exact.units[1], exact.units[-1]
    assert mixed.units[1].output_bytes == block.output_bytes / 2 == 2 * 16 * 32 * 2
    assert mixed.units[1].parameter_bytes == block.parameter_bytes
    assert (block.activation_bytes < 2 * block.output_bytes) == checkpointing
    assert (block.working_bytes > block.activation_bytes) == checkpointing, "what is not kept is computed again"
    assert mixed.units[1].activation_bytes < block.activation_bytes or checkpointing
    assert head.working_bytes > 0


def test_chunks_of_the_loss_keep_and_take_less() -> None:
    """Logits of 16 tokens over 512 words are 64 KiB a micro-batch; in chunks of two tokens an eighth of that at a time."""
    context = large_model(build_case(Case("gpt2_tied")), CPU)
    training = context.job.training
    in_chunks = context.job.model_copy(update={"training": training.model_copy(update={"loss_chunk_tokens": 2})})
    whole, chunked = profile_units(context).units[-1], profile_units(replace(context, job=in_chunks)).units[-1]
    logits = 2 * 16 * VOCABULARY * 4
    assert whole.activation_bytes > logits > chunked.activation_bytes
