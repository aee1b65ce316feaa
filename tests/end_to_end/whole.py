"""Whole networks of well-known kinds, with few channels and small images, as `Network`s."""

from __future__ import annotations

import numpy as np

from tests.end_to_end.networks import Network


class _Text:
    """Collects inputs and statements of a network in ONNX's text form."""

    def __init__(self) -> None:
        self.params: list[str] = []
        self.lines: list[str] = []
        self.values: dict[str, np.ndarray] = {}

    def weight(self, *shape: int) -> str:
        name = f"w_{len(self.params)}"
        self.params.append(f"float[{','.join(map(str, shape))}] {name}")
        return name

    def constant(self, kind: str, array: np.ndarray) -> str:
        name = f"c_{len(self.params)}"
        shape = ",".join(map(str, array.shape))
        self.params.append(f"{kind}[{shape}] {name}" if shape else f"{kind} {name}")
        self.values[name] = array
        return name

    def __call__(self, operator: str, *operands: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {operator}({', '.join(operands)})")
        return name

    def network(self, inputs: str, outputs: str) -> Network:
        body = "\n".join(self.lines)
        text = f"({', '.join([inputs, *self.params])}) => ({outputs}) {{\n{body}\n}}"
        return Network(text, rtol=1e-4, values=self.values)


def _conv(
    t: _Text, x: str, sizes: tuple[int, int], kernel: int, stride: int, group: int = 1
) -> str:
    """A convolution that keeps its image, or halves it, with a bias."""
    given, made = sizes
    w, b = t.weight(made, given // group, kernel, kernel), t.weight(made)
    pad = kernel // 2
    attributes = f"strides=[{stride},{stride}], pads=[{pad},{pad},{pad},{pad}], group={group}"
    return t(f"Conv<{attributes}>", x, w, b)


def _head(t: _Text, x: str, channels: int) -> None:
    flat = t("Flatten", t("GlobalAveragePool", x))
    t.lines.append(f"y = Gemm({flat}, {t.weight(channels, 10)}, {t.weight(10)})")


def residual_network() -> Network:
    """ResNet-18: a stem, four stages of two blocks, a classifier."""
    t = _Text()
    x = t("Relu", _conv(t, "x", (3, 8), 7, 2))
    x = t("MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>", x)
    width = 8
    for stage, channels in enumerate((8, 16, 32, 64)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            inner = t("Relu", _conv(t, x, (width, channels), 3, stride))
            outer = _conv(t, inner, (channels, channels), 3, 1)
            same = (
                x if (width, stride) == (channels, 1) else _conv(t, x, (width, channels), 1, stride)
            )
            x = t("Relu", t("Add", outer, same))
            width = channels
    _head(t, x, width)
    return t.network("float[1,3,40,36] x", "float[1,10] y")


def inverted_residuals() -> Network:
    """MobileNetV2: blocks that widen, convolve each channel alone, and narrow again."""
    t = _Text()
    low, high = t.constant("float", np.float32(0)), t.constant("float", np.float32(6))

    def clipped(x: str) -> str:
        return t("Clip", x, low, high)

    x = clipped(_conv(t, "x", (3, 8), 3, 2))
    width = 8
    for channels, stride in ((8, 1), (12, 2), (12, 1), (20, 2), (20, 1)):
        wide = 6 * width
        y = clipped(_conv(t, x, (width, wide), 1, 1))
        y = clipped(_conv(t, y, (wide, wide), 3, stride, wide))
        y = _conv(t, y, (wide, channels), 1, 1)
        x = t("Add", x, y) if (width, stride) == (channels, 1) else y
        width = channels
    _head(t, clipped(_conv(t, x, (width, 40), 1, 1)), 40)
    return t.network("float[1,3,34,30] x", "float[1,10] y")


def bert(layers: int = 2, width: int = 64, heads: int = 4, length: int = 18) -> Network:
    """BERT: embeddings of words and places, then layers normalised behind each residual."""
    t = _Text()

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
}
