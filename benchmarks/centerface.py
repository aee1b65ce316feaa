"""CenterFace, a detector of faces, in PyTorch: MobileNetV2 without its last layer, three steps back
up to a quarter of the image, four heads.

Source: Xu et al., "CenterFace: Joint Face Detection and Alignment Using Face as Point" (2019).
Activations are ReLU, as in the ONNX models that are about.
"""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")  # not among the packages that are checked
nn: Any = torch.nn
Module: Any = nn.Module

SIZE = (544, 960)  # height and width of the image
# By stage: blocks, channels, the stride of the first one, and by how much blocks widen.
# Source: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), table 2.
STAGES = (
    (1, 16, 1, 1), (2, 24, 2, 6), (3, 32, 2, 6), (4, 64, 2, 6), (3, 96, 1, 6), (3, 160, 2, 6),
    (1, 320, 1, 6),
)  # fmt: skip
JOINED = (4, 2, 1)  # the stages whose results are added on the way up
HEADS = {"heatmap": 1, "scale": 2, "offset": 2, "landmarks": 10}
WIDTH = 24  # channels on the way up


def _layer(
    given: int, made: int, kernel: int, stride: int = 1, groups: int = 1, *, bent: bool = True
) -> list[Any]:
    conv = nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(made), *([nn.ReLU()] if bent else [])]


class _Block(Module):  # type: ignore[misc]
    def __init__(self, given: int, made: int, stride: int, widen: int) -> None:
        super().__init__()
        inner = given * widen
        wide = _layer(given, inner, 1) if widen > 1 else []
        apart = _layer(inner, inner, 3, stride, inner)
        self.layers = nn.Sequential(*wide, *apart, *_layer(inner, made, 1, bent=False))
        self.is_added = stride == 1 and given == made

    def forward(self, x: Any) -> Any:
        y = self.layers(x)
        return x + y if self.is_added else y


class _Up(Module):  # type: ignore[misc]
    def __init__(self, beside: int) -> None:
        super().__init__()
        twice = nn.ConvTranspose2d(WIDTH, WIDTH, 2, 2, bias=False)
        self.twice = nn.Sequential(twice, nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.beside = nn.Sequential(*_layer(beside, WIDTH, 1))

    def forward(self, x: Any, beside: Any) -> Any:
        return self.twice(x) + self.beside(beside)


class _CenterFace(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_layer(3, 32, 3, 2))
        self.stages = nn.ModuleList()
        given, widths = 32, []
        for count, made, stride, widen in STAGES:
            blocks = [_Block(given, made, stride, widen)]
            blocks += [_Block(made, made, 1, widen) for _ in range(count - 1)]
            self.stages.append(nn.Sequential(*blocks))
            given = made
            widths.append(made)
        self.top = nn.Sequential(*_layer(given, WIDTH, 1))
        self.ups = nn.ModuleList(_Up(widths[stage]) for stage in JOINED)
        self.last = nn.Sequential(*_layer(WIDTH, WIDTH, 3))
        self.heads = nn.ModuleList(nn.Conv2d(WIDTH, n, 1) for n in HEADS.values())

    def forward(self, x: Any) -> dict[str, Any]:
        x = self.stem(x)
        results = []
        for stage in self.stages:
            x = stage(x)
            results.append(x)
        x = self.top(x)
        for up, stage in zip(self.ups, JOINED, strict=True):
            x = up(x, results[stage])
        x = self.last(x)
        found = {name: head(x) for name, head in zip(HEADS, self.heads, strict=True)}
        found["heatmap"] = found["heatmap"].sigmoid()
        return found


def center_face() -> Any:
    """The network with random weights; it gives a tensor for each of `HEADS`."""
    made = _CenterFace()
    for part in made.modules():
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(part.weight)
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None  # statistics are those of all that it has seen
    with torch.no_grad():
        made(torch.rand(1, 3, 128, 160))  # else layers would shrink or grow what they are given
    return made.eval()
