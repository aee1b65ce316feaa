"""Constants that passes make of many gigabytes of weights lie in files, not in memory."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.graph import arrays
from dlc.graph.pass_ import PassContext
from dlc.graph.passes.fold_constants import fold_constants
from dlc.graph.passes.pack_matmul_weights import pack_matmul_weights
from dlc.graph.text import parse_graph

TEXT = """def main(x: f32[3, 5]):
    w: f32[5, 18] = const()
    t: f32[18, 5] = transpose(w, perm=(1, 0))
    u: f32[5, 18] = transpose(t, perm=(1, 0))
    y: f32[3, 18] = matmul(x, u)
    return y
"""


def lies_in_a_file(array) -> bool:
    while array is not None and not isinstance(array, mmap.mmap | memoryview):
        array = getattr(array, "base", None)
    return array is not None


@pytest.mark.parametrize("heavy", [False, True])
def test_what_passes_make_lies_in_a_file_only_beside_heavy_weights(heavy, monkeypatch):
    if heavy:
        monkeypatch.setattr(arrays, "_HEAVY_BYTES", 64)
        monkeypatch.setattr(arrays, "_SPILLED_BYTES", 64)
    graph, context = parse_graph(TEXT), PassContext(target=Target())
    (weights,) = graph.constants.values()
    folded = fold_constants(graph, context)
    ((_, array),) = folded.constants.items()
    assert lies_in_a_file(array) is heavy
    np.testing.assert_array_equal(array, weights)
    ((_, packed),) = pack_matmul_weights(folded, context).constants.items()
    assert lies_in_a_file(packed) is heavy
    assert packed.size >= weights.size


WIDENED = """def main(x: f32[3, 8], i: i64[2], other: f32[8, 8]):
    w: i8[8, 8] = const()
    z: i32[()] = const(3)
    a: i32[8, 8] = cast(w, to=i32)
    b: i32[8, 8] = sub(a, z)
    c: f32[8, 8] = cast(b, to=f32)
    {read}
    return y
"""
TIED = """d: f32[2, 8] = gather(c, i)
    y: f32[2, 8] = matmul(d, c)"""
NEGATED = """d: f32[8, 8] = neg(c)
    y: f32[2, 8] = gather(d, i)"""
ADDED = """d: f32[8, 8] = add(c, other)
    y: f32[2, 8] = gather(d, i)"""
OUTER = """def main(x: f32[8, 8]):
    a: f32[8, 1] = const()
    b: f32[1, 8] = const()
    c: f32[8, 8] = mul(a, b)
    y: f32[8, 8] = matmul(x, c)
    return y
"""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (WIDENED.format(read="y: f32[3, 8] = matmul(x, c)"), ["matmul"]),
        (WIDENED.format(read="y: f32[2, 8] = gather(c, i)"), ["cast", "sub", "cast", "gather"]),
        (WIDENED.format(read=NEGATED), ["cast", "sub", "cast", "neg", "gather"]),
        (WIDENED.format(read=TIED), ["gather", "matmul"]),
        (WIDENED.format(read=ADDED), ["add", "gather"]),
        (WIDENED.format(read="y: f32[8, 8] = neg(c)"), []),
        (OUTER, ["mul", "matmul"]),
    ],
)
def test_a_limit_is_for_what_has_more_elements_or_of_which_rows_are_picked(text, left):
    context = PassContext(target=Target(), fold_limit_bytes=100)
    folded = fold_constants(parse_graph(text), context)
    assert [node.op.name for node in folded.nodes] == left


def test_a_table_that_is_handed_out_is_folded():
    text = WIDENED.format(read="d: f32[2, 8] = gather(c, i)").replace("return y", "return c, d")
    context = PassContext(target=Target(), fold_limit_bytes=100)
    folded = fold_constants(parse_graph(text), context)
    assert [node.op.name for node in folded.nodes] == ["gather"]


def test_what_has_several_results_is_folded():
    text = """def main(x: f32[40]):
    c: f32[60] = const()
    v: f32[30]
    i: i64[30]
    v, i = top_k(c, k=30)
    y: f32[30] = gather(x, i)
    z: f32[30] = add(v, y)
    return z
"""
    context = PassContext(target=Target(), fold_limit_bytes=100)
    folded = fold_constants(parse_graph(text), context)
    assert [node.op.name for node in folded.nodes] == ["gather", "add"]


def test_long_chains_behind_a_table_are_followed_once():
    lines = [f"v{i + 1}: f32[8, 8] = mul(v{i}, v{i})" for i in range(60)]
    read = "v0: f32[8, 8] = neg(c)\n    " + "\n    ".join(lines) + "\n    y: f32[8, 8] = neg(v60)"
    context = PassContext(target=Target(), fold_limit_bytes=100)
    assert fold_constants(parse_graph(WIDENED.format(read=read)), context).nodes == ()


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F8E5M2, DType.BOOL, DType.F64])
@pytest.mark.parametrize("shape", [(3, 7), (0, 2), (5, 1)])
def test_a_spilled_array_is_the_same(dtype, shape, monkeypatch):
    monkeypatch.setattr(arrays, "_SPILLED_BYTES", 1)
    array = arrays.round_to(np.arange(np.prod(shape)).reshape(shape).T, dtype)
    found = arrays.spilled(array)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_a_full_disk_is_no_failure(monkeypatch):
    def fail():
        raise OSError("no space left")

    monkeypatch.setattr(arrays, "_SPILLED_BYTES", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    array = np.ones(3)
    assert arrays.spilled(array) is array
