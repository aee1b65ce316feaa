"""Sizes that a node binds: what they may be computed from, and that passes keep them in order."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import InternalError, ShapeError, VerifyError
from dlc.core.types import DType
from dlc.graph.evaluate import evaluate
from dlc.graph.lower import lower_graph
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.pass_ import PassContext, run_passes
from dlc.graph.pipeline import PIPELINE
from dlc.graph.text import parse_graph, print_graph
from dlc.graph.verify import verify_graph
from dlc.schedule.program import Allocate, BindSize, Check, Provide, Release
from dlc.te.expr import Expr, Load, Var, cast, index
from dlc.te.types import TensorType

TEXT = """\
def main(n: size, x: f32[n, 4], s: i64[2]):
    t: i64[0] = bind_sizes(s, names=('a', 'b'), values=(index(in0[0]), max(index(in0[1]) + n, 0)))
    r: f32[a, b] = reshape(x, shape=(a, b))
    y: f32[a, b] = relu(r)
    u: f32[b, a] = transpose(y, perm=(1, 0))
    z: f32[b, a] = exp(u)
    return y, z
"""
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def element(*at: int, dtype: DType = DType.I64, buffer: str = "in0") -> Expr:
    return cast(DType.INDEX, Load(buffer, tuple(map(index, at)), dtype))


def test_text_and_meaning():
    graph = parse_graph(TEXT)
    verify_graph(graph, when="now")
    assert print_graph(graph).replace(", message=", "").startswith(TEXT[:40])
    assert parse_graph(print_graph(graph)) == graph
    found = evaluate(graph, {"x": X, "s": np.array([6, -1])})
    np.testing.assert_array_equal(found["y"], X.reshape(6, 2))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (element(2), "there is no element"),
        (element(0, 0), "there is no element"),
        (element(0, buffer="in1"), "there is no element"),
        (element(0, dtype=DType.I32), "there is no element"),
        (cast(DType.INDEX, Load("in2", (index(0),), DType.F32)), "is no integer"),
        (cast(DType.INDEX, Load("in0", (Var("n"),), DType.I64)), "there is no element"),
        (element(0, buffer="in3"), "there is no element"),
    ],
)
def test_only_elements_that_exist_are_read(value, why):
    operands = [TensorType((2,), DType.I64)] * 2
    operands += [TensorType((2,)), TensorType((Var("n"),), DType.I64)]
    with pytest.raises(ShapeError, match=why):
        BindSizes(names=("a",), values=(value,)).infer(
            *(operands[:1] if "in1" in str(value) else operands)
        )


def test_each_name_has_a_value():
    with pytest.raises(ShapeError, match="a size for each name"):
        BindSizes(names=("a", "b"), values=(index(1),)).infer()
    with pytest.raises(ShapeError, match="a size for each name"):
        BindSizes(names=("a",), values=(Load("in0", (), DType.I64),)).infer()


def test_it_is_no_kernel():
    op = BindSizes(names=("a",), values=(index(1),))
    with pytest.raises(InternalError, match="bound by the host"):
        op.compute()
    with pytest.raises(InternalError, match="gives sizes, not an array"):
        op.reference()
    unknown = BindSizes(names=("a",), values=(Var("m"),))
    with pytest.raises(InternalError, match="is not known"):
        unknown.evaluate((), {})


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("names=('a', 'b')", "names=('a', 'n')", "size 'n' is bound, but there is one"),
        ("names=('a', 'b')", "names=('a', 'x')", "size 'x' is bound, but there is one"),
        ("names=('a', 'b')", "names=('a', 'a')", "size 'a' is bound, but there is one"),
    ],
)
def test_a_size_is_bound_once(old, new, problem):
    graph = parse_graph(
        TEXT.replace(old, new).replace("b]", "a]").replace("[b", "[a").replace(", b)", ", a)")
    )
    with pytest.raises(VerifyError, match=problem):
        verify_graph(graph, when="now")


def test_a_size_is_bound_before_it_is_read():
    graph = parse_graph(TEXT)
    first, second, *rest = graph.nodes
    late = type(graph)(graph.name, graph.sizes, graph.inputs, (second, first, *rest), graph.outputs)
    with pytest.raises(VerifyError, match="reads undeclared size 'a'"):
        verify_graph(late, when="now")


def test_the_program_allocates_checks_and_provides():
    graph = run_passes(parse_graph(TEXT), PIPELINE, PassContext())
    program, _ = lower_graph(graph)
    kinds = [type(stmt) for stmt in program.body]
    bound = [i for i, kind in enumerate(kinds) if kind is BindSize]
    assert len(bound) == 2
    checks = [str(s.cond) for s in program.body if isinstance(s, Check)]
    assert kinds.index(Check) > bound[-1]
    assert checks == ["n * 4 == a * b", "b * a <= 9223372036854775807"]
    assert kinds.count(Provide) == 2
    assert Allocate not in kinds


def test_memory_is_released_behind_its_last_reader():
    text = TEXT.replace(
        "return y, z", "w: f32[b] = reduce(z, kind='sum', axes=(1,), keepdims=False)\n    return w"
    )
    graph = run_passes(parse_graph(text), PIPELINE, PassContext())
    program, _ = lower_graph(graph)
    for stmt in program.body:
        if isinstance(stmt, Release):
            break
    kinds = [type(stmt) for stmt in program.body]
    assert kinds.count(Allocate) == kinds.count(Release)


def test_a_size_nobody_reads_is_not_bound():
    graph = parse_graph(TEXT.replace("return y, z", "v: f32[n, 4] = neg(x)\n    return v"))
    done = run_passes(graph, PIPELINE, PassContext())
    assert [n for n in done.nodes if isinstance(n.op, BindSizes)] == []


def test_a_concatenation_of_unknown_size_is_not_built_in_place():
    text = """\
def main(x: f32[2000], w: f32[2000], s: i64[1]):
    y: f32[2000] = relu(x)
    t: i64[0] = bind_sizes(s, names=('k',), values=(max(index(in0[0]), 0),))
    v: f32[k] = slice(w, starts=(0,), sizes=(k,))
    e: f32[k] = exp(v)
    c: f32[k + 2000] = concat(y, e, axis=0)
    return c
"""
    done = run_passes(parse_graph(text), PIPELINE, PassContext())
    program, _ = lower_graph(done)  # verified: no memory of size k before k is known
    assert program.outputs[0].name == "c"
