"""A device is kept busy, part by part: no needless masks, copies or waits, and everything ahead of its time."""

import math
import threading
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import deterministic

from frostline_contract.operations import Kind
from frostline_contract.plan import Plan
from frostline_contract.schedules import BUILT_IN
from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.process.setup import settle_torch
from frostline_trainer.replication.buddies import UnitReplication, replicas_stay_on_device
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.feed import Ahead
from frostline_trainer.step.optimizer import Moments, UnitOptimizer, fused_on_device
from frostline_trainer.step.program_check import checked_programs
from frostline_trainer.step.programs import Carried, StepShape
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.unit_state import HOST, place_unit
from frostline_trainer.transport.collectives import Group
from tests.counting_device import BLOCKING, COPY, DEVICE, READ, CountingDevice
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout
from tests.unit.trainer.counted_steps import STEPS, Counted, to_the_device
from tests.unit.trainer.test_engine_keeping import plan_of
from tests.unit.trainer.test_engine_loop import Bench, decision


class Attention(TorchFunctionMode):
    """calls: (mask, is_causal) of each call of the attention kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[object, bool]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.calls.append((kwargs.get("attn_mask"), bool(kwargs.get("is_causal"))))
        return func(*args, **kwargs)


@pytest.mark.parametrize("family", ["gpt2_tied", "llama"])
def test_a_causal_model_gives_its_kernel_no_mask_where_padding_comes_last(family: str) -> None:
    bench = Counted(Case(family, freezing=(), steps=STEPS))
    bench.generation.context.data.train.padding_comes_last = True
    with Attention() as attention:
        bench.count()
    assert attention.calls and set(attention.calls) == {(None, True)}


def test_other_models_and_other_padding_keep_their_mask() -> None:
    for family in ("gpt2_tied", "bert_classification"):
        bench = Counted(Case(family, freezing=(), steps=STEPS))
        bench.generation.context.data.train.padding_comes_last = family != "gpt2_tied"
        with Attention() as attention:
            bench.count()
        assert attention.calls and not any(mask is None for mask, _ in attention.calls), family


def test_on_a_cpu_the_mask_stays() -> None:
    context = build_case(Case("gpt2_tied"))
    context.data.train.padding_comes_last = True
    inputs = context.data.train.collate([0, 1], [0, 0])
    assert "attention_mask" in context.on_device(inputs)


def test_a_stage_has_its_rotary_tables_where_it_is() -> None:
    """Units of other stages leave the device, and the tables stay."""
    bench = Counted(Case("llama", freezing=(), dropout=0.0))
    context, own = bench.generation.context, (1, 2)
    with bench.device.running():
        for unit, module in enumerate(context.cut.units):
            place_unit([unit], module, {}, DEVICE if unit in own else HOST)
    bench.device.counts.clear()
    stage = Stage([context.cut.units[unit] for unit in own], 1, 0, bench.generation._settings)
    with bench.device.running():
        hidden = context.hidden_like().requires_grad_()
        stage.run_trainable(hidden, {}, 1, 0).sum().backward()
    assert bench.device.counts == {}


class AllButSome:
    """A cache that has every sample but those of `misses`."""

    own_tokens = None

    def __init__(self, misses: Sequence[int] = ()) -> None:
        self._misses = misses

    def take(self, samples: Sequence[int], variants: Sequence[int], device: torch.device) -> None:
        """Do nothing: nothing was prefetched."""

    def read(self, samples: Sequence[int], variants: Sequence[int], out: torch.Tensor) -> list[bool]:
        assert out.device == HOST and out.shape[0] == len(samples)
        out.zero_()
        return [sample not in self._misses for sample in samples]

    def fill(self, samples: Sequence[int], variants: Sequence[int], rows: torch.Tensor) -> None:
        assert list(samples) == list(self._misses) and rows.device == DEVICE


@pytest.mark.parametrize(("misses", "copies"), [((), 1), ((3,), 2 + 1 + 3)])
def test_what_the_cache_has_comes_in_one_copy_that_nobody_waits_for(misses: Sequence[int], copies: int) -> None:
    """With a miss these are copied: the rows and their places, the place of the computed row, and the inputs of its tile."""
    bench = Counted(Case("gpt2_tied", freezing=(), dropout=0.0))
    context, generation = bench.generation.context, bench.generation
    generation.freeze_to(2)
    reader = PrefixReader(context, generation.stages[0], context.data.train, AllButSome(misses), 2, None)
    with bench.device.running():
        assert reader.rows(list(range(8)), [0] * 8).shape[0] == 8
    assert bench.device.total(BLOCKING).times == bench.device.total(READ).times == 0
    assert bench.device.total(COPY).times <= copies
    row = math.prod(context.hidden_shape) * 4
    assert bench.device.total(COPY).bytes >= (8 - len(misses)) * row


def keeping(room: bool) -> tuple[RunContext, Plan]:
    """Return a buddy of two units on a counting device, and its plan. room: memory for unit replicas beyond the prediction."""
    context = build_case(Case("gpt2_tied"))
    to_the_device(context)
    hand_made = plan_of(Layout(4, 1), (0, 1, 2, 3))
    placement = hand_made.placement.model_copy(update={"predicted_peak_bytes": 1 << 20})
    section = context.job.placement.model_copy(update={"worker_memory_bytes": (1 << 30) if room else 1 << 20})
    context.job = context.job.model_copy(update={"placement": section})
    return context, hand_made.model_copy(update={"placement": placement})


def test_unit_replicas_on_the_device_are_carried_nothing_but_their_gradients() -> None:
    context, hand_made = keeping(room=True)
    device, kept_units = CountingDevice(), hand_made.pieces.units_of(hand_made.replicas_kept_by("w2"))
    for kept_unit in kept_units:
        state_of(context, kept_unit)
    with device.running():
        replication = UnitReplication(context, hand_made, 2, Group(None, "alone", 0, 1), 0)
        replication.collect()
        replication.commit(1e-3, 0.5)
    assert replication.resident and replication.kept_units == kept_units
    weights = sum(p.numel() * 4 for kept_unit in kept_units for p in context.cut.units[kept_unit].parameters())
    assert weights <= device.total(COPY).bytes <= 1.2 * weights, "alignment and nothing else on top"
    assert device.total(BLOCKING).times == device.total(READ).times == 0


def test_unit_replicas_stay_in_host_memory_where_the_device_has_no_room_or_nobody_knows() -> None:
    context, hand_made = keeping(room=True)
    kept_units = hand_made.pieces.units_of(hand_made.replicas_kept_by("w2"))
    assert replicas_stay_on_device(context, hand_made, kept_units)
    assert not replicas_stay_on_device(*keeping(room=False), kept_units)
    unknown = hand_made.placement.model_copy(update={"predicted_peak_bytes": 0})
    assert not replicas_stay_on_device(context, hand_made.model_copy(update={"placement": unknown}), kept_units)
    assert not replicas_stay_on_device(build_case(Case("gpt2_tied")), hand_made, kept_units), "a CPU has one memory"


def state_of(context: RunContext, unit: int) -> None:
    """Return moments as after a first update, on the unit's device."""
    for name, parameter in context.cut.units[unit].named_parameters():
        zeros = {moment: torch.zeros_like(parameter) for moment in ("exp_avg", "exp_avg_sq")}
        context.moments[unit, name] = {"step": torch.ones(()), **zeros}


def test_new_memory_is_not_filled_with_nan_on_a_device() -> None:
    before = deterministic.fill_uninitialized_memory, torch.backends.cuda.matmul.allow_tf32
    try:
        settle_torch(torch.device("cuda", 0))
        assert torch.are_deterministic_algorithms_enabled() and not deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
        deterministic.fill_uninitialized_memory, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "gpipe"])
def test_every_receive_is_posted_a_computation_ahead(schedule: str) -> None:
    """Except a rank's first receives, before which nothing can be computed."""
    virtual = 2 if schedule == "interleaved_1f1b" else 1
    programs = checked_programs(BUILT_IN[schedule], StepShape(4, virtual, 8, 0, False), (1,) * 8)
    posted_late = 0
    for program in programs:
        computed = 0
        posted: dict[tuple[Carried, int, int], int] = {}
        for one in program.compute:
            if one.kind is Kind.RECEIVE:
                posted[one.message.carried, one.message.stage, one.message.micro_batch] = computed
            elif one.kind is not Kind.SEND:
                needed = Carried.ACTIVATION if one.kind is Kind.FORWARD else Carried.GRADIENT
                at = posted.pop((needed, one.stage, one.micro_batch), None)
                posted_late += at is not None and computed > 0 and computed - at < 1
                computed += 1
        assert not posted
    assert posted_late == 0


def test_the_next_step_is_read_by_a_thread_while_this_one_is_computed() -> None:
    readers: dict[int, str] = {}
    release = threading.Event()

    def read(step: int, samples: bool) -> list:
        readers[step] = threading.current_thread().name
        if step == 2:
            assert release.wait(30)
        if step == 4:
            raise OSError("the disk is gone")
        return [{"step": torch.tensor(step)}]

    ahead = Ahead(read, ahead=True)
    assert ahead.take(1, samples=True)[0]["step"] == 1
    release.set()
    assert ahead.take(2, samples=True)[0]["step"] == 2
    assert ahead.take(3, samples=False)[0]["step"] == 3, "with other inputs than it was read ahead with"
    assert (readers[1], readers[2]) == (threading.current_thread().name, "read-ahead")
    with pytest.raises(OSError, match="the disk is gone"):
        ahead.take(4, samples=False)
    assert Ahead(lambda step, samples: [], ahead=False).take(1, samples=True) == []


def test_reading_ahead_changes_no_bit() -> None:
    def records(ahead: bool) -> list:
        bench = Bench(Case("gpt2_tied", freezing=(), steps=STEPS))
        bench.generation._step_feed._ahead._ahead = ahead
        bench.box.put_decision(decision(2))
        bench.run()
        return [(record.numerics_hash, record.loss, record.unit_gradient_norms) for record in bench.state.records]

    assert records(ahead=True) == records(ahead=False)


def as_on_device(section, optimizer, decay, keys, parameters, gradients, rate) -> None:
    """Make UnitOptimizer's AdamW act as if the parameters were not on the CPU."""
    states = [optimizer._adamw_state(key, parameter) for key, parameter in zip(keys, parameters, strict=True)]
    fused_on_device(section, parameters, gradients, states, decay, rate)


def test_the_devices_update_is_the_librarys_with_each_parameters_own_count() -> None:
    """On a CPU both are one kernel: equal bits, though parameters began to learn at different steps."""
    context = build_case(Case("vit"))
    units = [(1, context.cut.units[1]), (2, context.cut.units[2])]
    section = context.job.training.optimizer

    def updated(on_device: bool) -> tuple[list[torch.Tensor], Moments]:
        torch.manual_seed(5)
        parameters = [p for _, unit in units for p in unit.parameters()]
        before = [p.detach().clone() for p in parameters]
        moments: Moments = {}
        optimizer = UnitOptimizer(section, units, moments)
        for step in range(3):
            for unit, module in units:
                for parameter in module.parameters():
                    parameter.grad = torch.randn_like(parameter) if unit == 1 or step else None
            if on_device:
                optimizer._adamw = partial(as_on_device, section, optimizer)
            optimizer.step(1e-3)
        after = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
        return after, moments

    (ours, our_moments), (theirs, their_moments) = updated(True), updated(False)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for key, state in their_moments.items():
        assert all(torch.equal(our_moments[key][name], tensor) for name, tensor in state.items()), key
