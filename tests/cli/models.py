"""Files for the tests of the command line: models good and bad, artefacts good and damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import dlc.compiler


def perceptron(bias: float = 1.0) -> onnx.ModelProto:
    """relu(x @ w + b) with small integers, so that every engine gives the same bits."""
    weights = np.arange(-7, 8).reshape(5, 3).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="dense"),
        helper.make_node("Relu", ["h"], ["y"], name="rectify"),
    ]
    constants = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.full(3, bias, np.float32), "b"),
    ]
    return model(nodes, ["x"], ["y"], constants, ("batch", 5), ("batch", 3))


def unsupported() -> onnx.ModelProto:
    """Three nodes nobody can compile, one behind the other, and some that could be."""
    nodes = [
        helper.make_node("Fancy", ["x"], ["a"], name="first", domain="com.example"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="product"),
        helper.make_node("Plain", ["b"], ["c"], name="second", domain="com.example", size=3),
        helper.make_node("Relu", ["c"], ["d"], name="middle"),
        helper.make_node("LpNormalization", ["b"], ["e"], name="third", p=3),
        helper.make_node("Add", ["d", "e"], ["y"], name="sum"),
    ]
    weights = [numpy_helper.from_array(np.ones((8, 5), np.float32), "w")]
    made = model(nodes, ["x"], ["y"], weights, ("batch", 5), ("batch", 5))
    made.graph.value_info.append(
        helper.make_tensor_value_info("a", TensorProto.FLOAT, ("batch", 8))
    )
    made.opset_import.append(helper.make_opsetid("com.example", 1))
    return made


def model(nodes, inputs, outputs, constants, shape, out_shape) -> onnx.ModelProto:
    def declare(names, dims):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in names]

    graph = helper.make_graph(
        nodes, "main", declare(inputs, shape), declare(outputs, out_shape), constants
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="tests")


def write_files(folder: Path) -> None:
    """Everything the screens name."""
    onnx.save(perceptron(), folder / "mlp.onnx")
    onnx.save(perceptron(bias=50.0), folder / "other.onnx")
    onnx.save(unsupported(), folder / "unsupported.onnx")
    (folder / "notes.onnx").write_text("this is no model, but a text of some length\n" * 3)
    whole = (folder / "mlp.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(whole[: len(whole) - 9])
    dlc.compiler.build(folder / "mlp.onnx", folder / "mlp.so")
    artefact = (folder / "mlp.so").read_bytes()
    (folder / "cut.so").write_bytes(artefact[: len(artefact) // 2])
    changed = bytearray(artefact)
    changed[len(changed) // 2] ^= 1
    (folder / "changed.so").write_bytes(bytes(changed))
    ones = np.ones((2, 5), np.float32)
    np.save(folder / "ones.npy", ones)
    np.save(folder / "double.npy", ones.astype(np.float64))
    np.save(folder / "wide.npy", np.ones((2, 6), np.float32))
    np.save(folder / "row.npy", np.ones(5, np.float32))
    np.save(folder / "wrong_y.npy", np.zeros((2, 3), np.float32))
