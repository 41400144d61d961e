"""A step's cost on a device beside computing: nothing that the host waits for, and no copy that is not listed here."""

import pytest
import torch

from frostline_contract.phases import Phase
from tests.counting_device import BLOCKING, COPY, DEVICE, READ, CountingDevice
from tests.exact_cases import TASK_OF, Case
from tests.unit.trainer.counted_steps import EVALUATIONS, MICRO_BATCHES, STEPS, TILES, Counted
from tests.wide_rows import wide_rows


def inputs_of(family: str) -> int:
    """Return the number of tensors of a micro-batch."""
    return {"vit": 2, "bert_question_answering": 5, "bert_classification": 4, "bert_regression": 5}.get(family, 3)


ALLOWED = {
    (Phase.LOAD, COPY): (
        "a micro-batch's inputs, from page-locked memory",
        lambda family: STEPS * MICRO_BATCHES * inputs_of(family),
    ),
    (Phase.NORMS, COPY): ("norms and losses, one tensor, read behind the fence", lambda family: STEPS),
    (Phase.EVALUATE, COPY): ("a tile's inputs", lambda family: EVALUATIONS * TILES * inputs_of(family)),
    (Phase.EVALUATE, BLOCKING): ("all scores of a split; the decision that follows needs them", lambda family: EVALUATIONS),
}
"""(phase, kind): why, and how often at most in the whole run. What is not named does not happen."""


@pytest.mark.parametrize("family", wide_rows(TASK_OF, {"llama_tied", "gpt2_tied", "bert_regression"}))
def test_a_step_waits_for_nothing_and_copies_what_is_listed(family: str) -> None:
    bench = Counted(Case(family, freezing=(), steps=STEPS))
    device = bench.count()
    assert bench.state.step == STEPS and device.operations > 1000
    unlisted = {key: count for key, count in device.counts.items() if key not in ALLOWED or count.times > ALLOWED[key][1](family)}
    assert unlisted == {}, device.where
    context = bench.generation.context
    figures = sum(len(list(unit.parameters())) for unit in context.cut.units) + MICRO_BATCHES
    assert device.counts[Phase.NORMS, COPY].bytes <= STEPS * 8 * figures


def test_an_audited_step_reads_what_it_compares() -> None:
    """The digests of one micro-batch, computed twice: outputs, losses and gradients come to the host, and are waited for."""
    quiet, audited = Counted(Case("vit", freezing=(), steps=STEPS)).count(), Counted(Case("vit", freezing=(), steps=STEPS))
    audited.generation.context.job = audited.generation.context.job.model_copy(
        update={"training": audited.generation.context.job.training.model_copy(update={"audit_every_steps": 4})}
    )
    device = audited.count()
    assert set(device.counts) - set(quiet.counts) <= {(Phase.SCHEDULE, BLOCKING), (Phase.AUDIT, BLOCKING), (Phase.AUDIT, COPY)}
    assert device.total(BLOCKING).times > quiet.total(BLOCKING).times


def test_the_counting_device_sees_what_it_is_for() -> None:
    device = CountingDevice()
    with device.running():
        value = torch.ones(4, device=DEVICE)
        assert isinstance(value.sum().item(), float)
        assert isinstance(bool(value[0] > 0), bool)
        value.nonzero()
        assert device.total(READ).times == 3
        value.tolist()
        value.cpu()
        value[[0, 2]]
        torch.ones(4).to(DEVICE)
        torch.ones(4).to(DEVICE, non_blocking=True)
        assert device.total(BLOCKING).times == 5, "memory that is not page-locked blocks, whatever was asked for"
        torch.ones(4, pin_memory=True).to(DEVICE, non_blocking=True)
        torch.empty(4, pin_memory=True)[1:3].copy_(value[1:3], non_blocking=True)
        assert device.total(COPY).times == 2 and device.total(COPY).bytes == 4 * 4 + 2 * 4
        with pytest.raises(RuntimeError, match="not on the expected device"):
            value + torch.ones(4)
