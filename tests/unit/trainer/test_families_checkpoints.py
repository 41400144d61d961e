"""Configs and checkpoints: which of them fit, which fields are set from where, and one clear line for those that do not fit."""

import json
import logging
import shutil

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2LMHeadModel

from frostline_contract.job import Job
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families import family_named
from frostline_trainer.model import build_cut_model, save_model
from tests.unit.trainer import families_cases as cases

SMALL_BERT = {**cases.CASES["bert"][2], "vocab_size": cases.VOCABULARY, "max_position_embeddings": 16}


@pytest.fixture(scope="module")
def bert_directory(tmp_path_factory):
    """Write a pretrained encoder as the hub has it: masked-language-model head, no pooler, no classifier."""
    directory = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**SMALL_BERT)).save_pretrained(directory)
    return directory


@pytest.fixture
def copy_of_bert(bert_directory, tmp_path):
    return shutil.copytree(bert_directory, tmp_path / "checkpoint")


def built(case, **job):
    return build_cut_model(cases.job_of(case, **job), cases.sizes_of(case))


def refusal(case: str, sizes: DataSizes | None = None, *, job: Job | None = None, **model) -> str:
    """Return the one line that a user reads."""
    with pytest.raises(ValueError) as caught:
        build_cut_model(job or cases.job_of(case, **model), sizes or cases.sizes_of(case))
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


@pytest.mark.parametrize("case", ["bert", "bert-answers"])
def test_pretrained_weights_arrive_and_only_the_head_is_fresh(case, bert_directory, caplog):
    with caplog.at_level(logging.WARNING):
        cut = built(case, path=str(bert_directory))
    assert not caplog.records
    pretrained = BertModel.from_pretrained(bert_directory, add_pooling_layer=False).state_dict()
    own = cut.model.bert.state_dict()
    assert all(torch.equal(own[name], pretrained[name]) for name in pretrained)
    again = built(case, path=str(bert_directory))
    head = cut.units[-1].state_dict()
    assert all(torch.equal(t, head[name]) for name, t in again.units[-1].state_dict().items())
    assert all(t.abs().sum() > 0 for name, t in head.items() if t.ndim == 2)
    other = built(case, path=str(bert_directory), seed=8).units[-1].state_dict()
    assert not all(torch.equal(t, head[name]) for name, t in other.items())


def test_a_classifier_for_other_classes_is_replaced(tmp_path):
    save_model(built("bert"), tmp_path)
    five = DataSizes(num_labels=5, vocabulary_size=cases.VOCABULARY, sequence_length=cases.TOKENS)
    cut = build_cut_model(cases.job_of("bert", path=str(tmp_path)), five)
    assert cut.units[-1].classifier.weight.shape == (5, 32)
    assert torch.equal(cut.units[1].layer.output.dense.weight, built("bert").units[1].layer.output.dense.weight)


@pytest.mark.parametrize("case", ["vit", "bert", "gpt2", "gpt2-untied", "llama", "llama-tied"])
def test_a_saved_model_is_a_checkpoint_to_start_from(case, tmp_path):
    first = built(case, precision="float64")
    save_model(first, tmp_path)
    again = built(case, precision="float64", path=str(tmp_path), seed=77)
    for mine, theirs in zip(again.units, first.units, strict=True):
        assert all(torch.equal(t, theirs.state_dict()[name]) for name, t in mine.state_dict().items())
    assert again.tied == first.tied


def test_a_tied_checkpoint_can_be_continued_untied(tmp_path):
    save_model(built("gpt2"), tmp_path)
    cut = built("gpt2", path=str(tmp_path), untie_on_freeze=True)
    assert cut.tied is None
    assert torch.equal(cut.units[-1].lm_head.weight, cut.units[0].wte.weight)
    text = refusal("gpt2", path=str(tmp_path), config={"tie_word_embeddings": False})
    assert "lm_head.weight" in text
    assert "untie_on_freeze" in text


def no_directory(path):
    shutil.rmtree(path)


def a_file(path):
    shutil.rmtree(path)
    path.write_text("weights")


def no_config(path):
    (path / "config.json").unlink()


def garbage_config(path):
    (path / "config.json").write_text("{half")


def config_without_type(path):
    (path / "config.json").write_text("{}")


def unknown_type(path):
    (path / "config.json").write_text('{"model_type": "glacier"}')


def other_family(path):
    shutil.rmtree(path)
    save_model(built("gpt2"), path)


def decoder(path):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "is_decoder": True}))


def no_weights(path):
    (path / "model.safetensors").unlink()


def pickled_weights(path):
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def truncated_weights(path):
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def empty_weights(path):
    (path / "model.safetensors").write_bytes(b"")


def garbage_weights(path):
    (path / "model.safetensors").write_bytes(bytes(range(256)) * 8)


def a_layer_missing(path):
    shutil.rmtree(path)
    BertForMaskedLM(BertConfig(**{**SMALL_BERT, "num_hidden_layers": 2})).save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (no_directory, ["no such directory", "save_pretrained"]),
        (a_file, ["no such directory", "save_pretrained"]),
        (no_config, ["no config.json", "save_pretrained"]),
        (garbage_config, ["config.json cannot be read", "save_pretrained"]),
        (config_without_type, ["model_type", "save_pretrained"]),
        (unknown_type, ["glacier", "give a whole checkpoint"]),
        (other_family, ["holds a gpt2", "set model.family: gpt2"]),
        (decoder, ["is_decoder", "give another checkpoint"]),
        (no_weights, ["no weights", "save_pretrained"]),
        (pickled_weights, ["pytorch_model.bin", "pickle", "safetensors"]),
        (truncated_weights, ["cannot be read", "copy the checkpoint again"]),
        (empty_weights, ["cannot be read", "copy the checkpoint again"]),
        (garbage_weights, ["cannot be read", "copy the checkpoint again"]),
        (a_layer_missing, ["16 weights are missing", "bert.encoder.layer.2", "give a whole checkpoint"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_bad_checkpoint_directory_ends_in_one_line(damage, says, copy_of_bert):
    damage(copy_of_bert)
    text = refusal("bert", path=str(copy_of_bert))
    assert str(copy_of_bert) in text
    for part in says:
        assert part in text


@pytest.mark.parametrize(
    ("case", "config", "says"),
    [
        ("bert", {"hiden_size": 32}, ["model.config.hiden_size", "did you mean hidden_size"]),
        ("bert", {"zzz": 1}, ["model.config.zzz", "BertConfig"]),
        ("bert", {"hidden_size": "wide"}, ["model.config", "hidden_size", "correct the field"]),
        ("bert", {"is_decoder": True}, ["model.config.is_decoder", "remove it"]),
        ("gpt2", {"add_cross_attention": True}, ["add_cross_attention", "remove it"]),
        ("bert", {"attn_implementation": "eager"}, ["model.attention"]),
        ("bert", {"dtype": "float64"}, ["training.precision"]),
        ("bert", {"model_type": "vit"}, ["model_type", "make them agree"]),
        ("bert", {"vocab_size": 50}, ["vocabulary is 97", "vocab_size is 50", "raise model.config.vocab_size"]),
        ("gpt2", {"n_positions": 8}, ["sequence_length is 12", "is 8", "lower it"]),
        ("llama", {"max_position_embeddings": 8}, ["sequence_length is 12", "is 8", "lower it"]),
        ("vit", {"image_size": 32}, ["size is 16", "image_size is 32", "data.image_size"]),
        ("vit", {"num_channels": 3}, ["channels is 1", "num_channels is 3"]),
        ("vit", {"patch_size": 5}, ["16 is no multiple of patch_size 5", "divisor"]),
        ("vit", {"num_labels": 4}, ["10 classes and the model 4", "raise task.num_labels"]),
        ("vit", {"num_labels": 12}, ["model.config.num_labels is 12", "10 classes", "set task.num_labels"]),
        ("llama", {"hidden_size": 30}, ["hidden size", "30", "correct the field"]),
        ("gpt2", {"n_head": 5}, ["num_heads", "5", "correct the field"]),
        ("bert", {"hidden_act": "melt"}, ["melt", "correct the field"]),
        ("vit", {"num_hidden_layers": 0}, ["0 blocks", "at least 1"]),
    ],
)
def test_a_config_that_does_not_fit_ends_in_one_line(case, config, says):
    text = refusal(case, config=config)
    for part in says:
        assert part in text


def test_an_override_that_contradicts_the_weights_is_refused(bert_directory):
    text = refusal("bert", path=str(bert_directory), config={"intermediate_size": 64})
    assert "another shape" in text
    assert "has (48,), expected (64,)" in text
    assert "remove the override" in text


def test_a_checkpoint_too_small_for_the_data_is_refused(bert_directory):
    path = str(bert_directory)
    assert "max_position_embeddings is 16" in refusal("bert", DataSizes(num_labels=3, sequence_length=17), path=path)
    assert "vocab_size is 97" in refusal("bert", DataSizes(num_labels=3, vocabulary_size=98), path=path)


def test_a_task_that_the_family_cannot_do_is_refused():
    job = cases.job_of("vit")
    job = job.model_copy(update={"task": job.task.model_copy(update={"kind": "question_answering"})})
    assert "model.family vit does image_classification" in refusal("vit", job=job)


@pytest.mark.parametrize("case", cases.CASES)
def test_open_sizes_follow_the_data_and_dropout_reaches_every_field(case):
    job, sizes = cases.job_of(case, dropout=0.25), cases.sizes_of(case)
    config = family_named(job.model.family).config(job.model, job.task, sizes)
    assert config.use_cache is False
    drops = {k: v for k, v in config.to_dict().items() if "dropout" in k or k.endswith("pdrop")}
    assert drops
    assert set(drops.values()) == {0.25}
    if sizes.image_size:
        assert (config.image_size, config.num_channels, config.num_labels) == (16, 1, 10)
    else:
        assert (config.vocab_size, config.max_position_embeddings) == (cases.VOCABULARY, cases.TOKENS)
    if case.startswith("bert"):
        labels = {"bert": 3, "bert-regression": 1, "bert-answers": 2}[case]
        assert config.num_labels == labels
    if case == "bert-regression":
        assert config.problem_type == "regression"


def test_an_override_changes_a_checkpoints_config(bert_directory):
    job = cases.job_of("bert", path=str(bert_directory), config={"layer_norm_eps": 1e-6}, attention="eager")
    config = family_named("bert").config(job.model, job.task, cases.sizes_of("bert"))
    assert config.layer_norm_eps == 1e-6
    assert config._attn_implementation == "eager"
    assert config.vocab_size == cases.VOCABULARY


def test_a_half_precision_checkpoint_is_widened_exactly(tmp_path):
    plain = GPT2LMHeadModel(built("gpt2").model.config).to(torch.bfloat16)
    plain.save_pretrained(tmp_path)
    cut = built("gpt2", path=str(tmp_path))
    assert cut.units[0].wte.weight.dtype == torch.float32
    assert torch.equal(cut.units[0].wte.weight, plain.transformer.wte.weight.float())


def test_a_hub_id_out_of_reach_ends_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    job = cases.job_of("bert", path="unused")
    job = job.model_copy(update={"model": job.model.model_copy(update={"path": None, "hub": "nobody/nothing-of-the-sort"})})
    assert "model.hub nobody/nothing-of-the-sort" in refusal("bert", job=job)
