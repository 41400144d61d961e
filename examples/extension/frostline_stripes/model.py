"""A small MLP-Mixer (Tolstikhin et al. 2021) as an ordinary transformers model, without any reference to Frostline."""

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput


class MixerConfig(PretrainedConfig):
    """Sizes of the mixer; images are square."""

    model_type = "mixer"

    def __init__(
        self,
        hidden_size: int = 32,
        num_hidden_layers: int = 4,
        token_size: int = 16,
        intermediate_size: int = 64,
        image_size: int = 8,
        patch_size: int = 2,
        num_channels: int = 1,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.token_size, self.intermediate_size = token_size, intermediate_size
        self.image_size, self.patch_size, self.num_channels = image_size, patch_size, num_channels

    @property
    def tokens(self) -> int:
        """Number of patches of an image."""
        return (self.image_size // self.patch_size) ** 2


class MixerLayer(nn.Module):
    """Mixes over tokens, then over channels."""

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        width, tokens = config.hidden_size, config.tokens
        self.norm_tokens, self.norm_channels = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_tokens = nn.Sequential(nn.Linear(tokens, config.token_size), nn.GELU(), nn.Linear(config.token_size, tokens))
        inner = config.intermediate_size
        self.over_channels = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm_channels(x))


class MixerForImageClassification(PreTrainedModel):
    """Patches, mixer layers, and a classifier over the mean of all patches."""

    config_class = MixerConfig
    main_input_name = "pixel_values"
    _supports_sdpa = True  # it has no attention, so any kernel will do

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        patch = config.patch_size
        self.patches = nn.Conv2d(config.num_channels, config.hidden_size, kernel_size=patch, stride=patch)
        self.layers = nn.ModuleList([MixerLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(module.weight, std=0.05)
            nn.init.zeros_(module.bias)

    def embed(self, pixel_values: Tensor) -> Tensor:
        """(samples, channels, size, size) to (samples, tokens, width)."""
        return self.patches(pixel_values).flatten(2).transpose(1, 2)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        x = self.embed(pixel_values)
        for layer in self.layers:
            x = layer(x)
        logits = self.classifier(self.norm(x).mean(dim=1))
        loss = torch.nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return ImageClassifierOutput(loss=loss, logits=logits)


AutoConfig.register(MixerConfig.model_type, MixerConfig)
AutoModelForImageClassification.register(MixerConfig, MixerForImageClassification)
