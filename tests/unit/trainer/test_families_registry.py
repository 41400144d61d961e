"""Families by name, built in or brought by an installed package."""

import sys

import pytest
import torch

from frostline_contract.job import parse_job
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families import family_named
from frostline_trainer.model import build_cut_model

USERS_FAMILY = """
from transformers import ElectraConfig, ElectraForSequenceClassification

from frostline_trainer.families.base import Unit, assemble, attention_block_flops, first_tensor
from frostline_trainer.families.hugging_face import HuggingFaceFamily, fit_text
from frostline_trainer.families.masks import bidirectional_mask


class Embedding(Unit):
    def __init__(self, model):
        super().__init__()
        self.embeddings = model.electra.embeddings

    def forward(self, x, inputs):
        return self.embeddings(input_ids=inputs["input_ids"])


class Block(Unit):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, inputs):
        return first_tensor(self.layer(x, bidirectional_mask(x, inputs.get("attention_mask"), "sdpa")))


class Head(Unit):
    def __init__(self, model):
        super().__init__()
        self.classifier = model.classifier

    def forward(self, x, inputs):
        return self.classifier(x)


class Electra(HuggingFaceFamily):
    name = "electra"
    config_class = ElectraConfig
    model_classes = {"text_classification": ElectraForSequenceClassification}
    fresh = ("classifier.",)

    def fit(self, fitter, sizes):
        fit_text(fitter, sizes)

    def cut(self, model, task_kind):
        return assemble(model, Embedding(model), [Block(layer) for layer in model.electra.encoder.layer], Head(model))

    def hidden_shape(self, config, sizes):
        return sizes.sequence_length, config.hidden_size

    def forward_flops(self, config, sizes, task_kind):
        tokens, width = self.hidden_shape(config, sizes)
        block = attention_block_flops(tokens, width, width, width, config.intermediate_size)
        return (0, *[block] * config.num_hidden_layers, 2 * width * (width + config.num_labels))


ready_made = Electra()


class Half:
    name = "half"
    tasks = frozenset()

    def cut(self, model, task_kind):
        return None
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with entry points, as pip leaves it: a module and a dist-info directory on the path."""
    (tmp_path / "snowfall_families.py").write_text(USERS_FAMILY)
    information = tmp_path / "snowfall-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: snowfall\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[frostline.families]\n"
        "electra = snowfall_families:Electra\n"
        "electra_object = snowfall_families:ready_made\n"
        "gone = snowfall_families:Nothing\n"
        "nowhere = no_such_module:Family\n"
        "half = snowfall_families:Half\n"
        "vit = snowfall_families:Half\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("snowfall_families", None)


def test_an_unknown_family_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'resnet'; known families: bert, gpt2, llama, vit\.") as caught:
        family_named("resnet")
    assert "frostline.families" in str(caught.value)


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "llama"])
def test_built_in_families_know_their_names(name):
    assert family_named(name).name == name
    assert family_named(name).tasks


@pytest.mark.parametrize("name", ["electra", "electra_object"])
def test_a_users_own_family_comes_in_through_an_entry_point(name, installed):
    family = family_named(name)
    assert family.name == "electra"
    assert family.tasks == {"text_classification"}


def test_a_users_own_family_is_built_and_computes_the_bits_of_its_model(installed):
    fields = {"hidden_size": 32, "embedding_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    job = parse_job(
        {
            "model": {"family": "electra", "dropout": 0.0, "config": fields},
            "task": {"kind": "text_classification"},
            "data": {"source": "csv"},
            "training": {"steps": 1, "reduction_leaves": 4},
        }
    )
    sizes = DataSizes(num_labels=2, vocabulary_size=97, sequence_length=12)
    cut = build_cut_model(job, sizes)
    inputs = {"input_ids": torch.arange(36).reshape(3, 12), "attention_mask": torch.ones(3, 12, dtype=torch.long)}
    inputs["attention_mask"][1, 5:] = 0
    x = None
    for unit in cut.units:
        x = unit(x, inputs)
    assert torch.equal(x, cut.model(**inputs).logits)
    assert len(family_named("electra").forward_flops(cut.model.config, sizes, "text_classification")) == len(cut.units)


def test_a_built_in_name_cannot_be_taken(installed):
    assert type(family_named("vit")).__module__ == "frostline_trainer.families.vit"


def test_known_families_include_those_installed(installed):
    with pytest.raises(ValueError, match="bert, electra, electra_object, gone, gpt2, half, llama, nowhere, vit"):
        family_named("resnet")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone", "snowfall_families:Nothing cannot be loaded"),
        ("nowhere", "no_such_module:Family cannot be loaded"),
        ("half", "lacks config, model, hidden_shape, forward_flops"),
    ],
)
def test_a_broken_entry_point_is_named(name, says, installed):
    with pytest.raises(ValueError, match=says):
        family_named(name)
