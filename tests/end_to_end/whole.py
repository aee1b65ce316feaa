"""Whole networks of well-known kinds, with few channels and small images, as `Network`s."""

from __future__ import annotations

import numpy as np

from tests.end_to_end.network_text import Text, conv
from tests.end_to_end.networks import Network
from tests.end_to_end.silero import silero
from tests.end_to_end.yolox import yolox


def _head(t: Text, x: str, channels: int) -> None:
    flat = t("Flatten", t("GlobalAveragePool", x))
    t.lines.append(f"y = Gemm({flat}, {t.weight(channels, 10)}, {t.weight(10)})")


def residual_network() -> Network:
    """ResNet-18: a stem, four stages of two blocks, a classifier."""
    t = Text()
    x = t("Relu", conv(t, "x", (3, 8), 7, 2))
    x = t("MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>", x)
    width = 8
    for stage, channels in enumerate((8, 16, 32, 64)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            inner = t("Relu", conv(t, x, (width, channels), 3, stride))
            outer = conv(t, inner, (channels, channels), 3, 1)
            same = (
                x if (width, stride) == (channels, 1) else conv(t, x, (width, channels), 1, stride)
            )
            x = t("Relu", t("Add", outer, same))
            width = channels
    _head(t, x, width)
    return t.network("float[1,3,40,36] x", "float[1,10] y")


def inverted_residuals() -> Network:
    """MobileNetV2: blocks that widen, convolve each channel alone, and narrow again."""
    t = Text()
    low, high = t.constant("float", np.float32(0)), t.constant("float", np.float32(6))

    def clipped(x: str) -> str:
        return t("Clip", x, low, high)

    x = clipped(conv(t, "x", (3, 8), 3, 2))
    width = 8
    for channels, stride in ((8, 1), (12, 2), (12, 1), (20, 2), (20, 1)):
        wide = 6 * width
        y = clipped(conv(t, x, (width, wide), 1, 1))
        y = clipped(conv(t, y, (wide, wide), 3, stride, wide))
        y = conv(t, y, (wide, channels), 1, 1)
        x = t("Add", x, y) if (width, stride) == (channels, 1) else y
        width = channels
    _head(t, clipped(conv(t, x, (width, 40), 1, 1)), 40)
    return t.network("float[1,3,34,30] x", "float[1,10] y")


def bert(layers: int = 2, width: int = 64, heads: int = 4, length: int = 18) -> Network:
    """BERT: embeddings of words and places, then layers normalised behind each residual."""
    t = Text()

    def normal(x: str) -> str:
        scale, bias = t.weight(width), t.weight(width)
        return t("LayerNormalization<axis=-1, epsilon=0.00001>", x, scale, bias)

    def dense(x: str, given: int, made: int) -> str:
        return t("Add", t("MatMul", x, t.weight(given, made)), t.weight(made))

    def split(x: str, perm: str) -> str:
        return t(f"Transpose<perm=[{perm}]>", t("Reshape", x, apart))

    apart = t.constant("int64", np.array([1, length, heads, width // heads]))
    flat = t.constant("int64", np.array([1, length, width]))
    root, half = (t.constant("float", np.float32(n)) for n in (2**0.5, 0.5))
    one, scale = (t.constant("float", np.float32(n)) for n in (1, (width // heads) ** -0.5))
    x = normal(t("Add", t("Gather", t.weight(5, width), "ids"), t.weight(1, length, width)))
    for _ in range(layers):
        q, v = (split(dense(x, width, width), "0,2,1,3") for _ in range(2))
        k = split(dense(x, width, width), "0,2,3,1")
        scores = t("Add", t("Mul", t("MatMul", q, k), scale), "mask")
        mixed = t("MatMul", t("Softmax<axis=-1>", scores), v)
        joined = t("Reshape", t("Transpose<perm=[0,2,1,3]>", mixed), flat)
        x = normal(t("Add", dense(joined, width, width), x))
        up = dense(x, width, 2 * width)
        bent = t("Add", t("Erf", t("Div", up, root)), one)
        gelu = t("Mul", t("Mul", up, bent), half)
        x = normal(t("Add", dense(gelu, 2 * width, width), x))
    t.lines.append(f"y = Identity({x})")
    inputs = f"int64[1,{length}] ids, float[1,1,1,{length}] mask"
    return t.network(inputs, f"float[1,{length},{width}] y")


# With the launches that each has on a GPU at most.
WHOLE = {
    "residual network": (residual_network, 24),
    "inverted residuals": (inverted_residuals, 21),
    "bert": (bert, 11),
    "yolox": (yolox, 120),
    "silero": (silero, 36),
}
