"""Sizes in tensors: followed through arithmetic, shapes and slices."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from dlc.core.errors import ModelError
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.conditions import conditions
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import NODE, graph_of, model, one, ops_of, refusals


def test_a_chain_of_shapes_becomes_one_reshape():
    """What torch exports for `x.view(batch, seq, 4, -1)`."""
    nodes = [
        NODE("Shape", ["x"], ["s"]),
        NODE("Gather", ["s", "zero"], ["batch"]),
        NODE("Shape", ["x"], ["s2"], start=1, end=2),
        NODE("Unsqueeze", ["batch", "axis"], ["batch1"]),
        NODE("Concat", ["batch1", "s2", "four", "rest"], ["shape"], axis=0),
        NODE("Cast", ["shape"], ["shape32"], to=TensorProto.INT32),
        NODE("Cast", ["shape32"], ["shape64"], to=TensorProto.INT64),
        NODE("Reshape", ["x", "shape64"], ["y"]),
    ]
    constants = {
        "zero": np.int64(0), "axis": np.int64([0]), "four": np.int64([4]), "rest": np.int64([-1]),
    }  # fmt: skip
    graph = graph_of(model(nodes, {"x": ("batch", "seq", 20)}, constants))
    assert ops_of(graph) == ["reshape"]
    assert str(graph.outputs[0].type) == "f32[batch, seq, 4, 5]"
    assert not graph.constants


def test_sizes_are_computed_where_a_kernel_reads_them():
    nodes = [
        NODE("Shape", ["x"], ["s"]),
        NODE("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        NODE("ReduceSum", ["f"], ["total"], keepdims=0),
        NODE("Mul", ["x", "total"], ["y"]),
    ]
    graph = graph_of(model(nodes, {"x": ("n", 3)}))
    for n in (0, 1, 4):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], x * (n + 3))


ARITHMETIC = {
    "(n + 3) * n": [("Add", "n", "c3"), ("Mul", "_", "n")],
    "n * 3 - n": [("Mul", "n", "c3"), ("Sub", "_", "n")],
    "n // 3": [("Div", "n", "c3")],
    "n % 3": [("Mod", "n", "c3")],
    "max(n, 3)": [("Max", "n", "c3")],
    "min(n, 3)": [("Min", "n", "c3")],
    "(7 if n == 3 else n)": [("Equal", "n", "c3"), ("Where", "_", "c7", "n")],
    "(7 if n < 3 else n)": [("Less", "n", "c3"), ("Where", "_", "c7", "n")],
    "(7 if not n > 3 else n)": [("Greater", "n", "c3"), ("Not", "_"), ("Where", "_", "c7", "n")],
}


@pytest.mark.parametrize("formula", ARITHMETIC)
def test_arithmetic_on_sizes_is_followed(formula):
    """Expand to a computed size: without knowing it, the model would be refused."""
    nodes = [NODE("Shape", ["x"], ["n"])]
    last = "n"
    for number, (op, *operands) in enumerate(ARITHMETIC[formula]):
        nodes.append(NODE(op, [last if o == "_" else o for o in operands], [f"t{number}"]))
        last = f"t{number}"
    nodes += [NODE("Expand", ["one", last], ["y"])]
    constants = {"c3": np.int64([3]), "c7": np.int64([7]), "one": one([1])}
    graph = graph_of(model(nodes, {"x": ("n",)}, constants))
    for n in (0, 1, 2, 3, 4, 11):
        size = eval(formula, {"n": n, "max": max, "min": min})
        if size == 1 or (size == 0 and n == 0):
            continue  # a size of 1 and an empty result are the same for every formula
        found = evaluate(graph, {"x": np.zeros(n, np.float32)})["y"]
        assert found.shape == (size,), n


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_arithmetic_that_may_meet_a_negative_size_is_not_followed(op):
    """ONNX truncates, sizes floor: (n - 5) / 3 is 0 there and -1 here for n = 4."""
    nodes = [
        NODE("Shape", ["x"], ["n"]),
        NODE("Sub", ["n", "five"], ["less"]),
        NODE(op, ["less", "three"] if op == "Div" else ["five", "less"], ["q"]),
        NODE("Expand", ["one", "q"], ["y"]),
    ]
    constants = {"five": np.int64([5]), "three": np.int64([3]), "one": one([1])}
    graph = graph_of(model(nodes, {"x": ("n",)}, constants))
    assert "bind_sizes" in ops_of(graph)  # a kernel computes it, as ONNX does
    for n, size in ((4, 0), (8, 1), (11, 2)) if op == "Div" else ((4, 0), (7, 1), (8, 2)):
        found = evaluate(graph, {"x": np.zeros(n, np.float32)})["y"]
        assert found.shape == (size,), n


def test_a_shape_of_unknown_rank_is_refused_with_the_reason():
    nodes = [NODE("Reshape", ["x", "s"], ["y"])]
    (message,) = refusals(model(nodes, {"x": (6,), "s": ("n",)}, kinds={"s": "i"}))
    assert "known only at run time" in message


@pytest.mark.parametrize(
    ("shape", "wanted", "result"),
    [
        (("n", 6), [0, -1], "n, 6"),
        (("n", 6), [-1], "n * 6"),
        (("n", 6), [-1, 3], "n * 2, 3"),
        (("n", "m", 6), [0, -1], "n, m * 6"),
        (("n", "m", 6), [-1, 2, 3], "m * n, 2, 3"),
        (("n", 6), [0, 2, 3], "n, 2, 3"),
        ((4, 6), [2, -1, 3], "2, 4, 3"),
    ],
)
def test_minus_one_and_zero_are_resolved_exactly(shape, wanted, result):
    nodes = [NODE("Reshape", ["x", "s"], ["y"])]
    graph = graph_of(model(nodes, {"x": shape}, {"s": np.int64(wanted)}))
    assert str(graph.outputs[0].type) == f"f32[{result}]"


@pytest.mark.parametrize(
    ("shape", "wanted", "word"),
    [
        ((3, 6), [-1, 4], "no whole number"),
        (("n", 6), [7, 5], "has 35"),
        ((4, 6), [5, 5], "has 25"),
        ((4, 6), [-1, -1], "more than one"),
        ((4, 6), [-2, 2], "negative"),
        ((4, 6), [24, 1, 0], "size 0 at axis 2"),
    ],
)
def test_shapes_that_may_not_fit_are_refused(shape, wanted, word):
    nodes = [NODE("Reshape", ["x", "s"], ["y"])]
    (message,) = refusals(model(nodes, {"x": shape}, {"s": np.int64(wanted)}))
    assert word in message


def test_the_only_size_with_a_meaning_is_taken(caplog):
    """Exporters leave the batch open, and then write [1, -1] into a Reshape."""
    nodes = [NODE("Reshape", ["x", "s"], ["flat"]), NODE("Squeeze", ["flat"], ["y"], axes=[0])]
    proto = model(nodes, {"x": ("N", 6)}, {"s": np.int64([1, 6])}, opset=11)
    found = import_model(load_model(proto))
    assert str(found.graph.inputs[0].type) == "f32[1, 6]"
    assert found.graph.sizes == ()
    assert "dimension 'N' is fixed to 1" in caplog.text
    with pytest.raises(ModelError, match="N = 1 only"):
        graph_of(proto, dims={"N": (2, 8)})
    assert "has 12 elements" in refusals(proto, dims={"N": 2})[0]


def test_an_axis_that_is_squeezed_has_size_1():
    proto = model([NODE("Squeeze", ["x"], ["y"], axes=[0])], {"x": ("N", "M")}, opset=11)
    assert str(graph_of(proto).inputs[0].type) == "f32[1, M]"
    assert "must have size 1" in refusals(proto, dims={"N": 3})[0]


def test_a_run_checks_the_shapes_that_some_sizes_do_not_fill():
    nodes = [NODE("Reshape", ["x", "s"], ["y"])]
    proto = model(nodes, {"x": ("n", 6)}, {"s": np.int64([-1, 4])})
    (found,) = conditions(graph_of(proto))
    assert [n for n in range(7) if eval(str(found.cond), {}, {"n": n})] == [0, 2, 4, 6]
    assert str(graph_of(proto, dims={"n": 2}).outputs[0].type) == "f32[3, 4]"


@pytest.mark.parametrize("n", [0, 1, 2, 5, 9])
@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (0, 4, 1), (1, -1, 1), (-3, 1 << 62, 1), (2, 1000000000, 2), (-1, -(1 << 62), -1),
        (4, 0, -2), (-2, -5, -1), (3, 3, 1), (0, 2147483647, 3),
    ],
)  # fmt: skip
def test_slices_fit_any_size(n, start, end, step):
    nodes = [NODE("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])]
    constants = {
        "starts": np.int64([start]), "ends": np.int64([end]),
        "axes": np.int64([-1]), "steps": np.int64([step]),
    }  # fmt: skip
    graph = graph_of(model(nodes, {"x": (2, "n")}, constants))
    x = np.arange(2 * n, dtype=np.float32).reshape(2, n)
    wanted = x[:, onnx_slice(n, start, end, step)]
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], wanted)


def onnx_slice(n: int, start: int, end: int, step: int) -> list[int]:
    """The indices as ONNX defines them; backwards, a start before the first is the first.

    Source: https://onnx.ai/onnx/operators/onnx__Slice.html
    """
    start, end = (v + n if v < 0 else v for v in (start, end))
    if step > 0:
        return list(range(min(max(start, 0), n), min(max(end, 0), n), step))
    return list(range(min(max(start, 0), n - 1), min(max(end, -1), n - 1), step)) if n else []


def test_a_promised_range_makes_a_slice_certain():
    """The causal mask of a decoder with a cache: row seq of an 8 by 8 triangle."""
    nodes = [
        NODE("Shape", ["x"], ["from"]),
        NODE("Add", ["from", "one"], ["to"]),
        NODE("Slice", ["mask", "from", "to", "zero"], ["row"]),
        NODE("Reshape", ["row", "flat"], ["y"]),
    ]
    constants = {
        "one": np.int64([1]), "zero": np.int64([0]), "flat": np.int64([8]),
        "mask": np.tri(8, dtype=np.float32),
    }  # fmt: skip
    proto = model(nodes, {"x": ("seq",)}, constants)
    assert conditions(graph_of(proto)) != []
    graph = graph_of(proto, dims={"seq": (0, 7)})
    assert conditions(graph) == []
    found = evaluate(graph, {"x": np.zeros(3, np.float32)})["y"]
    np.testing.assert_array_equal(found, np.tri(8)[3])


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_product_of_sizes_is_followed(keepdims):
    nodes = [
        NODE("Shape", ["x"], ["s"]),
        NODE("ReduceProd", ["s"], ["n"], keepdims=keepdims),
        NODE("Reshape", ["n", "one"], ["n1"]),
        NODE("Reshape", ["x", "n1"], ["y"]),
    ]
    graph = graph_of(model(nodes, {"x": ("a", "b", 3)}, {"one": np.int64([1])}))
    assert ops_of(graph) == ["reshape"]
    assert str(graph.outputs[0].type) == "f32[a * b * 3]"


def test_constants_are_folded_and_what_is_random_is_not():
    nodes = [
        NODE("Constant", [], ["c"], value_floats=[1.0, 2.0]),
        NODE("Exp", ["c"], ["e"]),
        NODE("Add", ["x", "e"], ["y"]),
    ]
    graph = graph_of(model(nodes, {"x": (2,)}))
    assert ops_of(graph) == ["add"]
    (array,) = graph.constants.values()
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, np.exp([1.0, 2.0]).astype(np.float32))


@pytest.mark.parametrize(("pool", "wanted"), [("GlobalMaxPool", 9), ("GlobalAveragePool", 3)])
def test_a_global_pool_reduces_whole_images(pool: str, wanted: float):
    graph = graph_of(model([NODE(pool, ["x"], ["y"])], {"x": (1, 2, 1, 3)}))
    images = one([[[[1, 9, -1]], [[9, 0, 0]]]])
    found = evaluate(graph, {"x": images})["y"]
    np.testing.assert_array_equal(found, np.full((1, 2, 1, 1), wanted))


@pytest.mark.parametrize(("at", "holds"), [(0, "0 < n"), (2, "2 < n"), (-1, "0 <= n - 1")])
def test_one_element_of_an_open_axis_is_one_whatever_its_size(at, holds):
    nodes = [NODE("Gather", ["x", "i"], ["y"], axis=0)]
    graph = graph_of(model(nodes, {"x": ("n", 3)}, {"i": np.int64(at)}))
    assert ops_of(graph) == ["slice", "reshape"]
    assert str(graph.nodes[0].output.type) == "f32[1, 3]"
    assert holds in [str(c.cond) for c in conditions(graph)]
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], x[at])
