"""Architectures outside the table, each with something that the models in it do not have.

What is measured again and again becomes fast; these showed what that hid (docs/latency.md).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import transformers
from torch import nn

Example = tuple[torch.Tensor, ...]
Made = tuple[torch.nn.Module, Example, str]
"""A model, its input, and the input's name where it has to be given by name."""
_CLASSES = 100


class _UNet(nn.Module):  # type: ignore[misc]  # torch is not looked into
    """Pairs of convolutions down and up again, with concatenations across."""

    def __init__(self, widths: tuple[int, ...] = (24, 48, 96, 192)) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            self._pair(a, b) for a, b in zip((3, *widths), widths, strict=False)
        )
        steps = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in steps)
        self.up = nn.ModuleList(self._pair(a, b) for a, b in steps)
        self.head = nn.Conv2d(widths[0], 5, 1)

    @staticmethod
    def _pair(a: int, b: int) -> nn.Module:
        layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for number, part in enumerate(self.down):
            x = part(nn.functional.max_pool2d(x, 2) if number else x)
            kept.append(x)
        for grow, part, beside in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = part(torch.cat([grow(x), beside], 1))
        found: torch.Tensor = self.head(x)
        return found


class _Gru(nn.Module):  # type: ignore[misc]
    """Two recurrent layers over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 192)
        self.layers = nn.GRU(192, 320, 2, batch_first=True)
        self.head = nn.Linear(320, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layers(self.words(x))[0])
        return found


class _Points(nn.Module):  # type: ignore[misc]
    """What each point is, beside what all of them have in common (PointNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.own = self._layers(3, 64, 64)
        self.common = self._layers(64, 64, 128, 1024)
        self.head = nn.Sequential(self._layers(1088, 512, 256), nn.Conv1d(256, 50, 1))

    @staticmethod
    def _layers(*widths: int) -> nn.Module:
        parts = [[nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()] for a, b in pairwise(widths)]
        return nn.Sequential(*(layer for part in parts for layer in part))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.own(x)
        common = self.common(own).max(2, keepdim=True)[0].expand(-1, -1, x.shape[2])
        found: torch.Tensor = self.head(torch.cat([own, common], 1)).log_softmax(1)
        return found


class _Residual(nn.Module):  # type: ignore[misc]
    """What parts give, added to what they read."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.parts(x)
        return found


def _generator() -> Made:
    """Noise to an image by transposed convolutions of 4 by 4."""
    widths = (100, 256, 128, 64, 32)
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(pairwise(widths)):
        stride, pad = (2, 1) if number else (1, 0)
        layers += [nn.ConvTranspose2d(a, b, 4, stride, pad), nn.BatchNorm2d(b), nn.ReLU()]
    head = nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1)
    return nn.Sequential(*layers, head, nn.Tanh()), (torch.randn(1, 100, 1, 1),), ""


def _vocoder() -> Made:
    """Spectra to a wave by transposed convolutions along a line."""
    layers: list[nn.Module] = [nn.Conv1d(80, 128, 7, padding=3)]
    width = 128
    for step in (8, 8, 2):
        half = width // 2
        layers += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(width, half, 2 * step, step, step // 2)]
        width = half
        for apart in (1, 3, 5):
            conv = nn.Conv1d(width, width, 7, padding=3 * apart, dilation=apart)
            layers += [nn.LeakyReLU(0.1), conv]
    layers += [nn.LeakyReLU(0.1), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(1, 80, 40),), ""


def _super_resolution() -> Made:
    blocks = (
        _Residual(nn.Conv2d(48, 48, 3, padding=1), nn.PReLU(), nn.Conv2d(48, 48, 3, padding=1))
        for _ in range(4)
    )
    layers = [nn.Conv2d(3, 48, 3, padding=1), *blocks, nn.Conv2d(48, 12, 3, padding=1)]
    return nn.Sequential(*layers, nn.PixelShuffle(2)), (torch.randn(1, 3, 128, 128),), ""


def _vision(kind: str, **config: object) -> Made:
    model = getattr(transformers, f"{kind}ForImageClassification")
    made = model(getattr(transformers, f"{kind}Config")(num_labels=_CLASSES, **config))
    size = 256 if kind == "MobileViT" else 224
    return made, (torch.randn(1, 3, size, size),), "pixel_values"


def _segformer() -> Made:
    config = transformers.SegformerConfig(num_labels=20)
    model = transformers.SegformerForSemanticSegmentation(config)
    return model, (torch.randn(1, 3, 224, 224),), "pixel_values"


def _bert_wide() -> Made:
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=3, num_attention_heads=16, intermediate_size=4096,
        attn_implementation="eager",
    )  # fmt: skip
    return _text("BertModel", config, 128)


def _text(kind: str, config: object, words: int) -> Made:
    model = getattr(transformers, kind)(config)
    return model, (torch.randint(0, 1000, (1, words)),), "input_ids"


def _whisper() -> Made:
    """The encoder of speech: convolutions along a line, and attention over 300 frames."""
    config = transformers.WhisperConfig(
        d_model=256, encoder_layers=4, encoder_attention_heads=4, encoder_ffn_dim=1024,
        decoder_layers=1, decoder_attention_heads=4, max_source_positions=300,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.WhisperModel(config).get_encoder()
    return model, (torch.randn(1, 80, 600),), "input_features"


def _wav2vec2() -> Made:
    """Sound itself, by strided convolutions of many samples."""
    config = transformers.Wav2Vec2Config(
        hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024,
        conv_dim=(128,) * 7, num_conv_pos_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    return transformers.Wav2Vec2Model(config), (torch.randn(1, 8000),), "input_values"


def _bert_long() -> Made:
    """768 words, where attention is a third of the work."""
    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024,
        max_position_embeddings=1024, attn_implementation="eager",
    )  # fmt: skip
    return _text("BertModel", config, 768)


def _points() -> Made:
    """Four clouds of 4096 points."""
    return _Points(), (torch.randn(4, 3, 4096),), ""


def _speech() -> Made:
    """Five seconds of sound, at the widths of wav2vec2."""
    config = transformers.Wav2Vec2Config(num_hidden_layers=1, attn_implementation="eager")
    return transformers.Wav2Vec2Model(config), (torch.randn(1, 80000),), "input_values"


def _t5() -> Made:
    config = transformers.T5Config(
        d_model=384, d_ff=1024, num_layers=4, num_heads=6, d_kv=64, vocab_size=8000
    )
    return _text("T5EncoderModel", config, 64)


_WIDTHS = [64, 128, 256, 512]
ARCHITECTURES: dict[str, Callable[[], Made]] = {
    "convnext": lambda: _vision("ConvNext", depths=[2, 2, 4, 2], hidden_sizes=_WIDTHS),
    "regnet": lambda: _vision(
        "RegNet", embedding_size=32, hidden_sizes=[64, 128, 288, 672], depths=[1, 2, 4, 1],
        groups_width=16,
    ),
    "swin": lambda: _vision("Swin", embed_dim=64, depths=[2, 2, 4, 2], num_heads=[2, 4, 8, 16]),
    "mobilevit": lambda: _vision("MobileViT", image_size=256),
    "poolformer": lambda: _vision("PoolFormer"),
    "deit_tiny": lambda: _vision(
        "ViT", hidden_size=192, num_attention_heads=3, intermediate_size=768
    ),
    "segformer": _segformer,
    "bert_wide": _bert_wide,
    "unet": lambda: (_UNet(), (torch.randn(1, 3, 192, 192),), ""),
    "super_resolution": _super_resolution,
    "generator": _generator,
    "vocoder": _vocoder,
    "gru": lambda: (_Gru(), (torch.randint(0, 5000, (1, 60)),), ""),
    "efficientnet": lambda: _vision("EfficientNet", width_coefficient=1.0, depth_coefficient=1.0,
                                    image_size=224, hidden_dim=1280),
    "levit": lambda: _vision("Levit"),
    "squeezebert": lambda: _text(
        "SqueezeBertModel", transformers.SqueezeBertConfig(num_hidden_layers=3), 128
    ),
    "mobilebert": lambda: _text(
        "MobileBertModel", transformers.MobileBertConfig(num_hidden_layers=6), 64
    ),
    "bert_long": _bert_long,
    "t5": _t5,
    "whisper": _whisper,
    "wav2vec2": _wav2vec2,
    "speech": _speech,
    "points": _points,
}  # fmt: skip
