"""ViT: image classification. Units: patch embedding, encoder blocks, final norm with classifier."""

from torch import Tensor, nn
from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification

from frostline_trainer.data.sizes import DataSizes
from frostline_trainer.families.base import CutModel, Unit, assemble, attention_block_flops, first_tensor
from frostline_trainer.families.configuring import SizeFitter, pair
from frostline_trainer.families.hugging_face import HuggingFaceFamily
from frostline_trainer.tensor.table import TensorTable


class Embedding(Unit):
    """pixel_values (samples, channels, height, width) to (samples, patches + 1, width)."""

    def __init__(self, model: ViTForImageClassification) -> None:
        super().__init__()
        self.embeddings = model.vit.embeddings

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        weight = self.embeddings.patch_embeddings.projection.weight
        return self.embeddings(inputs["pixel_values"].to(weight.dtype))


class Block(Unit):
    """One encoder layer; images have no padding, so it needs no mask."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return first_tensor(self.layer(x))


class Head(Unit):
    """The final norm and the classifier on the class token: logits (samples, labels)."""

    def __init__(self, model: ViTForImageClassification) -> None:
        super().__init__()
        self.layernorm = model.vit.layernorm
        self.classifier = model.classifier

    def forward(self, x: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
        return self.classifier(self.layernorm(x)[:, 0, :])


class ViT(HuggingFaceFamily):
    """ViT with its classifier, which is initialised if a checkpoint lacks it."""

    name = "vit"
    config_class = ViTConfig
    model_classes = {"image_classification": ViTForImageClassification}  # noqa: RUF012
    fresh = ("classifier.",)

    def fit(self, fitter: SizeFitter, sizes: DataSizes) -> None:
        fitter.exactly("image_size", sizes.image_size, "the images' size", "leave data.image_size empty or set it to the model's")
        fitter.exactly(
            "num_channels",
            sizes.channels,
            "the images' number of channels",
            "set model.config.num_channels or convert the images",
        )
        config = fitter.config
        for image, patch in zip(pair(config.image_size), pair(config.patch_size), strict=True):
            if patch > image or image % patch:
                raise ValueError(
                    f"image_size {image} is no multiple of patch_size {patch}; set model.config.patch_size to a divisor of it"
                )

    def cut(self, model: PreTrainedModel, task_kind: str) -> CutModel:
        """Units: the patch embedding, one encoder layer each, and the final norm with the classifier."""
        self.check_task(task_kind)
        layers = model.vit.layers if hasattr(model.vit, "layers") else model.vit.encoder.layer
        return assemble(model, Embedding(model), [Block(layer) for layer in layers], Head(model))

    def tensor_table(self, config: ViTConfig) -> TensorTable:
        """The linear layers of a block that tensor tiles cut; see Family."""
        attention = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
        return TensorTable(columns=(*attention, "mlp.fc1"), rows=("attention.o_proj", "mlp.fc2"), together=(attention,))

    def hidden_shape(self, config: ViTConfig, sizes: DataSizes) -> tuple[int, int]:
        """(patches + 1, hidden_size) of one sample; the class token comes first."""
        (height, width), (patch_height, patch_width) = pair(config.image_size), pair(config.patch_size)
        return (height // patch_height) * (width // patch_width) + 1, config.hidden_size

    def forward_flops(self, config: ViTConfig, sizes: DataSizes, task_kind: str) -> tuple[int, ...]:
        """FLOPs of one sample in each unit: matrix products only, two FLOPs a multiply-add; the head reads one token."""
        tokens, width = self.hidden_shape(config, sizes)
        patch_height, patch_width = pair(config.patch_size)
        embedding = 2 * (tokens - 1) * config.num_channels * patch_height * patch_width * width
        block = attention_block_flops(tokens, width, width, width, config.intermediate_size)
        return (embedding, *[block] * config.num_hidden_layers, 2 * width * config.num_labels)
