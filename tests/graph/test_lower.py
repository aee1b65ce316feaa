"""Names in host programs, concatenations of many parts, and sums of many elements."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.graph.lower import lower_graph, lower_group
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Concat
from dlc.graph.pass_ import PassContext, run_passes
from dlc.graph.pipeline import PLAIN
from dlc.graph.text import parse_graph
from dlc.schedule.abstract_sizes import abstract_sizes
from dlc.schedule.interpret import evaluate_size, run_func
from dlc.schedule.pipeline import optimize
from dlc.schedule.program import CallKernel, HostIf, Program, statements
from dlc.te.expr import Select
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType


def test_kernels_have_other_names_than_buffers_and_sizes():
    graph = parse_graph("""\
def main(other: size, x: f32[other], y: f32[other]):
    def group(other: size, x: f32[other], y: f32[other]):
        c: f32[other] = add(x, y)
        return c
    def other(other: size, x: f32[other], y: f32[other]):
        c: f32[other] = sub(x, y)
        return c
    group: f32[other] = group(x, y)
    group_kernel: f32[other] = other(x, y)
    return group, group_kernel
""")
    program, _ = lower_graph(graph)
    assert [kernel.name for kernel in program.kernels] == ["group_kernel_kernel", "other_kernel"]


def test_groups_that_differ_in_the_names_of_sizes_are_one_kernel() -> None:
    graph = parse_graph("""\
def main(m: size, n: size, x: f32[m, 3], y: f32[n, 3], z: f32[n, 4]):
    def flip(m: size, x: f32[m, 3]):
        c: f32[m, 3] = neg(x)
        return c
    def flip_2(n: size, x: f32[n, 3]):
        c: f32[n, 3] = neg(x)
        return c
    def flip_3(n: size, x: f32[n, 4]):
        c: f32[n, 4] = neg(x)
        return c
    a: f32[m, 3] = flip(x)
    b: f32[n, 3] = flip_2(y)
    c: f32[n, 4] = flip_3(z)
    return a, b, c
""")
    program, _ = lower_graph(graph)
    calls = [(s.kernel, *map(str, s.sizes)) for s in program.body if isinstance(s, CallKernel)]
    assert calls == [("flip", "m"), ("flip", "n"), ("flip_2", "n")]


def test_of_many_parts_the_expression_stays_low():
    parts = [placeholder(f"x{i}", TensorType(as_sizes((1,)), DType.F32)) for i in range(1000)]
    level, depth = [Concat(axis=0).compute(*parts).body], 0
    while level := [e for part in level for e in (part.then, part.other) if isinstance(e, Select)]:
        depth += 1
    assert depth < 26  # 1000 in halves down to 16 at most, and these one by one


LOOP = """
def main(go: bool[()], h: f32[2], c: bool[()]):
    def loop(m: size, i: i64[()], first: f32[m], {0}: f32[2], c: bool[()]):
        more: bool[()] = const(1)
        def yes(v: f32[2]):
            {1}: f32[2] = neg(v)
            return {1}
        def no(v: f32[2]):
            else_{1}: f32[2] = abs(v)
            return else_{1}
        {2}: f32[2] = branch(c, {0}, {0}, then=yes, other=no)
        {3}: f32[m + 2] = concat(first, {2}, axis=0)
        return more, {3}, {2}
    y: i64[1]
    z: f32[k]
    r: f32[2]
    y, z, r = loop(go, h, h, c, body=loop, carries=2, limit=5, sizes=('m',), results=('k',))
    {4}: f32[2] = neg(r)
    return z, {4}
"""


@pytest.mark.parametrize(
    "names",
    [
        ("t", "v_", "number", "step", "y_number"),
        ("go", "v_", "sizes", "slot0", "y_t"),
        ("a", "then_b", "b", "b_then", "y_b"),
        ("a", "b", "first_value0", "next_value0", "y_m"),
    ],
)
def test_values_have_other_names_than_what_loops_need(names: tuple[str, ...]) -> None:
    def lowered(names: tuple[str, ...]) -> Program:
        graph = parse_graph(LOOP.format(*names))
        return lower_graph(run_passes(graph, PLAIN, PassContext()))[0]

    found = lowered(names)  # verified: nothing is bound twice
    other = lowered(("a1", "b1", "c1", "d1", "e1"))
    assert len(list(statements(found.body))) == len(list(statements(other.body)))


TRANSFORMED = """
def main(s: size, x: f32[1, 1, s + 2, s + 2, 8], w: f32[2, 1, 3, 3, 8, 8]):
    u: f32[4, 4, 2, 1, 8, 8] = const()
    def conv_winograd_relu(
            s: size, x: f32[1, 1, s + 2, s + 2, 8], u: f32[4, 4, 2, 1, 8, 8],
            w: f32[2, 1, 3, 3, 8, 8]):
        y: f32[1, 2, s, s, 8] = conv_winograd(x, u, w, cycles=(3, 4, 50))
        z: f32[1, 2, s, s, 8] = relu(y)
        return z
    z: f32[1, 2, s, s, 8] = conv_winograd_relu(x, u, w)
    return z
"""


def test_one_of_two_kernels_computes_an_image_of_open_size() -> None:
    program, _ = lower_graph(parse_graph(TRANSFORMED))
    (choice,) = (s for s in program.body if isinstance(s, HostIf))
    (direct,), (transformed,) = choice.then, choice.other
    assert isinstance(direct, CallKernel)
    assert isinstance(transformed, CallKernel)
    assert (direct.kernel, direct.buffers) == ("conv_blocked_relu", ("x", "w", "z"))
    assert (transformed.kernel, transformed.buffers) == ("conv_winograd_relu", ("x", "u", "w", "z"))
    below = [n for n in range(20) if evaluate_size(choice.cond, {"s": n})]
    assert below == [n for n in range(20) if 3 * n * n < 4 * ((n + 1) // 2) ** 2 + 50]
    known, _ = lower_graph(parse_graph(TRANSFORMED.replace(", cycles=(3, 4, 50)", "")))
    assert len(known.kernels) == 1


def test_one_of_two_kernels_computes_an_open_number_of_rows() -> None:
    program, _ = lower_graph(
        parse_graph("""
def main(b: size, s: size, x: f32[b, s, 32], w: f32[2, 32, 16]):
    def matmul_split_relu(b: size, s: size, x: f32[b, s, 32], w: f32[2, 32, 16]):
        y: f32[b, s, 32] = matmul_split(x, w, n=32, fewest=40)
        z: f32[b, s, 32] = relu(y)
        return z
    z: f32[b, s, 32] = matmul_split_relu(x, w)
    return z
""")
    )
    (choice,) = (s for s in program.body if isinstance(s, HostIf))
    calls = *choice.then, *choice.other
    assert [c.kernel for c in calls] == ["matmul_packed_relu", "matmul_split_relu"]
    assert {c.buffers for c in calls} == {("x", "w", "z")}
    assert str(choice.cond) == "s < 40"


def test_two_transforms_in_one_group_are_for_all_sizes() -> None:
    """Each has pixels of its own from which it pays."""
    text = TRANSFORMED.replace("relu(y)", "conv_winograd(x, u, w, cycles=(5, 6, 70))")
    text = text.replace("return z", "v: f32[1, 2, s, s, 8] = add(y, z)\n        return v", 1)
    program, _ = lower_graph(parse_graph(text))
    assert [type(s) for s in program.body] == [CallKernel]


def test_interpolation_of_four_axes_is_no_deeper_than_a_schedule_can_follow() -> None:
    graph = parse_graph("""\
def main(n: size, m: size, x: f32[n, m, 1, 1]):
    y: f32[1, 2, 2, 2] = resize(x, sizes=(1, 2, 2, 2), mode="cubic")
    return y
""")
    func, _ = abstract_sizes(lower_group(graph, "f"))  # a sum of 256 elements
    x = np.arange(6, dtype=np.float32).reshape(2, 3, 1, 1)
    found = run_func(optimize(func, Target()), {"n": 2, "m": 3}, {func.inputs[0].name: x})["out"]
    op = Resize(sizes=as_sizes((1, 2, 2, 2)), mode="cubic")
    np.testing.assert_allclose(found.reshape(1, 2, 2, 2), op.reference(x), rtol=1e-5)
