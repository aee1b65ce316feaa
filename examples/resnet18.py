"""Write ResNet-18 as ONNX with seeded random weights: a real model's shape without a download.

Run: python examples/resnet18.py resnet18.onnx [--batch 1] [--image-size 224] [--seed 0]
A word as batch (`--batch batch`) makes it a size known at run time.

Source: K. He et al., "Deep Residual Learning for Image Recognition", 2015, table 1; the weights
follow K. He et al., "Delving Deep into Rectifiers", 2015, equation 10.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels, stride of the first block
BLOCKS_PER_STAGE = 2
CLASSES = 1000


class Network:
    """An ONNX graph under construction; every method returns the name of its result."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Append a node."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def weight(self, name: str, value: np.ndarray) -> str:
        """Append a constant."""
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def conv_norm(
        self, name: str, x: str, channels: tuple[int, int], kernel: int, stride: int = 1
    ) -> str:
        """A convolution without bias, and batch normalisation."""
        before, after = channels
        scale = np.sqrt(2 / (before * kernel * kernel))
        shape = (after, before, kernel, kernel)
        weight = self.weight(f"{name}.weight", self.rng.standard_normal(shape) * scale)
        conv = self.node(
            "Conv",
            name,
            x,
            weight,
            kernel_shape=[kernel, kernel],
            pads=[kernel // 2] * 4,
            strides=[stride, stride],
        )
        statistics = {
            "scale": (0.5, 1),
            "bias": (-0.1, 0.1),
            "mean": (-0.1, 0.1),
            "var": (0.8, 1.2),
        }
        operands = [
            self.weight(f"{name}.{part}", self.rng.uniform(low, high, after))
            for part, (low, high) in statistics.items()
        ]
        return self.node("BatchNormalization", f"{name}.norm", conv, *operands)

    def block(self, name: str, x: str, channels: tuple[int, int], stride: int) -> str:
        """Two 3x3 convolutions around a shortcut."""
        before, after = channels
        first = self.conv_norm(f"{name}.conv1", x, channels, 3, stride)
        relu = self.node("Relu", f"{name}.relu1", first)
        second = self.conv_norm(f"{name}.conv2", relu, (after, after), 3)
        if before != after or stride != 1:
            x = self.conv_norm(f"{name}.shortcut", x, channels, 1, stride)
        total = self.node("Add", f"{name}.add", second, x)
        return self.node("Relu", f"{name}.relu2", total)


def resnet18(batch: int | str = 1, image_size: int = 224, seed: int = 0) -> onnx.ModelProto:
    """The model: data [batch, 3, size, size] -> logits [batch, 1000]."""
    net = Network(seed)
    x = net.node("Relu", "stem.relu", net.conv_norm("stem", "data", (3, 64), 7, 2))
    x = net.node("MaxPool", "stem.pool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    before = 64
    for stage, (channels, stride) in enumerate(STAGES):
        for index in range(BLOCKS_PER_STAGE):
            x = net.block(f"stage{stage}.{index}", x, (before, channels), stride)
            before, stride = channels, 1
    x = net.node("Flatten", "features", net.node("GlobalAveragePool", "pool", x), axis=1)
    weight = net.weight("dense.weight", net.rng.standard_normal((CLASSES, before)) / before**0.5)
    bias = net.weight("dense.bias", np.zeros(CLASSES))
    net.node("Gemm", "logits", x, weight, bias, transB=1)

    image = [batch, 3, image_size, image_size]
    graph = helper.make_graph(
        net.nodes,
        "resnet18",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, CLASSES])],
        net.weights,
    )
    model = helper.make_model(
        graph, producer_name="dlc-example", opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8  # the version that came with opset 17
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Parse the arguments and write the file."""
    parser = argparse.ArgumentParser(description="Write ResNet-18 as ONNX, with random weights.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--batch", default="1", help="a number, or the name of a size")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    batch = int(args.batch) if args.batch.isdecimal() else args.batch
    args.output.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(resnet18(batch, args.image_size, args.seed), args.output)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
