"""Constant weights of a few bits stay so where products read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.core.types import DType
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.few_bits import MatMulFewBits
from dlc.graph.pass_ import PassContext
from dlc.graph.passes.keep_few_bits import keep_few_bits
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from dlc.te.expr import Const
from tests.graph.pass_cases import AVX512, CONTEXT, ENGINE, PAIRS

TEXT = """
def main(b: size, x: f32[{rows}, {depth}]):
    q: {kind}[{columns}, {depth}] = const()
    s: f32[{columns}, {blocks}] = const()
    z: f32[{columns}, {blocks}] = const()
    w: f32[{columns}, {depth}] = dequantize_blocks(q, s, z, axis=1, block=16)
    t: f32[{depth}, {columns}] = transpose(w, perm=(1, 0))
    y: f32[{rows}, {columns}] = matmul(x, t)
    return y
"""


def graph_of(kind="u4", rows="b", columns=11, depth=48, zero=None, scale=None, text=TEXT):
    blocks = -(-depth // 16)
    shapes = {"rows": rows, "columns": columns, "depth": depth, "blocks": blocks, "kind": kind}
    graph = parse_graph(text.format(**shapes))
    rng = np.random.default_rng(2)
    dtype = DType(kind)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0

    def data(value, array):
        if value.name == "q":
            return rng.integers(low, low + (1 << dtype.bits), array.shape).astype(array.dtype)
        given = {"s": scale, "z": zero}.get(value.name)
        if given is None:
            given = rng.integers(0, 5, array.shape) if value.name == "z" else 0.25
        return np.broadcast_to(np.float32(given), array.shape).copy()

    return replace(graph, constants={v: data(v, a) for v, a in graph.constants.items()})


def kept(graph, context=CONTEXT):
    """The graph after the pass, with the same results."""
    found = keep_few_bits(graph, context)
    verify_graph(found, when="in a test")
    (x,) = graph.inputs
    rows, depth = (int(n.value) if isinstance(n, Const) else 3 for n in x.type.shape)
    given = {"x": np.random.default_rng(4).integers(-4, 5, (rows, depth)).astype(np.float32)}
    np.testing.assert_array_equal(evaluate(found, given)["y"], evaluate(graph, given)["y"])
    return found


def names(graph):
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("kind", ["u2", "u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("context", [CONTEXT, AVX512], ids=["avx2", "avx512"])
def test_numbers_of_each_type_lie_in_words(kind, context):
    found = kept(graph_of(kind), context)
    assert names(found) == ["matmul_few_bits"]
    words, scale, zero = (v.type for v in found.nodes[0].inputs[1:])
    lanes = context.target.lanes(4)
    assert words.static_shape == (-(-11 // lanes), 48 * DType(kind).bits // 32, lanes)
    assert (words.dtype, scale.dtype, zero.dtype) == (DType.U32, DType.F16, DType.U8)


def test_one_zero_point_of_all_blocks_is_an_attribute():
    (node,) = kept(graph_of("i4", zero=-1)).nodes
    assert isinstance(node.op, MatMulFewBits)
    assert (node.op.middle, len(node.inputs)) == (7, 3)
    for zero in (0.5, 9, -9):  # none that a number of the type has
        assert len(kept(graph_of("i4", zero=zero)).nodes[0].inputs) == 4


def test_zero_points_and_scales_have_the_type_that_holds_them():
    (node,) = kept(graph_of(zero=0.5, scale=0.1)).nodes
    assert [v.type.dtype for v in node.inputs[2:]] == [DType.F32, DType.F32]


def test_rows_are_filled_up_to_whole_blocks():
    assert names(kept(graph_of(depth=40))) == ["pad", "matmul_few_bits"]


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("block=16", "block=15").replace("[{columns}, {blocks}]", "[{columns}, 4]"),
        TEXT.replace("axis=1", "axis=0").replace("[{columns}, {blocks}]", "[1, {depth}]"),
    ],
    ids=["words", "columns"],
)
def test_blocks_that_fill_no_words_become_floats(text):
    found = kept(graph_of(text=text))
    assert "matmul_few_bits" not in names(found)


def test_a_product_of_two_kinds_of_rows_shares_its_words():
    text = TEXT.replace("    return y", "    v: f32[{rows}, {columns}] = matmul(x, t)\n"
                        "    u: f32[{rows}, {columns}] = add(y, v)\n    return y")  # fmt: skip
    found = kept(graph_of(text=text))
    first, second = (n for n in found.nodes if n.op.name == "matmul_few_bits")
    assert first.inputs == second.inputs


@pytest.mark.parametrize(
    ("features", "precision", "rows", "stay"),
    [
        (ENGINE, "highest", 9, False),
        (ENGINE, "highest", 8, True),
        (ENGINE, "highest", "b", True),
        (PAIRS, "highest", 9, True),
        (PAIRS, "medium", 9, False),
    ],
)
def test_many_rows_are_multiplied_in_bf16_where_that_is_faster(features, precision, rows, stay):
    context = PassContext(target=Target(features=features), precision=precision)
    found = kept(graph_of(rows=rows), context)
    assert names(found) == (["matmul_few_bits"] if stay else ["matmul"])


BYTES = """
def main(b: size, x: i8[{rows}, {depth}]):
    q: {kind}[{columns}, {depth}] = const()
    s: f32[{columns}, {blocks}] = const()
    z: f32[{columns}, {blocks}] = const()
    f: f32[{rows}, {blocks}] = const()
    w: f32[{columns}, {depth}] = dequantize_blocks(q, s, z, axis=1, block=16)
    t: f32[{depth}, {columns}] = transpose(w, perm=(1, 0))
    r: f32[{rows}, {depth}] = dequantize_blocks(x, f, axis=1, block=16)
    y: f32[{rows}, {columns}] = matmul(r, t)
    return y
"""
VNNI = frozenset({"avx2", "avx512f", "avx512bw", "avx512vl", "avx512vnni"})


def of_bytes(features, kind="u4", precision="highest", **sizes):
    """The names of the operators after the pass, and the last of them."""
    graph = graph_of(kind, rows=sizes.pop("rows", 5), text=BYTES, **sizes)
    rng = np.random.default_rng(3)
    factor = next(v for v in graph.constants if v.name == "f")
    given = (2.0 ** rng.integers(-2, 3, factor.type.static_shape)).astype(np.float32)
    graph = replace(graph, constants={**graph.constants, factor: given})
    context = PassContext(target=Target(features=features), precision=precision)
    found = keep_few_bits(graph, context)
    verify_graph(found, when="in a test")
    x = {"x": rng.integers(-128, 128, graph.inputs[0].type.static_shape).astype(np.int8)}
    np.testing.assert_allclose(evaluate(found, x)["y"], evaluate(graph, x)["y"], rtol=1e-12)
    return names(found), found.nodes[-1]


@pytest.mark.parametrize("kind", ["u2", "u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("zero", [None, 1, 0.5])
def test_rows_of_bytes_are_multiplied_as_such(kind, zero):
    found, last = of_bytes(VNNI, kind, zero=zero)
    shared = ["mul"] if zero == 1 else []
    assert found == ["reshape", "cast", "reduce", *shared, "matmul_bytes_few_bits"]
    assert len(last.inputs) == (5 if zero == 1 else 6)


@pytest.mark.parametrize(
    ("features", "kind", "precision", "as_bytes"),
    [
        (frozenset({"avx2"}), "u4", "highest", True),
        (frozenset({"avx2"}), "u8", "highest", False),  # two products exceed 16 bits
        (frozenset(), "u4", "highest", False),
        (VNNI | ENGINE, "u4", "highest", False),  # whose tiles are faster
        (VNNI | PAIRS, "u4", "medium", True),
    ],
)
def test_other_vectors_multiply_floats(features, kind, precision, as_bytes):
    found, last = of_bytes(features, kind, precision, rows=9)
    assert (last.op.name == "matmul_bytes_few_bits") == as_bytes
    assert ("dequantize_blocks" in found) != as_bytes


@pytest.mark.parametrize(
    "edits",
    [
        [
            ("block=16)\n    y", "block=8)\n    y"),
            ("f: f32[{rows}, {blocks}]", "f: f32[{rows}, 6]"),
        ],
        [("x: i8[", "x: u8[")],
        [("(x, f, axis=1", "(x, f, f, axis=1")],
        [("(x, f, axis=1", "(x, f, axis=0"), ("f: f32[{rows}, {blocks}]", "f: f32[1, {depth}]")],
    ],
    ids=["other_blocks", "unsigned", "zero_points", "columns"],
)
def test_other_rows_stay_floats(edits):
    text = BYTES
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    found = keep_few_bits(graph_of(rows=3, text=text), PassContext(target=Target(features=VNNI)))
    assert names(found) == ["dequantize_blocks", "matmul_few_bits"]


def test_rows_of_both_kinds_have_words_of_their_own():
    """Four numbers in a row lie elsewhere in a word where bytes are multiplied."""
    text = BYTES.replace("(b: size, x:", "(b: size, o: f32[{rows}, {depth}], x:")
    text = text.replace("    return y", "    v: f32[{rows}, {columns}] = matmul(o, t)\n"
                        "    u: f32[{rows}, {columns}] = add(y, v)\n    return u")  # fmt: skip
    graph = graph_of(rows=3, text=text)
    rng = np.random.default_rng(6)
    factor = next(v for v in graph.constants if v.name == "f")
    graph = replace(graph, constants={**graph.constants, factor: np.full((3, 3), 0.5, np.float32)})
    found = keep_few_bits(graph, PassContext(target=Target(features=VNNI)))
    first, second = (n for n in found.nodes if n.op.name.startswith("matmul"))
    assert (first.op.name, second.op.name) == ("matmul_bytes_few_bits", "matmul_few_bits")
    given = {
        "o": rng.integers(-4, 5, (3, 48)).astype(np.float32),
        "x": rng.integers(-128, 128, (3, 48)).astype(np.int8),
    }
    np.testing.assert_array_equal(evaluate(found, given)["u"], evaluate(graph, given)["u"])


def test_a_gpu_multiplies_floats():
    target = parse_target("cuda -arch=sm_90")
    found = keep_few_bits(graph_of(rows=3, text=BYTES), PassContext(target=target))
    assert names(found) == ["dequantize_blocks", "matmul"]
