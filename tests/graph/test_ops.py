"""Each operator: `compute`, interpreted, equals `reference`, which equals ONNX's own reference."""

from __future__ import annotations

import keyword

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dlc.graph.ops  # noqa: F401  # declares the operators
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph, Value, call
from dlc.graph.lower import lower_group
from dlc.graph.op import OPS, as_f64
from dlc.graph.ops.text import TextOp
from dlc.graph.sizes import bind_op
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from dlc.schedule.interpret import run_func
from tests.graph.op_case import Case
from tests.graph.op_cases import CASES

ELSEWHERE = {
    "bind_sizes",
    "bit_cast",
    "branch",
    "checked_indices",
    "fused",
    "loop",
    "scan",
}  # test_bind_sizes.py, test_bodies.py
ELSEWHERE |= {name for name, op in OPS.items() if issubclass(op, TextOp)}  # test_texts.py
RUNS = [
    pytest.param(c, dict(s), id=f"{c}-{i}-{','.join(map(str, s.values()))}")
    for i, c in enumerate(CASES)
    for s in c.sizes
]


def graph_of(case: Case) -> Graph:
    inputs = tuple(Value(f"x{i}", t) for i, t in enumerate(case.types))
    results = case.op.infer(*case.types)
    names = tuple(f"y{i}" for i in range(len(results))) if isinstance(results, tuple) else ("y0",)
    node = call(case.op, *inputs, name=names)
    return Graph("main", ("n",), inputs, (node,), node.outputs)


def close(actual: np.ndarray, expected: np.ndarray, rtol: float) -> None:
    assert actual.shape == expected.shape
    if actual.dtype.kind == "V":  # NumPy takes no NaN of these for equal
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    if rtol == 0 or actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    scale = np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-3)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * float(scale))


@pytest.mark.thorough
@pytest.mark.parametrize(("case", "sizes"), RUNS)
def test_compute_is_the_reference(case, sizes):
    graph = graph_of(case)
    verify_graph(graph, when="in the test")
    arrays = case.arrays(sizes)
    func = lower_group(graph, "kernel")
    named = {f"in{i}": a for i, a in enumerate(arrays)}
    found = run_func(func, sizes, named)
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    wanted = evaluate(graph, given, sizes)
    for value, actual in zip(graph.outputs, found.values(), strict=True):
        expected, dtype = wanted[value.name], value.type.dtype
        assert actual.dtype == NUMPY_DTYPES[dtype]
        assert expected.dtype.kind == as_f64(actual)[0].dtype.kind
        if dtype.is_float:
            assert expected.dtype == np.float64
        close(actual, round_to(expected, dtype), case.rtol)


@pytest.mark.parametrize(
    ("case", "sizes"), [r for r in RUNS if r.values[0].onnx and 0 not in r.values[1].values()]
)
def test_the_reference_is_onnx(case, sizes):
    arrays = case.arrays(sizes)
    outputs = graph_of(case).outputs
    with np.errstate(all="ignore"):
        made = bind_op(case.op, sizes).reference(*arrays)
    results = made if isinstance(made, tuple) else (made,)
    for value, ours, theirs in zip(outputs, results, run_onnx(case, arrays), strict=True):
        assert np.asarray(ours).dtype.kind == theirs.dtype.kind
        close(round_to(ours, value.type.dtype), theirs, case.onnx.rtol)


def run_onnx(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    spec = case.onnx
    assert spec is not None
    outputs = graph_of(case).outputs
    extra = {f"c{i}": a for i, a in enumerate(spec.extra)}
    names = [f"x{i}" for i in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    called = names + [n if a is not None else "" for n, a in extra.items()]
    if spec.order:
        called = [names[i] if i >= 0 else "c0" for i in spec.order]
    node = helper.make_node(spec.name, called, names_of(outputs), **spec.attributes)
    constants = [numpy_helper.from_array(a, n) for n, a in extra.items() if a is not None]
    results = [helper.make_tensor_value_info(v.name, onnx_type(v), None) for v in outputs]
    graph = helper.make_graph([node], "g", inputs, results, constants)
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", spec.opset)])
    given = dict(zip(names, arrays, strict=True))
    if spec.by_runtime:
        model.ir_version = 10
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return list(session.run(None, given))
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, given))


def names_of(values: tuple[Value, ...]) -> list[str]:
    return [v.name for v in values]


def onnx_type(value: Value) -> int:
    return helper.np_dtype_to_tensor_dtype(NUMPY_DTYPES[value.type.dtype])


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c))
def test_text_of_a_call_round_trips(case):
    graph = graph_of(case)
    again = parse_graph(str(graph))
    assert again == graph
    assert str(again) == str(graph)


def test_every_operator_has_a_case():
    assert {c.op.name for c in CASES} == set(OPS) - ELSEWHERE


@pytest.mark.parametrize("name", sorted(OPS))
def test_an_operator_can_be_written_in_text(name):
    assert name.isidentifier()
    assert not keyword.iskeyword(name)
