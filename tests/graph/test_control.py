"""Loops and branches of a graph: what `infer` refuses, what passes do with their bodies."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import InternalError, ShapeError
from dlc.core.types import DType
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph
from dlc.graph.lower import lower_graph
from dlc.graph.ops.control import If, Loop
from dlc.graph.pass_ import PassContext, run_passes
from dlc.graph.pipeline import PIPELINE
from dlc.graph.text import parse_graph, print_graph
from dlc.graph.verify import verify_graph
from dlc.schedule.program import Copy, HostIf
from dlc.te.expr import index
from dlc.te.types import TensorType

BOOL = TensorType((), DType.BOOL)
NUMBER = TensorType((), DType.I64)
LOOP = """\
def main(n: size, x: f32[n], w: f32[2], go: bool[()]):
    def loop(m: size, i: i64[()], s: f32[m], v: f32[2]):
        d: f32[2] = mul(v, v)
        t: f32[m + 2] = concat(s, d, axis=0)
        c: i64[()] = const(3)
        more: bool[()] = less(i, c)
        return more, t
    steps: i64[1]
    y: f32[k]
    steps, y = loop(go, x, w, body=loop, carries=1, limit=9, sizes=('m',), results=('k',))
    z: f32[k] = relu(y)
    return z
"""
BRANCH = """\
def main(n: size, x: f32[n, 3], c: bool[()]):
    def then(n: size, a: f32[n, 3]):
        b: f32[n * 2, 3] = concat(a, a, axis=0)
        return b
    def other(n: size, a_1: f32[n, 3]):
        b_1: f32[n, 3] = neg(a_1)
        return b_1
    y: f32[k, 3] = branch(c, x, x, then=then, other=other, results=('k',))
    return y
"""


def body(text: str) -> Graph:
    return parse_graph(text)


STEP = """\
def step(i: i64[()], s: f32[2], v: f32[3]):
    c: bool[()] = const(1)
    go: bool[()] = identity(c)
    t: f32[2] = neg(s)
    return go, t
"""


@pytest.mark.parametrize(
    ("change", "operands", "why"),
    [
        ({}, (TensorType((2,), DType.BOOL), TensorType((2,)), TensorType((3,))), "not one bool"),
        ({}, (NUMBER, TensorType((2,)), TensorType((3,))), "not one bool"),
        ({}, (BOOL, TensorType((2,))), "takes 2 operands"),
        ({"carries": 2}, (BOOL, TensorType((2,)), TensorType((3,))), "takes 2 operands"),
        ({"results": ("k",)}, (BOOL, TensorType((2,)), TensorType((3,))), "sizes lack a name"),
        ({}, (BOOL, TensorType((2,)), TensorType((4,))), "takes f32"),
        ({}, (BOOL, TensorType((2, 1)), TensorType((3,))), "takes f32"),
        ({}, (BOOL, TensorType((2,), DType.I32), TensorType((3,))), "takes f32"),
    ],
)
def test_a_loop_refuses(change, operands, why):
    settings = {"body": body(STEP), "carries": 1, "limit": index(4)} | change
    with pytest.raises(ShapeError, match=why):
        Loop(**settings).infer(*operands)


def test_a_loop_without_a_condition_is_refused():
    text = STEP.replace("return go, t", "return t, t")
    with pytest.raises(ShapeError, match="gives no condition"):
        Loop(body=body(text), carries=1, limit=index(4)).infer(
            BOOL, TensorType((2,)), TensorType((3,))
        )


YES = "def then(a: f32[2]):\n    b: f32[2] = neg(a)\n    return b\n"
NO = "def other(c: f32[2]):\n    d: f32[2] = exp(c)\n    return d\n"


@pytest.mark.parametrize(
    ("other", "condition", "count", "why"),
    [
        (NO, NUMBER, 2, "not one bool"),
        (NO, BOOL, 1, "its branches take"),
        (NO.replace("return d", "return d, d"), BOOL, 2, "in the number of results"),
        (NO.replace("f32", "f64"), BOOL, 2, "its branches take"),
        (NO.replace("d: f32[2] = exp(c)", "d: bool[2] = less(c, c)"), BOOL, 2, "its branches give"),
        (
            NO.replace("d: f32[2] = exp(c)", "d: f32[4] = concat(c, c, axis=0)"),
            BOOL,
            2,
            "lacks a name",
        ),
    ],
)
def test_a_branch_refuses(other, condition, count, why):
    op = If(then=body(YES), other=body(other))
    with pytest.raises(ShapeError, match=why):
        op.infer(condition, *[TensorType((2,))] * count)


def test_neither_is_a_kernel():
    with pytest.raises(InternalError, match="no kernel"):
        Loop(body=body(STEP), carries=1, limit=index(4)).compute()
    with pytest.raises(InternalError, match="no kernel"):
        If(then=body(YES), other=body(NO)).compute()


@pytest.mark.parametrize("text", [LOOP, BRANCH])
def test_passes_keep_the_meaning(text):
    graph = parse_graph(text)
    verify_graph(graph, when="now")
    assert parse_graph(print_graph(graph), {"c": np.array(3)}) == graph
    done = run_passes(graph, PIPELINE, PassContext())
    lower_graph(done)
    for flag in (True, False):
        for n in (0, 1, 4):
            x = np.arange(3 * n, dtype=np.float32).reshape(n, 3) - 2
            arrays = {"x": x, "c": np.array(flag)}
            if text is LOOP:
                arrays = {"x": x[:, 0], "w": np.float32([2, 3]), "go": np.array(flag)}
            before, after = evaluate(graph, arrays), evaluate(done, arrays)
            for name, array in before.items():
                np.testing.assert_array_equal(after[name], array)


SAME = """\
def main(n: size, x: f32[n, 3], c: bool[()]):
    def then(n: size, a: f32[n, 3]):
        b: f32[n, 3] = exp(a)
        d: f32[n, 3] = sqrt(b)
        return b, d
    def other(n: size, a_1: f32[n, 3]):
        b_1: f32[n, 3] = neg(a_1)
        d_1: f32[n, 3] = exp(b_1)
        return b_1, d_1
    y: f32[n, 3]
    z: f32[n, 3]
    y, z = branch(c, x, x, then=then, other=other)
    return y, z
"""

EARLIER = """\
def main(n: size, x: f32[n, 3], w: f32[3, 3], c: bool[()]):
    e: f32[n, 3] = matmul(x, w)
    def then(n: size, a: f32[n, 3]):
        return a
    def other(n: size, a_1: f32[n, 3]):
        b_1: f32[n, 3] = exp(a_1)
        return b_1
    y: f32[n, 3] = branch(c, e, e, then=then, other=other)
    z: f32[n, 3] = matmul(y, w)
    return z
"""


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        (BRANCH, [0, 0]),
        (BRANCH.replace("return b_1", "return a_1"), [0, 1]),
        (SAME, [0, 0]),
        (SAME.replace("return b, d", "return a, d"), [1, 0]),
        (SAME.replace("return b_1, d_1", "return d_1, d_1"), [0, 2]),
        (EARLIER, [1, 0]),
    ],
)
def test_a_branch_computes_its_results_where_they_stay(text, copies):
    program, _ = lower_graph(run_passes(parse_graph(text), PIPELINE, PassContext()))
    (choice,) = [stmt for stmt in program.body if isinstance(stmt, HostIf)]
    found = [[s for s in arm if isinstance(s, Copy)] for arm in (choice.then, choice.other)]
    assert [len(arm) for arm in found] == copies


def test_constants_of_bodies_are_the_model_s():
    done = run_passes(parse_graph(LOOP), PIPELINE, PassContext())
    assert [a.tolist() for a in done.constants.values()] == [3]
    (loop,) = [n.op for n in done.nodes if isinstance(n.op, Loop)]
    assert not loop.body.constants
