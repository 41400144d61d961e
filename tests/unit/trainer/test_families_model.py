"""Building, storing, freezing and saving a cut model."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from frostline_trainer.model import (
    build_cut_model,
    no_decay,
    save_model,
    set_frozen,
)
from frostline_trainer.step.unit_state import export_unit, import_unit
from tests.unit.trainer import families_cases as cases

AUTO = {
    "image_classification": AutoModelForImageClassification,
    "text_classification": AutoModelForSequenceClassification,
    "question_answering": AutoModelForQuestionAnswering,
    "language_modeling": AutoModelForCausalLM,
}


def built(case, *, pretrained=True, **job):
    return build_cut_model(cases.job_of(case, **job), cases.sizes_of(case), pretrained=pretrained)


def all_state(cut):
    return {f"{i}.{name}": t.clone() for i, unit in enumerate(cut.units) for name, t in unit.state_dict().items()}


def equal_state(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("case", cases.CASES)
def test_every_worker_builds_the_same_bits_and_disturbs_no_generator(case):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = all_state(built(case))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert equal_state(all_state(built(case)), first)
    assert not equal_state(all_state(built(case, seed=4)), first)


@pytest.mark.parametrize("case", ["vit", "llama"])
def test_precisions_start_from_the_same_model(case):
    exact = all_state(built(case))
    for precision in ("float64", "bfloat16"):
        other = all_state(built(case, precision=precision))
        assert all(torch.equal(other[name], exact[name].to(getattr(torch, precision))) for name in exact)
    mixed = cases.job_of(case).model_copy(
        update={"training": cases.job_of(case).training.model_copy(update={"precision": "mixed_bfloat16"})}
    )
    assert equal_state(all_state(build_cut_model(mixed, cases.sizes_of(case))), exact)


def test_rotary_frequencies_stay_in_full_precision():
    """The frequencies are a table, not state: cast to bfloat16 they would give other positions than a loaded checkpoint's."""
    cut = built("llama", precision="bfloat16")
    assert cut.model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert not [name for unit in cut.units for name in unit.state_dict() if "inv_freq" in name]


@pytest.mark.parametrize("case", cases.CASES)
def test_units_together_hold_every_weight_of_the_model_once(case):
    cut = built(case)
    of_units = [id(p) for unit in cut.units for p in unit.parameters()]
    used = {id(p) for name, p in cut.model.named_parameters()}
    assert len(of_units) == len(set(of_units))
    assert set(of_units) == used


@pytest.mark.parametrize("case", cases.CASES)
def test_a_joiner_gets_its_state_from_a_peer(case):
    owner, joiner = built(case), built(case, seed=9, pretrained=False)
    places = [p.data_ptr() for unit in joiner.units for p in unit.parameters()]
    for mine, theirs in zip(joiner.units, owner.units, strict=True):
        import_unit(0, mine, {}, {key: t.clone() for key, t in export_unit(0, theirs, {}).items()})
    assert equal_state(all_state(joiner), all_state(owner))
    assert places == [p.data_ptr() for unit in joiner.units for p in unit.parameters()]
    inputs = cases.inputs_of(case)
    assert torch.equal(cases.run_units(joiner.units, inputs), cases.run_units(owner.units, inputs))


def test_a_joiner_reads_no_weights(tmp_path):
    save_model(built("bert"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    joiner = built("bert", path=str(tmp_path), pretrained=False)
    assert len(joiner.units) == 5


def wrong_states(state):
    name = next(iter(state))
    yield {k: v for k, v in state.items() if k != name}, "1 missing"
    yield {**state, "weight/extra": state[name]}, "1 unknown"
    yield {**state, name: state[name].double()}, "torch.float64"
    yield {**state, name: state[name].flatten()[:-1]}, f"{name.removeprefix('weight/')} is"


def test_a_state_that_is_not_exactly_the_units_is_refused_whole():
    unit = built("gpt2").units[1]
    before = {name: t.clone() for name, t in unit.state_dict().items()}
    changed = {key: t + 1 for key, t in export_unit(1, unit, {}).items()}
    for state, reason in wrong_states(changed):
        with pytest.raises(ValueError, match=reason):
            import_unit(1, unit, {}, state)
        assert equal_state(unit.state_dict(), before)


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("case", cases.CASES)
def test_plain_transformers_loads_what_is_saved_and_scores_the_same(case, precision, tmp_path):
    cut = built(case, precision=precision)
    parted = [p for pair in [cut.tied_parameters()] if pair for p in pair]
    save_model(cut, tmp_path)
    assert [p for pair in [cut.tied_parameters()] if pair for p in pair] == parted or not parted
    plain = AUTO[cases.CASES[case][1]].from_pretrained(tmp_path, dtype="auto", attn_implementation="sdpa").eval()
    assert plain.dtype == getattr(torch, precision)
    inputs = cases.inputs_of(case)
    expected = cases.run_units([unit.eval() for unit in cut.units], inputs)
    assert torch.equal(cases.plain_logits(plain(**inputs)), expected)


@pytest.mark.parametrize(("case", "key"), [("gpt2", "transformer.wte.weight"), ("llama-tied", "model.embed_tokens.weight")])
def test_a_tied_matrix_is_saved_once_and_stays_two_parameters(case, key, tmp_path):
    cut = built(case)
    with torch.no_grad():
        for parameter in cut.tied_parameters():
            parameter.add_(0.5)
    embedding, head = cut.tied_parameters()
    save_model(cut, tmp_path)
    assert cut.tied_parameters()[0] is embedding
    assert cut.tied_parameters()[1] is head
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored[key], embedding)
    assert "lm_head.weight" not in stored
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert plain.lm_head.weight is plain.get_input_embeddings().weight


@pytest.mark.parametrize("wanted", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("case", ["gpt2", "vit"])
def test_the_saved_model_has_the_type_that_is_asked_for_and_the_trained_one_keeps_its_own(case, wanted, tmp_path):
    cut = built(case, precision="mixed_bfloat16")
    before = {name: tensor.clone() for name, tensor in all_state(cut).items()}
    save_model(cut, tmp_path, dtype=getattr(torch, wanted))
    assert equal_state(all_state(cut), before)
    plain = AUTO[cases.CASES[case][1]].from_pretrained(tmp_path, dtype="auto")
    assert plain.dtype == getattr(torch, wanted)
    named = dict(cut.model.named_parameters())
    assert all(torch.equal(p, named[name].to(p.dtype)) for name, p in plain.named_parameters() if name in named)


def test_parted_uses_of_a_tied_matrix_are_never_saved(tmp_path):
    cut = built("gpt2")
    with torch.no_grad():
        cut.tied_parameters()[1].add_(1.0)
    with pytest.raises(AssertionError, match="parted"):
        save_model(cut, tmp_path)


@pytest.mark.parametrize("case", ["gpt2", "llama-tied"])
def test_an_untied_head_starts_as_a_copy_learns_alone_and_is_saved_untied(case, tmp_path):
    cut = built(case, untie_on_freeze=True)
    assert cut.tied is None
    head = cut.units[-1].lm_head.weight
    assert torch.equal(head, cut.model.get_input_embeddings().weight)
    set_frozen(cut.units[0], True)
    assert head.requires_grad
    with torch.no_grad():
        head.mul_(2.0)
    save_model(cut, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    inputs = cases.inputs_of(case)
    assert torch.equal(plain(**inputs).logits, cases.run_units(cut.units, inputs))
    assert torch.equal(plain.lm_head.weight, 2 * plain.get_input_embeddings().weight)


def test_the_processor_is_saved_beside_the_model(tmp_path):
    words = {"[UNK]": 0, "snow": 1, "ice": 2}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")), unk_token="[UNK]")
    save_model(built("bert"), tmp_path / "deep" / "model", tokenizer)
    assert AutoTokenizer.from_pretrained(tmp_path / "deep" / "model").convert_tokens_to_ids(["ice", "fire"]) == [2, 0]


def test_a_frozen_unit_has_no_gradient_and_no_dropout_even_after_train():
    cut = built("bert", dropout=0.5)
    holder = torch.nn.ModuleList(cut.units)
    set_frozen(cut.units[1], True)
    holder.train()
    assert not any(module.training for module in cut.units[1].modules())
    assert not any(p.requires_grad for p in cut.units[1].parameters())
    assert all(module.training for module in cut.units[2].modules())
    inputs = cases.inputs_of("bert")
    x = cut.units[0].eval()(None, inputs)
    assert torch.equal(cut.units[1](x, inputs), cut.units[1](x, inputs))
    set_frozen(cut.units[1], False)
    assert all(module.training for module in cut.units[1].modules())
    assert all(p.requires_grad for p in cut.units[1].parameters())
    assert not torch.equal(cut.units[1](x, inputs), cut.units[1](x, inputs))


@pytest.mark.parametrize("case", cases.CASES)
def test_biases_and_normalisation_weights_do_not_decay(case):
    cut = built(case)
    for unit in cut.units:
        for name, parameter in unit.named_parameters():
            owner = unit.get_submodule(name.rpartition(".")[0])
            exempt = name.endswith("bias") or "Norm" in type(owner).__name__
            assert no_decay(unit, name, parameter) == exempt, name
