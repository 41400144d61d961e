"""Cut into units, every family computes the bits of its unsplit Hugging Face model."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from frostline_trainer.families import family_named
from frostline_trainer.model import build_cut_model
from tests.unit.trainer import families_cases as cases

PRECISIONS = ("float32", "float64", "bfloat16")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shapes, types and bytes: NaNs count by their bits, -0.0 is not 0.0."""
    as_bytes = [t.detach().contiguous().view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*as_bytes)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", cases.CASES)
def test_logits_have_the_bits_of_the_unsplit_model(case, precision, attention, padded):
    cut = build_cut_model(cases.job_of(case, precision=precision, attention=attention), cases.sizes_of(case))
    inputs = cases.inputs_of(case, padded=padded)
    got = cases.run_units(cut.units, inputs)
    expected = cases.plain_logits(cut.model(**inputs))
    assert got.dtype == getattr(torch, precision)
    assert got.isfinite().all()
    if (case, precision, attention, padded) in {(c, "float64", "eager", True) for c in ("llama", "llama-tied")}:
        # transformers' eager Llama gives NaN for a token that sees nothing in float64; all other tokens must agree
        seen = expected.isfinite()
        assert 0 < seen.sum() < seen.numel()
        got, expected = got[seen], expected[seen]
    assert same_bits(got, expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", cases.CASES)
def test_gradients_have_the_bits_of_the_unsplit_model(case, precision):
    cut = build_cut_model(cases.job_of(case, precision=precision), cases.sizes_of(case))
    plain = copy.deepcopy(cut.model)
    inputs = cases.inputs_of(case)
    direction = torch.randn(cases.run_units(cut.units, inputs).shape, generator=torch.Generator().manual_seed(5))
    (cases.run_units(cut.units, inputs) * direction).sum().backward()
    (cases.plain_logits(plain(**inputs)) * direction).sum().backward()
    # the copy is cut too, so that on both sides each use of a tied matrix is a parameter of its own
    compared = 0
    for (name, mine), (_, theirs) in zip(cut.model.named_parameters(), plain.named_parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            assert mine.grad.isfinite().all(), name
            assert same_bits(mine.grad, theirs.grad), name
            compared += 1
    assert compared >= sum(1 for unit in cut.units for _ in unit.parameters())


@pytest.mark.parametrize("case", ["gpt2", "llama-tied"])
def test_the_two_gradients_of_a_tied_matrix_add_up_to_that_of_the_tied_model(case):
    cut = build_cut_model(cases.job_of(case, precision="float64"), cases.sizes_of(case))
    family = family_named(cases.CASES[case][0])
    job, sizes = cases.job_of(case), cases.sizes_of(case)
    plain = family.model(family.config(job.model, job.task, sizes), job.task.kind, job.model).double()
    plain.load_state_dict({name: tensor.detach() for name, tensor in cut.model.state_dict().items()})
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    inputs = cases.inputs_of(case, padded=False)
    cases.run_units(cut.units, inputs).square().sum().backward()
    plain(**inputs).logits.square().sum().backward()
    embedding, head = cut.tied_parameters()
    assert embedding is not head
    assert torch.equal(embedding, head)
    torch.testing.assert_close(embedding.grad + head.grad, plain.get_input_embeddings().weight.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", cases.CASES)
def test_dropout_draws_in_the_order_of_the_unsplit_model(case, attention):
    cut = build_cut_model(cases.job_of(case, attention=attention, dropout=0.1), cases.sizes_of(case))
    inputs = cases.inputs_of(case)
    still = cases.run_units([unit.eval() for unit in cut.units], inputs)
    for unit in cut.units:
        unit.train()
    torch.manual_seed(11)
    got = cases.run_units(cut.units, inputs)
    torch.manual_seed(11)
    expected = cases.plain_logits(cut.model.train()(**inputs))
    assert same_bits(got, expected)
    assert not torch.equal(got, still)


@pytest.mark.parametrize("case", cases.CASES)
def test_one_hidden_tensor_of_the_stated_shape_crosses_every_cut(case):
    job, sizes = cases.job_of(case), cases.sizes_of(case)
    cut = build_cut_model(job, sizes)
    family = family_named(job.model.family)
    shape = family.hidden_shape(cut.model.config, sizes)
    inputs, x = cases.inputs_of(case), None
    for unit in cut.units[:-1]:
        x = unit(x, inputs)
        assert tuple(x.shape) == (cases.SAMPLES, *shape)
    blocks = cut.model.config.num_hidden_layers
    assert cut.unit_names == ["embedding", *(f"block {i}" for i in range(blocks)), "head"]
    assert len(cut.units) == blocks + 2


@pytest.mark.parametrize("case", cases.CASES)
def test_a_stage_runs_alone(case):
    """A block copied out of the model, without anything that ran before it, needs the boundary activation and the inputs."""
    cut = build_cut_model(cases.job_of(case), cases.sizes_of(case))
    inputs = cases.inputs_of(case)
    boundary = cases.run_units(cut.units[:2], inputs).detach()
    alone = [copy.deepcopy(unit) for unit in cut.units[2:]]
    expected = cases.run_units(cut.units, inputs)
    del cut
    x = boundary
    for unit in alone:
        x = unit(x, inputs)
    assert same_bits(x, expected)


@pytest.mark.parametrize("case", cases.CASES)
def test_forward_flops_are_those_that_torch_counts(case):
    job, sizes = cases.job_of(case, attention="eager"), cases.sizes_of(case)
    cut = build_cut_model(job, sizes)
    inputs, x, counted = cases.inputs_of(case), None, []
    for unit in cut.units:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            x = unit(x, inputs)
        counted.append(counter.get_total_flops())
    stated = family_named(job.model.family).forward_flops(cut.model.config, sizes, job.task.kind)
    assert [flops * cases.SAMPLES for flops in stated] == counted


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", ["bert", "gpt2", "llama"])
def test_a_samples_bits_do_not_depend_on_whether_its_neighbours_are_padded(case, precision, attention):
    cut = build_cut_model(cases.job_of(case, precision=precision, attention=attention), cases.sizes_of(case))
    padded, whole = cases.inputs_of(case, padded=True), cases.inputs_of(case, padded=False)
    assert padded["attention_mask"][4].all()
    assert not padded["attention_mask"].all()
    assert same_bits(cases.run_units(cut.units, padded)[4], cases.run_units(cut.units, whole)[4])


@pytest.mark.parametrize("case", ["bert", "gpt2", "llama"])
def test_padding_is_honoured(case):
    """The values at padded positions change nothing at valid ones; in causal models neither do later tokens."""
    cut = build_cut_model(cases.job_of(case), cases.sizes_of(case))
    inputs = cases.inputs_of(case)
    other = {**inputs, "input_ids": torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], 5)}
    last = len(cut.units) - 1
    before, after = (cases.run_units(cut.units[:last], i) for i in (inputs, other))
    valid = inputs["attention_mask"].bool()
    assert same_bits(before[valid], after[valid])
    late = {**inputs, "input_ids": inputs["input_ids"].clone()}
    late["input_ids"][4, -1] = (late["input_ids"][4, -1] + 1) % cases.VOCABULARY
    changed = cases.run_units(cut.units[:last], late)
    assert torch.equal(changed[4, :-1], before[4, :-1]) == (case != "bert")


def test_layers_that_return_tuples_are_read_too():
    """Transformers 4.5x layers return (hidden states, ...)."""
    cut = build_cut_model(cases.job_of("bert"), cases.sizes_of("bert"))
    inputs = cases.inputs_of("bert")
    expected = cases.run_units(cut.units, inputs)

    class OldLayer(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, *args, **kwargs):
            return (self.layer(*args, **kwargs), None)

    for unit in cut.units[1:-1]:
        unit.layer = OldLayer(unit.layer)
    assert same_bits(cases.run_units(cut.units, inputs), expected)
