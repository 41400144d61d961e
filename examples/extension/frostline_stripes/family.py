"""The mixer as a model family: how it is cut into units, and all else that Frostline needs to know of a model."""

from torch import Tensor, nn
from transformers import PreTrainedModel

from frostline_stripes.model import MixerConfig, MixerForImageClassification
from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.base import CutModel, Unit, assemble
from frostline_trainer.families.configuring import SizeFitter
from frostline_trainer.families.hugging_face import HuggingFaceFamily
from frostline_trainer.tensor.table import TensorTable


class Embedding(Unit):
    """Unit 0: pixels to patches. Its submodule is the model's own, so what is trained is what is saved."""

    def __init__(self, model: MixerForImageClassification) -> None:
        super().__init__()
        self.patches = model.patches

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.patches(inputs["pixel_values"].to(self.patches.weight.dtype)).flatten(2).transpose(1, 2)


class Block(Unit):
    """One mixer layer; it needs only the hidden tensor."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.layer(x)


class Head(Unit):
    """The last unit: logits of the mean over tokens."""

    def __init__(self, model: MixerForImageClassification) -> None:
        super().__init__()
        self.norm, self.classifier = model.norm, model.classifier

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.classifier(self.norm(x).mean(dim=1))


class Mixer(HuggingFaceFamily):
    """The family `mixer`; the classifier is initialised if a checkpoint lacks it."""

    name = "mixer"
    config_class = MixerConfig
    model_classes = {"image_classification": MixerForImageClassification}  # noqa: RUF012
    fresh = ("classifier.",)

    def fit(self, fitter: SizeFitter, sizes: DataSizes) -> None:
        fitter.exactly("image_size", sizes.image_size, "the images' size", "set data.image_size to the model's")
        fitter.exactly("num_channels", sizes.channels, "the images' channels", "set model.config.num_channels")
        config = fitter.config
        if config.image_size % config.patch_size:
            raise ValueError(
                f"image_size {config.image_size} is no multiple of patch_size {config.patch_size}; set model.config.patch_size"
            )

    def cut(self, model: PreTrainedModel, task_kind: str) -> CutModel:
        """Units: the patches, one mixer layer each, and the final norm with the classifier."""
        return assemble(model, Embedding(model), [Block(layer) for layer in model.layers], Head(model))

    def tensor_table(self, config: MixerConfig) -> TensorTable:
        """What tensor tiles cut: the mixing over channels. The mixing over tokens, which is small, is computed whole."""
        return TensorTable(columns=("over_channels.0",), rows=("over_channels.2",))

    def hidden_shape(self, config: MixerConfig, sizes: DataSizes) -> tuple[int, int]:
        """(patches, hidden_size) of one sample."""
        return config.tokens, config.hidden_size

    def forward_flops(self, config: MixerConfig, sizes: DataSizes, task_kind: str) -> tuple[int, ...]:
        """FLOPs of one sample in each unit, two a multiply-add: the planner's estimate before units are measured."""
        tokens, width = config.tokens, config.hidden_size
        embedding = 2 * tokens * width * config.num_channels * config.patch_size**2
        block = 4 * tokens * width * (config.token_size + config.intermediate_size)
        return (embedding, *[block] * config.num_hidden_layers, 2 * width * config.num_labels)
