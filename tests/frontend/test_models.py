"""Whole models: those that come with onnx, and the parts that exporters make of networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
NODE = helper.make_node


def run_onnxruntime(path, feed) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    source = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(source, options).run(None, feed)


def check(source, feed, **options) -> None:
    """Compare all outputs with onnxruntime's, which computes in float32."""
    found = import_model(load_model(source), **options)
    graph = found.graph
    arrays = zip(graph.inputs, found.interface.inputs, strict=True)
    results = evaluate(graph, {v.name: feed[n] for v, n in arrays})
    for value, want in zip(graph.outputs, run_onnxruntime(source, feed), strict=True):
        got = results[value.name]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max(initial=0))


# Operators of each graph after conversion; a shape computation left over would show here.
EXPECTED = {
    "bvlc_alexnet": {"conv": 5, "lrn": 2, "matmul": 3, "max_pool": 3, "softmax": 1},
    "densenet121": {"conv": 121, "batch_norm": 121, "concat": 58, "average_pool": 3, "mul": 121},
    "inception_v1": {"conv": 57, "lrn": 2, "max_pool": 13, "concat": 9, "matmul": 1},
    "inception_v2": {"conv": 69, "batch_norm": 69, "average_pool": 8, "concat": 10},
    "resnet50": {"conv": 53, "batch_norm": 53, "relu": 49, "matmul": 1, "softmax": 1},
    "shufflenet": {"conv": 49, "reshape": 33, "concat": 3, "average_pool": 4},
    "squeezenet": {"conv": 26, "concat": 8, "reduce": 1, "softmax": 1},
    "vgg19": {"conv": 16, "matmul": 3, "max_pool": 5},
    "zfnet512": {"conv": 5, "lrn": 2, "matmul": 3},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPECTED)
def test_the_models_of_onnx_are_imported(name):
    graph = import_model(load_model(LIGHT / f"light_{name}.onnx")).graph
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.op.name] = counts.get(node.op.name, 0) + 1
    assert counts.items() >= EXPECTED[name].items()
    assert not {"sizes", "range", "slice", "gather"} & set(counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_models_of_onnx_are_right(name):
    path = LIGHT / f"light_{name}.onnx"
    loaded = load_model(path)
    (wanted,) = (v for v in loaded.graph.inputs if v.name not in loaded.graph.constants)
    rng = np.random.default_rng(1)
    check(path, {wanted.name: np.asarray(rng.standard_normal(wanted.dims), np.float32)})


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_digits_is_right_for_any_batch(batch):
    rng = np.random.default_rng(1)
    check(DIGITS, {"image": rng.random((batch, 1, 8, 8), dtype=np.float32)})


def attention() -> onnx.ModelProto:
    """Self-attention as torch exports it: every view computes its shape from `Shape`."""
    nodes = [
        NODE("Shape", ["x"], ["s"]),
        NODE("Gather", ["s", "zero"], ["batch"], axis=0),
        NODE("Gather", ["s", "one"], ["seq"], axis=0),
    ]
    for head in ("q", "k", "v"):
        nodes += [
            NODE("MatMul", ["x", f"w_{head}"], [f"{head}0"]),
            NODE("Unsqueeze", ["batch", "axis"], [f"{head}b"]),
            NODE("Unsqueeze", ["seq", "axis"], [f"{head}s"]),
            NODE("Concat", [f"{head}b", f"{head}s", "heads", "rest"], [f"{head}_to"], axis=0),
            NODE("Reshape", [f"{head}0", f"{head}_to"], [f"{head}1"]),
            NODE("Transpose", [f"{head}1"], [f"{head}2"], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        NODE("Transpose", ["k2"], ["kt"], perm=[0, 1, 3, 2]),
        NODE("MatMul", ["q2", "kt"], ["scores"]),
        NODE("Shape", ["v1"], ["v_shape"]),
        NODE("Gather", ["v_shape", "minus_one"], ["width"], axis=0),
        NODE("Cast", ["width"], ["width_f"], to=1),
        NODE("Sqrt", ["width_f"], ["scale"]),
        NODE("Div", ["scores", "scale"], ["scaled"]),
        NODE("Add", ["scaled", "mask"], ["masked"]),
        NODE("Softmax", ["masked"], ["p"], axis=-1),
        NODE("MatMul", ["p", "v2"], ["o"]),
        NODE("Transpose", ["o"], ["o2"], perm=[0, 2, 1, 3]),
        NODE("Concat", ["qb", "qs", "rest"], ["flat"], axis=0),
        NODE("Reshape", ["o2", "flat"], ["y"]),
    ]
    rng = np.random.default_rng(2)
    constants = {f"w_{h}": rng.standard_normal((12, 12)).astype(np.float32) for h in "qkv"}
    constants |= {
        "zero": np.int64(0), "one": np.int64(1), "minus_one": np.int64(-1), "axis": np.int64([0]),
        "heads": np.int64([3]), "rest": np.int64([-1]),
    }  # fmt: skip
    return model(nodes, {"x": ("batch", "seq", 12), "mask": ("batch", 1, 1, "seq")}, constants)


def test_attention_is_imported_without_a_trace_of_its_shapes():
    graph = import_model(load_model(attention())).graph
    found = {node.op.name for node in graph.nodes}
    assert found == {"matmul", "reshape", "transpose", "div", "add", "softmax"}
    assert str(graph.outputs[0].type) == "f32[batch, seq, 12]"


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 5), (3, 1)])
def test_attention_is_right_for_all_sizes(batch, seq):
    rng = np.random.default_rng(3)
    feed = {
        "x": rng.standard_normal((batch, seq, 12)).astype(np.float32),
        "mask": np.where(rng.random((batch, 1, 1, seq)) < 0.3, -10, 0).astype(np.float32),
    }
    check(attention().SerializeToString(), feed)


def test_a_counted_loop_becomes_a_scan():
    """y = x; three times: y = y * w + i."""
    body = helper.make_graph(
        [
            NODE("Mul", ["state", "w"], ["scaled"]),
            NODE("Cast", ["i"], ["number"], to=1),
            NODE("Add", ["scaled", "number"], ["next"]),
            NODE("Identity", ["go"], ["still"]),
        ],
        "body",
        [onnx.ValueInfoProto(name=n) for n in ("i", "go", "state")],
        [onnx.ValueInfoProto(name=n) for n in ("still", "next", "scaled")],
    )
    nodes = [NODE("Loop", ["three", "yes", "x"], ["y", "all"], body=body)]
    constants = {"three": np.int64(3), "yes": np.bool_(True), "w": np.float32([2, 3])}
    proto = model(nodes, {"x": ("n", 2)}, constants, outputs=["y", "all"])
    graph = import_model(load_model(proto)).graph
    assert [node.op.name for node in graph.nodes] == ["scan"]
    for n in (0, 1, 4):
        x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        found = evaluate(graph, {"x": x})
        y, steps = x.astype(np.float64), []
        for i in range(3):
            steps.append(y * [2, 3])
            y = steps[-1] + i
        np.testing.assert_array_equal(found[graph.outputs[0].name], y)
        np.testing.assert_array_equal(found[graph.outputs[1].name], np.array(steps))


def loop(steps, body_nodes, outputs=("go", "next"), given="x") -> onnx.ModelProto:
    """A Loop over one state; `go` is the condition a body starts with."""
    body = helper.make_graph(
        body_nodes,
        "body",
        [onnx.ValueInfoProto(name=n) for n in ("i", "go", "state")],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    node = NODE("Loop", ["steps", "yes", given], ["y"], body=body)
    constants = {"steps": np.int64(steps), "yes": np.bool_(True), "limit": np.int64(2)}
    return model([node], {"x": (1, 2)}, constants)


def test_a_state_that_grows_is_unrolled():
    proto = loop(3, [NODE("Concat", ["state", "x"], ["next"], axis=0)])
    graph = import_model(load_model(proto)).graph
    assert [node.op.name for node in graph.nodes] == ["concat"] * 3
    found = evaluate(graph, {"x": np.float32([[1, 2]])})["y"]
    np.testing.assert_array_equal(found, [[1, 2]] * 4)


@pytest.mark.parametrize(
    ("proto", "rows"),
    [
        (loop(65, [NODE("Concat", ["state", "x"], ["next"], axis=0)]), 66),
        (
            loop(
                9,
                [
                    NODE("Less", ["i", "limit"], ["on"]),
                    NODE("Concat", ["state", "x"], ["next"], axis=0),
                ],
                outputs=("on", "next"),
            ),
            4,
        ),
        (loop(-1, [NODE("Concat", ["state", "x"], ["next"], axis=0)]), 1),
    ],
)
def test_a_loop_may_grow_its_state_and_end_early(proto, rows):
    graph = import_model(load_model(proto)).graph
    (found,) = evaluate(graph, {"x": np.float32([[1, 2]])}).values()
    np.testing.assert_array_equal(found, [[1, 2]] * rows)


def test_a_state_may_not_change_its_rank():
    proto = loop(65, [NODE("Unsqueeze", ["state", "i"], ["next"])])
    with pytest.raises(UnsupportedModel, match="changes from"):
        import_model(load_model(proto))


def test_a_scan_whose_state_changes_its_type_is_refused():
    body = helper.make_graph(
        [NODE("Concat", ["state", "row"], ["next"], axis=0), NODE("Relu", ["row"], ["out"])],
        "body",
        [onnx.ValueInfoProto(name=n) for n in ("state", "row")],
        [onnx.ValueInfoProto(name=n) for n in ("next", "out")],
    )
    node = NODE("Scan", ["s", "x"], ["y", "z"], body=body, num_scan_inputs=1)
    proto = model([node], {"s": (2,), "x": (4, 3)}, outputs=["y", "z"])
    with pytest.raises(UnsupportedModel, match=r"changes from f32\[2\] to f32\[5\]"):
        import_model(load_model(proto))


def branch(name: str, op: str) -> onnx.GraphProto:
    return helper.make_graph([NODE(op, ["x"], [name])], name, [], [onnx.ValueInfoProto(name=name)])


@pytest.mark.parametrize("cond", [True, False])
def test_a_known_condition_leaves_one_branch(cond):
    node = NODE("If", ["c"], ["y"], then_branch=branch("a", "Exp"), else_branch=branch("b", "Neg"))
    graph = import_model(load_model(model([node], {"x": (3,)}, {"c": np.bool_(cond)}))).graph
    assert [n.op.name for n in graph.nodes] == ["exp" if cond else "neg"]


@pytest.mark.parametrize("cond", [True, False])
def test_an_unknown_condition_chooses_between_both(cond):
    node = NODE("If", ["c"], ["y"], then_branch=branch("a", "Exp"), else_branch=branch("b", "Neg"))
    proto = model([node], {"x": (3,), "c": ()}, kinds={"c": "b"})
    feed = {"x": np.float32([1, -2, 3]), "c": np.array(cond)}
    check(proto.SerializeToString(), feed)
