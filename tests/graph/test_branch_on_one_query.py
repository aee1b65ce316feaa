"""branch_on_one_query keeps results for any number of queries, and leaves all that is not open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Gpu, Target
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.control import If
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import CONTEXT, ENGINE, arguments, read, run


def attention(rows="s", softmax="softmax(masked)", keys="n"):
    return f"""
def main(b: size, s: size, n: size, q: f32[b, 2, {rows}, 8], k: f32[b, 2, {keys}, 8],
         v: f32[b, 2, {keys}, 8], mask: f32[{rows}, {keys}], other: f32[n]):
    turned: f32[b, 2, 8, {keys}] = transpose(k, perm=(0, 1, 3, 2))
    scores: f32[b, 2, {rows}, {keys}] = matmul(q, turned)
    masked: f32[b, 2, {rows}, {keys}] = add(scores, mask)
    weights: f32[b, 2, {rows}, {keys}] = {softmax}
    y: f32[b, 2, {rows}, 8] = matmul(weights, v)
    merged: f32[b, {rows}, 2, 8] = transpose(y, perm=(0, 2, 1, 3))
    return merged
"""


def grouped(text, context=CONTEXT):
    return run("fuse_groups", read(text), context)


def branches(graph):
    return [node for node in graph.nodes if isinstance(node.op, If)]


@pytest.mark.parametrize("rows", ["s", "s * 3"])
def test_one_query_has_kernels_of_its_own(rows):
    graph = grouped(attention(rows))
    found = run("branch_on_one_query", graph)
    (branch,) = branches(found)
    kernels = [n for n in branch.op.then.nodes if isinstance(n.op, FusedGroup)]
    assert len(kernels) == 3
    assert all("s" not in str(v.type) for n in kernels for v in n.outputs)
    for queries in (1, 2, 5):
        sizes = {"b": 2, "s": queries, "n": 7}
        given = arguments(graph, sizes)
        wanted, got = evaluate(graph, given, sizes), evaluate(found, given, sizes)
        for name, array in wanted.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-6)


def test_attentions_share_their_question():
    lines = attention().replace("    return merged", "").rstrip()
    again = """
    q2: f32[b, 2, s, 8] = transpose(merged, perm=(0, 2, 1, 3))
    scores2: f32[b, 2, s, n] = matmul(q2, turned)
    weights2: f32[b, 2, s, n] = softmax(scores2)
    y2: f32[b, 2, s, 8] = matmul(weights2, v)
    return y2
"""
    found = run("branch_on_one_query", grouped(lines + again))
    first, second = branches(found)
    assert first.inputs[0] == second.inputs[0]


def test_rows_of_an_engine_become_plain_products():
    context = PassContext(target=Target(features=ENGINE), precision="medium")
    graph = grouped(attention().replace(" 8", " 64"), context)
    names = {m.op.name for n in graph.nodes for m in n.op.body.nodes}
    assert "matmul_pair" in names
    (branch,) = branches(run("branch_on_one_query", graph, context))
    alone = {m.op.name for n in branch.op.then.nodes if isinstance(n.op, FusedGroup)
             for m in n.op.body.nodes}  # fmt: skip
    assert "matmul" in alone
    assert "matmul_pair" not in alone


@pytest.mark.parametrize(
    "text",
    [
        attention("9"),
        attention("b + s"),
        attention("s + n"),
        attention(softmax="exp(masked)"),
        attention("n"),
        attention("s // 80"),
        attention("(s // 80 + 1) // 2 - 1"),
        attention(keys="(s - 1)"),
    ],
    ids=[
        "known",
        "of batches",
        "of two sizes",
        "no softmax",
        "an encoder",
        "none",
        "fewer",
        "no key",
    ],
)
def test_others_stay_as_they_are(text):
    graph = grouped(text)
    assert run("branch_on_one_query", graph) == graph


@pytest.mark.parametrize(("range_", "count"), [((0, 9), 1), ((1, 9), 1), ((2, 9), 0)])
def test_what_always_has_several_queries_has_one_kernel(range_, count):
    context = replace(CONTEXT, size_ranges={"s": range_})
    found = run("branch_on_one_query", grouped(attention()), context)
    assert len(branches(found)) == count


def test_a_gpu_has_one_kernel():
    context = replace(CONTEXT, target=replace(Target(backend="cuda"), gpu=Gpu()))
    graph = grouped(attention())
    assert run("branch_on_one_query", graph, context) == graph


def test_a_number_that_another_operand_says_is_never_one():
    graph = grouped("""
def main(n: size, x: f32[1, 3, n, n], v: f32[1, 3, 8, 5], w: f32[1, 3, 5, 8]):
    scores: f32[1, 3, n, 5] = matmul(x, v)
    weights: f32[1, 3, n, 5] = softmax(scores)
    y: f32[1, 3, n, 8] = matmul(weights, w)
    return y
""")
    assert not branches(run("branch_on_one_query", graph))
