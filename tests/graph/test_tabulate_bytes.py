"""Functions of one byte become tables, where that is all they are and a table takes less time."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph
from dlc.graph.ops.look_up import LookUp
from dlc.graph.pass_ import PASSES, PassContext
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import CONTEXT, read
from tests.graph.rule_cases import ON_GPU

ALL = np.arange(256, dtype=np.uint8).reshape(2, 128)
HEAD = """
def main(x: {byte}[2, 128]{more}):
    scale: f32[()] = const(0.0625)
    zero: f32[()] = const(-40.0)
    step: f32[()] = const(0.0078125)
    inverse: f32[()] = const(128.0)
    middle: i32[()] = const(3)
    channels: f32[128] = const()
    one: f32[1, 1, 1] = const(1.0)
    a: f32[2, 128] = cast(x, to=f32)
    b: f32[2, 128] = add(a, zero)
    c: f32[2, 128] = mul(b, scale)
"""
SIGMOID = """
    d: f32[2, 128] = sigmoid(c)
    e: f32[2, 128] = quotient(d, step, inverse)
    s: {byte}[2, 128] = to_bytes(e, middle, to={byte})
"""
SILU = (
    SIGMOID
    + """
    f: f32[2, 128] = cast(s, to=f32)
    g: f32[2, 128] = mul(f, step)
    h: f32[2, 128] = mul(g, {factor})
    i: f32[2, 128] = quotient(h, step, inverse)
    y: {byte}[2, 128] = to_bytes(i, middle, to={byte})
"""
)


def graph(body: str, results: str, more: str = "", **words: str) -> Graph:
    words = {"byte": "u8", "factor": "c", "more": more, **words}
    return read((HEAD + body).format(**words) + f"    return {results}\n")


def tabulated(before: Graph) -> tuple[Graph, int]:
    after = PASSES["tabulate_bytes"](before, CONTEXT)
    verify_graph(after, when="now")
    return after, sum(isinstance(n.op, LookUp) for n in after.nodes)


@pytest.mark.parametrize("byte", ["u8", "i8"])
@pytest.mark.parametrize(
    ("body", "results", "tables"), [(SIGMOID, "s", 1), (SILU, "y", 1), (SILU, "s, y", 2)]
)
def test_a_table_holds_what_the_operators_make_of_each_byte(byte, body, results, tables):
    before = graph(body, results, byte=byte)
    after, found = tabulated(before)
    assert found == tables
    assert len(after.nodes) == tables
    x = {"x": ALL.view(NUMPY_DTYPES[before.inputs[0].type.dtype])}
    want, got = evaluate(before, x), evaluate(after, x)
    for value in before.outputs:
        assert len(np.unique(want[value.name])) > 20
        np.testing.assert_array_equal(got[value.name], want[value.name])


def test_what_is_read_before_it_is_rounded_stays():
    """The function is computed anyway; its rounding takes less time than a look-up."""
    assert tabulated(graph(SIGMOID, "d, s"))[1] == 0
    after, found = tabulated(graph(SILU, "d, y"))
    assert found == 0
    assert len(after.nodes) == 11


OTHERS = {
    "another byte": (SILU, "y", ", z: f32[2, 128]", "z"),
    "a factor for each channel": (SILU, "y", "", "channels"),
}


@pytest.mark.parametrize(("body", "results", "more", "factor"), OTHERS.values(), ids=OTHERS)
def test_only_a_function_of_one_byte_is_a_table(body, results, more, factor):
    """What it is multiplied by varies; the byte before that is still one."""
    after, found = tabulated(graph(body, results, more, factor=factor))
    assert found == 1
    assert next(n for n in after.nodes if isinstance(n.op, LookUp)).output.name == "s"


MOVED = """
    l: f32[128, 2] = transpose(c, perm=(1, 0))
    d: f32[128, 2] = sigmoid(l)
    m: f32[256] = reshape(d, shape=(256,))
    e: f32[256] = quotient(m, step, inverse)
    s: u8[256] = to_bytes(e, middle, to=u8)
"""


def test_bytes_are_moved_before_they_are_looked_up():
    before = graph(MOVED, "s")
    after, found = tabulated(before)
    assert found == 1
    assert [n.op.name for n in after.nodes] == ["transpose", "reshape", "look_up"]
    want, got = evaluate(before, {"x": ALL}), evaluate(after, {"x": ALL})
    np.testing.assert_array_equal(got["s"], want["s"])


def test_a_function_of_two_bytes_of_one_image_stays():
    body = """
    l: f32[128, 2] = transpose(c, perm=(1, 0))
    d: f32[2, 128] = reshape(l, shape=(2, 128))
    g: f32[2, 128] = add(c, d)
    e: f32[2, 128] = sigmoid(g)
    s: u8[2, 128] = to_bytes(e, middle, to=u8)
"""
    assert tabulated(graph(body, "s"))[1] == 0


def test_results_of_another_shape_stay():
    """A constant of one element may have more axes than the bytes have."""
    body = """
    d: f32[1, 2, 128] = mul(c, one)
    e: f32[1, 2, 128] = sigmoid(d)
    s: u8[1, 2, 128] = to_bytes(e, middle, to=u8)
"""
    assert tabulated(graph(body, "s"))[1] == 0


def test_sums_and_products_stay():
    body = """
    d: f32[2, 128] = relu(c)
    e: f32[2, 128] = quotient(d, step, inverse)
    s: u8[2, 128] = to_bytes(e, middle, to=u8)
"""
    assert tabulated(graph(body, "s"))[1] == 0


def test_a_gpu_computes():
    before = graph(SIGMOID, "s")
    assert PASSES["tabulate_bytes"](before, ON_GPU) is before


RESCALED = SIGMOID.replace("    d: f32[2, 128] = sigmoid(c)\n", "").replace("(d,", "(c,")


@pytest.mark.parametrize(("features", "tables"), [({"avx512f", "avx512vbmi"}, 1), ({"avx512f"}, 0)])
@pytest.mark.parametrize(
    "text",
    [SIGMOID.replace("sigmoid", n) for n in ("hard_swish", "hard_sigmoid", "leaky_relu")]
    + [RESCALED],
    ids=["hard_swish", "hard_sigmoid", "leaky_relu", "a new scale"],
)
def test_quick_functions_are_tables_where_vectors_look_up(text, features, tables):
    context = PassContext(target=Target(features=frozenset(features)))
    before = graph(text, "s")
    after = PASSES["tabulate_bytes"](before, context)
    assert [n.op.name for n in after.nodes].count("look_up") == tables
    want, got = evaluate(before, {"x": ALL}), evaluate(after, {"x": ALL})
    np.testing.assert_array_equal(got["s"], want["s"])
