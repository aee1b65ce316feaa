"""Export well-known architectures with seeded random weights: needs torch and transformers.

Latency does not depend on what weights are, as long as no value overflows or is denormal. The
statistics of batch norms are drawn too, so that folding them is no shortcut.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.cpu.architectures import ARCHITECTURES

Example = tuple[torch.Tensor, ...]
SEQUENCE, WORDS, CLASSES = 128, 30000, 1000
_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions


class _Only(torch.nn.Module):  # type: ignore[misc]  # torch is not looked into
    """A model of transformers, with tensors in and one tensor out."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        out = self.model(**dict(zip(self.names, arrays, strict=True)))
        found: torch.Tensor = out.logits if "logits" in out else out.last_hidden_state
        return found


class _Lstm(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(128, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layers(x)[0])
        return found


def _image() -> Example:
    return (torch.randn(1, 3, 224, 224),)


def _text() -> Example:
    return torch.randint(0, WORDS, (1, SEQUENCE)), torch.ones(1, SEQUENCE, dtype=torch.long)


def _vision(kind: type, config: object) -> tuple[torch.nn.Module, Example]:
    return _Only(kind(config), ("pixel_values",)), _image()


def _bert(**sizes: int) -> tuple[torch.nn.Module, Example]:
    config = transformers.BertConfig(attn_implementation="eager", **sizes)
    return _Only(transformers.BertModel(config), ("input_ids", "attention_mask")), _text()


def _vgg16() -> tuple[torch.nn.Module, Example]:
    layers: list[torch.nn.Module] = []
    before = 3
    for channels, count in _VGG16:
        for _ in range(count):
            layers += [torch.nn.Conv2d(before, channels, 3, padding=1), torch.nn.ReLU()]
            before = channels
        layers.append(torch.nn.MaxPool2d(2, 2))
    layers.append(torch.nn.Flatten())
    for inputs, outputs in ((before * 49, 4096), (4096, 4096)):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(4096, CLASSES)), _image()


_T = transformers
_MADE: dict[str, Callable[[], tuple[torch.nn.Module, Example]]] = {
    "resnet18": lambda: _vision(
        _T.ResNetForImageClassification,
        _T.ResNetConfig(
            depths=[2, 2, 2, 2],
            hidden_sizes=[64, 128, 256, 512],
            layer_type="basic",
            num_labels=CLASSES,
        ),
    ),
    "resnet50": lambda: _vision(
        _T.ResNetForImageClassification, _T.ResNetConfig(num_labels=CLASSES)
    ),
    "mobilenet_v1": lambda: _vision(
        _T.MobileNetV1ForImageClassification,
        _T.MobileNetV1Config(num_labels=CLASSES, tf_padding=False),
    ),
    "mobilenet_v2": lambda: _vision(
        _T.MobileNetV2ForImageClassification,
        _T.MobileNetV2Config(num_labels=CLASSES, tf_padding=False),
    ),
    "vgg16": _vgg16,
    "bert_base": _bert,
    "minilm_l6": lambda: _bert(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ),
    "vit_b16": lambda: _vision(_T.ViTForImageClassification, _T.ViTConfig(num_labels=CLASSES)),
    "lstm": lambda: (_Lstm(), (torch.randn(1, 50, 128),)),
}
_OPEN = {"minilm_l6": {0: "batch", 1: "seq"}}


def _made(name: str) -> tuple[torch.nn.Module, Example]:
    if name in _MADE:
        return _MADE[name]()
    model, arrays, first = ARCHITECTURES[name]()
    return (_Only(model, (first,)) if first else model), arrays


def export(name: str, path: Path) -> None:
    """Write a model as ONNX."""
    torch.manual_seed(0)
    model, arrays = _made(name)
    for part in model.eval().modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    names = list(getattr(model, "names", ("x",)))
    options: dict[str, Any] = {}
    if name in _OPEN:
        options["dynamic_axes"] = {n: _OPEN[name] for n in names}
    with torch.no_grad():
        torch.onnx.export(
            model,
            arrays,
            str(path),
            input_names=names,
            output_names=["y"],
            opset_version=17,
            dynamo=False,
            **options,
        )
