"""Train a small convolutional network on handwritten digits, and write it as ONNX.

The data are the 1,797 scans of 8x8 pixels that come with scikit-learn; the training loop is NumPy.
The results are committed beside this file, so neither the demo nor the tests need this program:

    digits.onnx      the network: image [batch, 1, 8, 8] -> logits [batch, 10]
    digits_test.npz  the 360 images nobody trained on, and their labels
    digits_test.bin  the same for C++: see `write_raw`

Run: python examples/digits/train.py    (needs scikit-learn; about ten seconds)
Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI repository, 1998.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

Array = NDArray[np.float32]
Labels = NDArray[np.int64]
Params = dict[str, Array]

HERE = Path(__file__).parent
SEED = 20
HELD_BACK = 360
EPOCHS = 60
BATCH = 32
PEAK_RATE = 3e-3
WEIGHT_DECAY = 1e-3
CHANNELS = (16, 32)
CLASSES = 10


def initial_params(rng: np.random.Generator) -> Params:
    """He-normal weights and zero biases."""
    first, second = CHANNELS
    shapes = {
        "conv1": (first, 1, 3, 3),
        "conv2": (second, first, 3, 3),
        "dense": (CLASSES, second * 4),
    }
    params: Params = {}
    for name, shape in shapes.items():
        fan_in = int(np.prod(shape[1:]))
        scale = np.sqrt(2 / fan_in)
        params[f"{name}.weight"] = (rng.standard_normal(shape) * scale).astype(np.float32)
        params[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    return params


def patches(x: Array) -> Array:
    """The 3x3 neighbourhood of every pixel, zeros outside: [n, h, w, c * 9]."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


class ConvReluPool:
    """A 3x3 convolution, ReLU and 2x2 max pooling, forwards and backwards."""

    def __init__(self, params: Params, name: str) -> None:
        self.params = params
        self.name = name

    def forward(self, x: Array) -> Array:
        """Compute the layer and keep what `backward` needs."""
        weight, bias = self.params[f"{self.name}.weight"], self.params[f"{self.name}.bias"]
        self.columns = patches(x)
        conv = self.columns @ weight.reshape(len(weight), -1).T + bias
        n, h, w, c = conv.shape
        windows = conv.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 5, 2, 4)
        windows = np.maximum(windows.reshape(n, h // 2, w // 2, c, 4), 0)
        self.argmax = windows.argmax(-1)[..., None]
        self.pooled = windows.max(-1)
        return np.asarray(self.pooled.transpose(0, 3, 1, 2), np.float32)

    def backward(self, grad: Array) -> tuple[Array, Params]:
        """The gradients of the input and of the parameters."""
        weight = self.params[f"{self.name}.weight"]
        n, c, h, w = grad.shape
        passed = grad.transpose(0, 2, 3, 1) * (self.pooled > 0)
        windows = np.zeros((n, h, w, c, 4), np.float32)
        np.put_along_axis(windows, self.argmax, passed[..., None], -1)
        spread = windows.reshape(n, h, w, c, 2, 2).transpose(0, 1, 4, 2, 5, 3)
        conv = spread.reshape(n, 2 * h, 2 * w, c)
        flat = conv.reshape(-1, c)
        columns = self.columns.reshape(len(flat), -1)
        grads = {
            f"{self.name}.weight": (flat.T @ columns).reshape(weight.shape),
            f"{self.name}.bias": flat.sum(0),
        }
        turned = weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3).reshape(weight.shape[1], -1)
        back = patches(np.ascontiguousarray(conv.transpose(0, 3, 1, 2))) @ turned.T
        return back.transpose(0, 3, 1, 2), grads


def forward(params: Params, x: Array) -> Array:
    """The logits."""
    for name in ("conv1", "conv2"):
        x = ConvReluPool(params, name).forward(x)
    return x.reshape(len(x), -1) @ params["dense.weight"].T + params["dense.bias"]


def gradients(params: Params, x: Array, labels: Labels) -> Params:
    """Gradients of the mean cross-entropy."""
    layers = [ConvReluPool(params, "conv1"), ConvReluPool(params, "conv2")]
    for layer in layers:
        x = layer.forward(x)
    features = x.reshape(len(x), -1)
    logits = features @ params["dense.weight"].T + params["dense.bias"]
    exp = np.exp(logits - logits.max(1, keepdims=True))
    error = (exp / exp.sum(1, keepdims=True) - np.eye(CLASSES)[labels]).astype(np.float32) / len(x)
    grads = {"dense.weight": error.T @ features, "dense.bias": error.sum(0)}
    grad = (error @ params["dense.weight"]).reshape(x.shape)
    for layer in reversed(layers):
        grad, own = layer.backward(grad)
        grads |= own
    return grads


def shifted(x: Array, rng: np.random.Generator) -> Array:
    """The images moved by up to one pixel sideways and up or down."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    down, right = rng.integers(0, 3, (2, len(x)))
    return np.stack(
        [image[:, a : a + 8, b : b + 8] for image, a, b in zip(padded, down, right, strict=True)]
    )


def train(x: Array, labels: Labels, rng: np.random.Generator) -> Params:
    """AdamW with a cosine learning rate.

    Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", algorithm 2.
    """
    params = initial_params(rng)
    mean = {name: np.zeros_like(value) for name, value in params.items()}
    square = {name: np.zeros_like(value) for name, value in params.items()}
    total = EPOCHS * (len(x) // BATCH)
    for step in range(1, total + 1):
        chosen = rng.integers(0, len(x), BATCH)
        rate = PEAK_RATE * (1 + np.cos(np.pi * step / total)) / 2
        for name, grad in gradients(params, shifted(x[chosen], rng), labels[chosen]).items():
            mean[name] += 0.1 * (grad - mean[name])
            square[name] += 0.001 * (grad**2 - square[name])
            update = (mean[name] / (1 - 0.9**step)) / (
                np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
            )
            params[name] -= np.float32(rate) * (update + WEIGHT_DECAY * params[name])
    return params


def onnx_model(params: Params) -> onnx.ModelProto:
    """The network as ONNX, opset 17."""

    def block(index: int, source: str) -> list[onnx.NodeProto]:
        conv, relu, pool = (f"{kind}{index}" for kind in ("conv", "relu", "pool"))
        operands = [source, f"{conv}.weight", f"{conv}.bias"]
        same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        half: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
        return [
            helper.make_node("Conv", operands, [conv], conv, **same),
            helper.make_node("Relu", [conv], [relu], relu),
            helper.make_node("MaxPool", [relu], [pool], pool, **half),
        ]

    nodes = [
        *block(1, "image"),
        *block(2, "pool1"),
        helper.make_node("Flatten", ["pool2"], ["features"], "flatten", axis=1),
        helper.make_node(
            "Gemm", ["features", "dense.weight", "dense.bias"], ["logits"], "dense", transB=1
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in params.items()],
    )
    model = helper.make_model(
        graph, producer_name="dlc-example", opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8  # the version that came with opset 17
    onnx.checker.check_model(model, full_check=True)
    return model


def write_raw(path: Path, pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    """Write images as C++ reads them: all integers little endian.

    "DGT1", uint32 count, height, width; then `count` labels of one byte; then the images, row by
    row, one byte per pixel, 0 (paper) to 16 (ink).
    """
    count, height, width = pixels.shape
    path.write_bytes(
        b"DGT1" + struct.pack("<III", count, height, width) + labels.tobytes() + pixels.tobytes()
    )


def main() -> None:
    """Train, test and write."""
    data = load_digits()
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(data.images))
    pixels = data.images[order].astype(np.uint8)
    labels = data.target[order].astype(np.int64)
    x = (pixels[:, None] / 16).astype(np.float32)

    params = train(x[HELD_BACK:], labels[HELD_BACK:], rng)
    accuracy = (forward(params, x[:HELD_BACK]).argmax(1) == labels[:HELD_BACK]).mean()
    print(f"accuracy over {HELD_BACK} held-back images: {accuracy:.2%}")

    held_pixels, held_labels = pixels[:HELD_BACK], labels[:HELD_BACK].astype(np.uint8)
    onnx.save(onnx_model(params), HERE / "digits.onnx")
    np.savez_compressed(HERE / "digits_test.npz", pixels=held_pixels, labels=held_labels)
    write_raw(HERE / "digits_test.bin", held_pixels, held_labels)


if __name__ == "__main__":
    main()
