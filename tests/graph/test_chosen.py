"""Matrices that indices choose out of a stack are packed, and products read them where they lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.core.types import DType
from dlc.graph.evaluate import evaluate
from dlc.graph.fusion import groups
from dlc.graph.pass_ import PassContext
from dlc.graph.passes.keep_few_bits import keep_few_bits
from dlc.graph.passes.narrow_weights import narrow_weights
from dlc.graph.passes.pack_matmul_weights import pack_matmul_weights
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import AVX512, CONTEXT, ENGINE, PAIRS, read

FEW_BITS = """
def main(x: f32[4, {m}, {depth}], which: i64[4]):
    q: u4[3, 11, {depth}] = const()
    s: f32[3, 11, {blocks}] = const()
    z: f32[3, 11, {blocks}] = const()
    w: f32[3, 11, {depth}] = dequantize_blocks(q, s, z, axis=2, block=16)
    t: f32[3, {depth}, 11] = transpose(w, perm=(0, 2, 1))
    c: f32[4, {depth}, 11] = gather(t, which, axis=0)
    y: f32[4, {m}, 11] = matmul(x, c)
    return y
"""
FLOATS = """
def main(x: f32[4, {m}, 7], which: i64[4]):
    t: f32[3, 7, 11] = const()
    c: f32[4, 7, 11] = gather(t, which, axis=0)
    y: f32[4, {m}, 11] = matmul(x, c)
    return y
"""
TURNED = "    t: f32[3, {depth}, 11] = transpose(w, perm=(0, 2, 1))\n"
CHOICE = np.array([2, 0, -1, 2])


def of_few_bits(m=1, depth=48, text=FEW_BITS):
    graph = read(text.format(m=m, depth=depth, blocks=-(-depth // 16)))
    rng = np.random.default_rng(5)
    data = {
        "q": lambda shape: rng.integers(0, 16, shape),
        "s": lambda shape: 2.0 ** rng.integers(-3, 3, shape),
        "z": lambda shape: rng.integers(0, 16, shape),
    }
    given = {v: data[v.name](a.shape).astype(a.dtype) for v, a in graph.constants.items()}
    return replace(graph, constants=given)


def kept(change, graph, context):
    """The graph after a pass, with the same results."""
    found = change(graph, context)
    verify_graph(found, when="in a test")
    rng = np.random.default_rng(6)
    given = {
        v.name: CHOICE if v.name == "which" else rng.integers(-4, 5, v.type.static_shape)
        for v in graph.inputs
    }
    np.testing.assert_allclose(evaluate(found, given)["y"], evaluate(graph, given)["y"], rtol=1e-12)
    return found


def names(graph):
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("features", [frozenset({"avx2", "fma"}), PAIRS, ENGINE], ids=len)
def test_weights_of_few_bits_stay_words(m, features):
    context = PassContext(Target(features=features), precision="medium")
    found = kept(keep_few_bits, of_few_bits(m), context)
    assert names(found) == ["gather", "gather", "gather", "matmul_few_bits"]
    lanes = context.target.lanes(4)
    words, *others = (n.inputs[0].type.static_shape for n in found.nodes[:3])
    assert words == (3, -(-11 // lanes), 6, lanes)
    assert others == [(3, -(-11 // lanes), 3, lanes)] * 2


def test_rows_are_filled_up_to_whole_blocks():
    found = kept(keep_few_bits, of_few_bits(depth=40), CONTEXT)
    assert sorted(names(found)) == ["gather", "gather", "gather", "matmul_few_bits", "pad"]


def test_weights_that_are_stored_by_rows_are_turned():
    text = FEW_BITS.replace(TURNED, "").replace("gather(t", "gather(w").replace("axis=2", "axis=1")
    text = text.replace("[3, 11, {depth}]", "[3, {depth}, 11]").replace("[3, 11, {b", "[3, {b")
    text = text.replace("{blocks}]", "{blocks}, 11]")
    assert names(kept(keep_few_bits, of_few_bits(text=text), CONTEXT))[-1] == "matmul_few_bits"


def test_a_stack_whose_matrices_have_rows_of_their_own_stays_words():
    text = FEW_BITS.replace("    c: f32[4, {depth}, 11] = gather(t, which, axis=0)\n", "")
    text = text.replace("matmul(x, c)", "matmul(x, t)").replace("f32[4, {m}", "f32[3, {m}")
    assert names(kept(keep_few_bits, of_few_bits(5, text=text), CONTEXT)) == ["matmul_few_bits"]


@pytest.mark.parametrize("broken", ["f32[{m}, {depth}]", "f32[2, 1, {m}, {depth}]"])
def test_rows_that_meet_all_matrices_meet_floats(broken):
    text = FEW_BITS.replace("    c: f32[4, {depth}, 11] = gather(t, which, axis=0)\n", "")
    text = text.replace("f32[4, {m}, {depth}]", broken).replace("matmul(x, c)", "matmul(x, t)")
    text = text.replace("y: f32[4,", "y: f32[2, 3," if "2, 1" in broken else "y: f32[3,")
    found = kept(keep_few_bits, of_few_bits(2, text=text), CONTEXT)
    assert "matmul_few_bits" not in names(found)


def test_a_gpu_chooses_among_floats():
    context = PassContext(parse_target("cuda -arch=sm_90"))
    assert "matmul_few_bits" not in names(kept(keep_few_bits, of_few_bits(), context))


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("context", [CONTEXT, AVX512], ids=["avx2", "avx512"])
def test_a_stack_is_packed_before_the_choice(m, context):
    found = kept(pack_matmul_weights, read(FLOATS.format(m=m)), context)
    assert names(found) == ["gather", "matmul_packed"]
    lanes = context.target.lanes(4)
    assert found.nodes[0].inputs[0].type.static_shape == (3, -(-11 // lanes), 7, lanes)
    assert [v.type.rank for v in found.constants] == [4]


@pytest.mark.parametrize(
    "edits",
    [
        [("x: f32[4, {m}, 7]", "x: f32[{m}, 7]")],
        [("7, 11]", "7, 1]"), ("{m}, 11]", "{m}, 1]")],
        [("t: f32[3, 7, 11] = const()",
          "o: f32[3, 7, 11] = const()\n    t: f32[3, 7, 11] = add(o, z)"),
         ("which: i64[4]", "which: i64[4], z: f32[()]")],
        [("    c: f32[4, 7, 11] = gather(t, which, axis=0)\n", ""), ("(x, c)", "(x, t)"),
         ("x: f32[4,", "x: f32[3,"), ("y: f32[4,", "y: f32[3,")],
        [("    c: f32[4, 7, 11] = gather(t, which, axis=0)\n", ""), ("(x, c)", "(x, t)"),
         ("t: f32[3, 7, 11]", "t: f32[7]"), ("y: f32[4, {m}, 11]", "y: f32[4, {m}]")],
    ],
    ids=["all_rows", "one_column", "no_constant", "no_choice", "vectors"],
)  # fmt: skip
def test_other_products_are_not_packed(edits):
    text = FLOATS
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    assert "matmul_packed" not in names(kept(pack_matmul_weights, read(text.format(m=1)), CONTEXT))


PRODUCT = """
def main(x: f32[4, 1, 7], which: i64[4]):
    w: f32[3, 2, 7, 8] = const()
    c: f32[4, 2, 7, 8] = gather(w, which, axis=0)
    y: f32[4, 1, 11] = matmul_packed(x, c, n=11)
    z: f32[4, 1, 11] = relu(y)
    return z
"""


def kernels(text):
    return [[n.op.name for n in members] for members in groups(read(text))]


def test_a_product_reads_what_is_chosen_where_it_lies():
    assert kernels(PRODUCT) == [["gather", "matmul_packed", "relu"]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return z", "return z, c"),
        ("    z: f32[4, 1, 11] = relu(y)", "    z: f32[4, 2, 7, 8] = relu(c)"),
        ("axis=0", "axis=1"),
    ],
    ids=["result", "other_reader", "panels"],
)
def test_what_somebody_else_reads_is_stored(old, new):
    text = PRODUCT.replace(old, new)
    if "axis=1" in new:
        text = text.replace("w: f32[3, 2, 7", "w: f32[4, 5, 7").replace("i64[4]", "i64[2]")
    assert ["gather"] in kernels(text)


def test_rows_that_are_chosen_are_stored():
    text = """
def main(o: f32[5, 1, 7], which: i64[4]):
    w: f32[4, 2, 7, 8] = const()
    x: f32[4, 1, 7] = gather(o, which, axis=0)
    y: f32[4, 1, 11] = matmul_packed(x, w, n=11)
    return y
"""
    assert kernels(text) == [["gather"], ["matmul_packed"]]


@pytest.mark.parametrize(
    ("m", "depth", "dtype"), [(1, 300, DType.F16), (1, 30, DType.F32), (3, 300, DType.F32)]
)
def test_a_stack_is_kept_in_fewer_bytes_where_single_rows_wait_for_a_matrix(m, depth, dtype):
    text = PRODUCT.replace(" 7]", " {depth}]").replace(" 7, 8]", " {depth}, 8]")
    graph = read(text.replace("1, {depth}", "{m}, {depth}").replace("1, 11", "{m}, 11")
                 .format(m=m, depth=depth).replace("return z", "return y"))  # fmt: skip
    exact = {v: np.float32(a.astype(np.float16)) for v, a in graph.constants.items()}
    assert 3 * 2 * 30 * 8 * 4 < CONTEXT.target.l1_bytes < 3 * 2 * 300 * 8 * 4
    found = kept(narrow_weights, replace(graph, constants=exact), CONTEXT)
    (choice,) = (n for n in found.nodes if n.op.name == "gather")
    assert choice.inputs[0].type.dtype is dtype
