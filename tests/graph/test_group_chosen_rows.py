"""Rows that choose the same matrix go together, and give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.graph.evaluate import evaluate
from dlc.graph.ops.control import If
from dlc.graph.pass_ import PassContext
from dlc.graph.passes.group_chosen_rows import ROWS, group_chosen_rows
from dlc.graph.sizes import bodies, bound_sizes
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import CONTEXT, read
from tests.graph.rule_cases import ON_GPU

FLOATS = """
def main(b: size, x: f32[{rows}, 1, 5], which: i64[{rows}]):
    w: f32[6, 2, 5, 8] = const()
    c: f32[{rows}, 2, 5, 8] = gather(w, which, axis=0)
    y: f32[{rows}, 1, 12] = matmul_packed(x, c, n=12)
    return y
"""
FEW_BITS = """
def main(b: size, x: f32[{rows}, 1, 32], which: i32[{rows}]):
    w: u32[6, 2, 4, 8] = const()
    s: f32[6, 2, 2, 8] = const()
    c: u32[{rows}, 2, 4, 8] = gather(w, which, axis=0)
    d: f32[{rows}, 2, 2, 8] = gather(s, which, axis=0)
    y: f32[{rows}, 1, 12] = matmul_few_bits(x, c, d, n=12, bits=4)
    return y
"""
BYTES = """
def main(b: size, x: i8[{rows}, 1, 32], f: f32[{rows}, 1, 2], l: f32[{rows}, 1, 2],
         which: i64[{rows}]):
    w: u32[6, 2, 4, 8] = const()
    s: f32[6, 2, 2, 8] = const()
    c: u32[{rows}, 2, 4, 8] = gather(w, which, axis=0)
    d: f32[{rows}, 2, 2, 8] = gather(s, which, axis=0)
    y: f32[{rows}, 1, 12] = matmul_bytes_few_bits(x, f, l, c, d, n=12, bits=4)
    return y
"""
TWICE = """
def main(b: size, x: f32[{rows}, 1, 5], which: i64[{rows}]):
    w: f32[6, 2, 5, 8] = const()
    v: f32[6, 1, 12, 8] = const()
    c: f32[{rows}, 2, 5, 8] = gather(w, which, axis=0)
    z: f32[{rows}, 1, 12] = matmul_packed(x, c, n=12)
    d: f32[{rows}, 1, 12, 8] = gather(v, which, axis=0)
    y: f32[{rows}, 1, 7] = matmul_packed(z, d, n=7)
    return y
"""


def given(graph, count):
    rng = np.random.default_rng(count)
    found = {}
    for value in graph.inputs:
        shape = [count, *(int(n.value) for n in value.type.shape[1:])]
        numbers = (
            rng.integers(-6, 6, shape) if value.name == "which" else rng.integers(-9, 9, shape)
        )
        found[value.name] = numbers
    return found


def grouped(text, rows, sizes=(0,), context=CONTEXT):
    """The graph after the pass, whose results for these sizes are those before."""
    graph = read(text.format(rows=rows))
    found = group_chosen_rows(graph, context)
    verify_graph(found, when="in a test")
    for size in sizes:
        arrays = given(graph, eval(str(rows), {"b": size}))
        want, got = (evaluate(g, arrays, {"b": size})["y"] for g in (graph, found))
        np.testing.assert_allclose(got, want, rtol=1e-12)
    return found


def names(graph):
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("text", [FLOATS, FEW_BITS, BYTES, TWICE])
def test_many_rows_go_by_tiles(text):
    found = grouped(text, 7)
    assert names(found)[:3] == ["tile_begins", "bind_sizes", "row_tiles"]
    products = [n for n in found.nodes if n.op.name.startswith("matmul")]
    assert all(str(n.output.type.shape[0]) == "tiles" for n in products)
    assert all(int(n.output.type.shape[1].value) == ROWS for n in products)
    assert names(found).count("row_tiles") == 1  # both products of TWICE share them


@pytest.mark.parametrize("rows", [7, "b * 3"])
def test_rows_may_choose_several_matrices_each(rows):
    text = FLOATS.replace("{rows}", "{rows}, 2")
    found = grouped(text, rows, [0, 1, 10])
    assert names(found).count("row_tiles") == 1


@pytest.mark.parametrize("text", [FLOATS, FEW_BITS, BYTES])
def test_few_rows_stay_as_they_are(text):
    graph = read(text.format(rows=3))
    assert group_chosen_rows(graph, CONTEXT) == graph


@pytest.mark.parametrize("text", [FLOATS, FEW_BITS, BYTES, TWICE])
def test_a_run_decides_of_an_open_number(text):
    found = grouped(text, "b * 3", [0, 1, 2, 10])
    branches = [n.op for n in found.nodes if isinstance(n.op, If)]
    assert branches
    for branch in branches:
        assert [n.op.name for n in branch.then.nodes][-1].startswith("matmul")
        assert "gather" in names(branch.other)
    assert names(found).count("row_tiles") == 1


def test_a_number_that_is_surely_large_needs_no_decision():
    assert "branch" not in names(grouped(FLOATS, "b * 3 + 9", [0, 1]))


def test_rows_on_a_gpu_stay_as_they_are():
    graph = read(FLOATS.format(rows=64))
    assert group_chosen_rows(graph, ON_GPU) == graph


@pytest.mark.parametrize(
    ("old", "new"),
    [("x, c, n=12", "x, w, n=12"), ("axis=0", "axis=1"),
     ("[{rows}, 1, 5]", "[{rows}, 2, 5]")],
)  # fmt: skip
def test_other_products_stay_as_they_are(old, new):
    text = FLOATS.replace(old, new).replace("{rows}, 1, 12", "{rows}, 2, 12")
    if "w, n=12" in new:
        text = text.replace("{rows}, 2, 12", "{rows}, 1, 12")
    if "axis=1" in new:
        text = text.replace("f32[6, 2, 5, 8] = const", "f32[{rows}, 2, 5, 8] = const")
        text = text.replace("which: i64[{rows}]", "which: i64[2]").replace(
            "{rows}, 2, 12", "6, 1, 12"
        )
        text = text.replace("{rows}", "6")
    graph = read(text.format(rows=6))
    assert group_chosen_rows(graph, PassContext(CONTEXT.target)) == graph


def test_columns_of_different_choices_stay_as_they_are():
    text = FEW_BITS.replace("which: i32[{rows}]", "which: i32[{rows}], other: i32[{rows}]")
    graph = read(text.replace("gather(s, which", "gather(s, other").format(rows=64))
    assert group_chosen_rows(graph, CONTEXT) == graph


def test_graphs_inside_of_operators_have_sizes_of_their_own():
    text = """
def main(go: bool[()], x: f32[7, 1, 5], which: i64[7], w: f32[6, 2, 5, 8]):
    def then(x: f32[7, 1, 5], which: i64[7], w: f32[6, 2, 5, 8]):
        c: f32[7, 2, 5, 8] = gather(w, which, axis=0)
        y: f32[7, 1, 12] = matmul_packed(x, c, n=12)
        return y
    def other(x: f32[7, 1, 5], which: i64[7], w: f32[6, 2, 5, 8]):
        c: f32[7, 2, 5, 8] = gather(w, which, axis=0)
        d: f32[7, 1, 12] = matmul_packed(x, c, n=12)
        y: f32[7, 1, 12] = neg(d)
        return y
    z: f32[7, 1, 12] = branch(go, x, which, w, x, which, w, then=then, other=other)
    return z
"""
    found = group_chosen_rows(read(text), CONTEXT)
    verify_graph(found, when="in a test")
    (branch,) = (n.op for n in found.nodes)
    sizes = [bound_sizes(body.nodes) for body in bodies(branch)]
    assert sizes == [("tiles",), ("tiles_1",)]
