"""A small decoder as exporters write it: two layers, four heads that share two of keys, caches."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, PLACES, WIDTH, HEADS, SHARED, SIZE, LAYERS = 50, 64, 32, 4, 2, 8, 2


class _Network:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    def heads(self, x: str, count: int) -> str:
        """[batch, n, WIDTH] -> [batch, count, n, SIZE], projected."""
        y = self.node("MatMul", x, self.weight(WIDTH, count * SIZE))
        y = self.node("Reshape", y, self.constant([0, 0, count, SIZE]))
        return self.node("Transpose", y, perm=[0, 2, 1, 3])

    def repeated(self, x: str) -> str:
        """[batch, SHARED, n, SIZE] -> [batch, HEADS, n, SIZE]."""
        apart = self.node("Unsqueeze", x, self.constant([2]))
        many = self.node("Expand", apart, self.constant([1, 1, HEADS // SHARED, 1, 1]))
        batch = self.node("Slice", self.node("Shape", x), *(self.constant([n]) for n in (0, 1)))
        rest = self.constant([HEADS, -1, SIZE])
        return self.node("Reshape", many, self.node("Concat", batch, rest, axis=0))

    def attention(self, x: str, mask: str, layer: int) -> str:
        q, k, v = (self.heads(x, count) for count in (HEADS, SHARED, SHARED))
        past = f"past_key_values.{layer}"
        k = self.node("Concat", f"{past}.key", k, axis=2, name=f"present.{layer}.key")
        v = self.node("Concat", f"{past}.value", v, axis=2, name=f"present.{layer}.value")
        root = self.constant(SIZE**-0.25, np.float32)
        turned = self.node("Transpose", self.repeated(k), perm=[0, 1, 3, 2])
        q, turned = (self.node("Mul", factor, root) for factor in (q, turned))
        scores = self.node("Add", self.node("MatMul", q, turned), mask)
        weights = self.node("Softmax", scores, axis=-1)
        y = self.node("MatMul", weights, self.repeated(v))
        y = self.node("Transpose", y, perm=[0, 2, 1, 3])
        y = self.node("Reshape", y, self.constant([0, 0, HEADS * SIZE]))
        return self.node("MatMul", y, self.weight(HEADS * SIZE, WIDTH))


def decoder() -> onnx.ModelProto:
    """The model: tokens, their places and caches -> logits and longer caches."""
    net = _Network()
    x = net.node("Gather", net.weight(WORDS, WIDTH), "input_ids")
    x = net.node("Add", x, net.node("Gather", net.weight(PLACES, WIDTH), "position_ids"))
    whole = net.node("Shape", "attention_mask", start=1)
    key = net.node("Range", net.constant(0), net.node("Squeeze", whole), net.constant(1))
    place = net.node("Unsqueeze", "position_ids", net.constant([1, 3]))
    seen = net.node("LessOrEqual", key, place)  # [batch, 1, n, keys]
    zero, low = (net.constant(value, np.float32) for value in (0, -1e9))
    mask = net.node("Where", seen, zero, low)
    for layer in range(LAYERS):
        x = net.node("Add", x, net.attention(x, mask, layer))
        wide = net.node("Relu", net.node("MatMul", x, net.weight(WIDTH, 2 * WIDTH)))
        x = net.node("Add", x, net.node("MatMul", wide, net.weight(2 * WIDTH, WIDTH)))
    net.node("MatMul", x, net.weight(WIDTH, WORDS), name="logits")

    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    caches = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes,
        "decoder",
        [
            value("input_ids", i64, ["batch", "new"]),
            value("attention_mask", i64, ["batch", "keys"]),
            value("position_ids", i64, ["batch", "new"]),
            *(value(f"past_key_values.{c}", f32, ["batch", SHARED, "past", SIZE]) for c in caches),
        ],
        [
            value("logits", f32, ["batch", "new", WORDS]),
            *(value(f"present.{c}", f32, ["batch", SHARED, "keys", SIZE]) for c in caches),
        ],
        net.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model
