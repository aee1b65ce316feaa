"""What threads share out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.errors import ScheduleError
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.binary import Add
from dlc.graph.ops.matmul import MatMul, MatMulPacked
from dlc.schedule.loop import Func, LoopKind, loops
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Trace
from dlc.te.expr import Const, Expr
from dlc.te.transform import free_vars
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.nests import AVX512, M, N, assert_agree, func, of_kind, tensor


def grid(rows: int | Expr) -> Func:
    x = tensor("a", rows, 64)
    return func((x,), Relu().compute(x))


@pytest.mark.parametrize(
    ("plain", "runs_parallel"),
    [
        (grid(1023), False),  # 4 vectors a row
        (grid(1024), True),
        (grid(N), True),  # as large as it may be
        (CASES["one_row"](), False),
    ],
)
def test_threads_share_only_what_is_worth_it(plain: Func, runs_parallel: bool) -> None:
    fast = optimize(plain, replace(AVX512, thread_operations=4096))
    kinds = {f.kind for f in loops(fast.body).values()}
    assert (LoopKind.PARALLEL in kinds) == runs_parallel


@pytest.mark.parametrize(
    ("shape", "divides"),
    [((N, 30, M, 16), False), ((N, M, 16), True), ((3, M, 16), True), ((N, 6, M, 16), True)],
)
def test_a_counter_of_open_lines_is_not_divided_for_each_vector(
    shape: tuple[int | Expr, ...], divides: bool
) -> None:
    """Where the loops outside of a line are surely enough, a line runs in order."""
    x, bias = tensor("a", *shape), tensor("b", shape[-3], 1, 1)
    fast = optimize(func((x, bias), Relu().compute(Add().compute(x, bias))), AVX512)
    (shared,) = of_kind(fast, LoopKind.PARALLEL)
    assert ("m" in free_vars(shared.extent)) == divides


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "extents"),
    [
        ((16, 784, 16), [64]),  # 16 rows are few: each is cut into four
        ((3, 784, 16), [84]),
        ((64, 784, 16), [64]),
        ((1, 784, 16), [784]),  # nothing is divided
        ((16, 787, 16), [16 * 787]),  # a prime number
    ],
)
def test_a_counter_of_few_long_rows_is_not_divided_for_each_vector(
    shape: tuple[int, ...], extents: list[int]
) -> None:
    """A row is cut, and its parts are run in order."""
    x, bias = tensor("a", *shape), tensor("b", shape[0], 1, 16)
    plain = func((x, bias), Relu().compute(Add().compute(x, bias)))
    fast = optimize(plain, replace(AVX512, thread_operations=64))
    shared = of_kind(fast, LoopKind.PARALLEL)
    assert [int(f.extent.value) for f in shared if isinstance(f.extent, Const)] == extents
    assert_agree(plain, fast, {})


def test_threads_share_the_columns_of_one_row() -> None:
    """The loop over rows has one iteration and several nests: tiles of columns, and tails."""
    x, w = tensor("a", 1, 300), tensor("b", 19, 300, 16)
    plain = func((x, w), MatMulPacked(n=290).compute(x, w))
    fast = optimize(plain, replace(AVX512, thread_operations=4096))
    shared = of_kind(fast, LoopKind.PARALLEL)
    assert [int(f.extent.value) for f in shared if isinstance(f.extent, Const)] == [3]
    assert_agree(plain, fast, {})


def test_loops_stay_out_of_a_parallel_one_where_their_independence_cannot_be_told():
    """Phases of a transposed convolution, of an open batch, height and width."""
    text = """def f(n: size, h: size, w: size, *, out: f32[n, 12, h // 8 * 2 + 2, w // 8 * 2 + 2]):
    for a in range(2):
        for b in range(2):
            for c in range(12):
                for i in range(n):
                    for y in range(h // 8):
                        for x in range(w // 32):
                            for k in range(4):
                                out[i, c, 1 + y * 2 + a, 1 + (x * 4 + k) * 2 + b] = 1.0
"""
    func = parse_func(text)
    whole = Trace(func)
    with pytest.raises(ScheduleError, match="different iterations may use one element"):
        whole.do("parallel", whole.fuse_all([*"abciyx"]))
    trace = Trace(func)
    trace.parallel_outer(func.body, frozenset("k"))
    assert trace.loop("a_b_c").kind is LoopKind.PARALLEL


@pytest.mark.parametrize(
    ("heads", "cores", "extents"),
    [
        (3, 2, [30, 3]),  # whole tiles of columns, and the columns that they leave
        (3, 1, [3]),
        (4, 2, [4]),
        (5, 2, [5]),
        (5, 4, [50, 5]),
    ],
)
def test_heads_that_cores_cannot_share_are_parted(
    heads: int, cores: int, extents: list[int]
) -> None:
    a, b = tensor("a", heads, 20, 8), tensor("b", heads, 8, 197)
    plain = func((a, b), MatMul().compute(a, b))
    fast = optimize(plain, replace(AVX512, cores=cores, thread_operations=64))
    shared = of_kind(fast, LoopKind.PARALLEL)
    assert [int(f.extent.value) for f in shared if isinstance(f.extent, Const)] == extents
    assert_agree(plain, fast, {})
