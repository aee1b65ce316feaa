"""Windows that share what they have in common: `slide`, alone, and what the rule makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlc.core.target import Target
from dlc.graph.ops.pool import MaxPool
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func, LoopKind, allocs, loops
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitives import slide
from dlc.schedule.rules import prepare, sliding
from dlc.schedule.rules.sliding import match
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Trace
from dlc.te.expr import index
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType

AVX512 = Target(features=frozenset({"avx512f", "avx2", "fma"}), thread_operations=0)


def pool(kernel: int, *shape: int, stride: int = 1, pads: int = 0) -> Func:
    x = placeholder("a", TensorType(tuple(map(index, shape))))
    op = MaxPool(kernel=(kernel,) * 2, stride=(stride,) * 2, pads=(pads,) * 4)
    return lower_tensors("f", (), (x,), (op.compute(x),))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(3, 5), st.integers(0, 6))
def test_places_of_any_step_keep_the_result(step: int, apart: int, terms: int, n: int) -> None:
    if min(step, apart) > 1 and step != apart:
        return  # refused: see test_refusals
    func = parse_func(f"""
def f(n: size, A: f32[4, n * {step} + {apart * terms + 3}], *, B: f32[4, n]):
    for y in range(4):
        for x in range(n):
            B[y, x] = -inf
            for i in range(2):
                for k in range({terms}):
                    B[y, x] = max(B[y, x], A[y, x * {step} + k * {apart} + i] if y < 3 else -1.0)
""")
    x = np.random.default_rng(n).integers(-9, 9, (4, n * step + apart * terms + 3))
    arrays = {"A": x.astype(np.float32)}
    made = slide(func, "B", "x", "k", "line")
    want, got = (run_func(f, {"n": n}, arrays)["B"] for f in (func, made))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_of_no_window_there_is_no_place(n: int) -> None:
    func = parse_func("""
def f(n: size, A: f32[n * 2 + 1], *, B: f32[n]):
    for x in range(n):
        B[x] = 0.0
        for k in range(1):
            B[x] += A[x * 2 + k]
""")
    arrays = {"A": np.arange(2 * n + 1, dtype=np.float32)}
    made = slide(func, "B", "x", "k", "line")
    np.testing.assert_array_equal(run_func(made, {"n": n}, arrays)["B"], arrays["A"][: 2 * n : 2])


def test_what_is_not_finite_is_found_by_every_window_over_it() -> None:
    plain = pool(5, 1, 2, 9, 21, pads=2)
    x = np.random.default_rng(1).integers(-9, 9, (1, 2, 9, 21)).astype(np.float32)
    x[0, 0, 4, 7], x[0, 1, 0, 0], x[0, 1, 8, 20], x[0, 1, 4] = np.nan, np.inf, np.nan, -np.inf
    want, got = (run_func(f, {}, {"a": x})["out"] for f in (plain, optimize(plain, AVX512)))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("func", "taken"),
    [
        (pool(3, 1, 2, 9, 21), True),
        (pool(2, 1, 2, 9, 21), False),  # it has four terms, of which two are shared
        (pool(3, 1, 2, 9, 21, 16), False),  # windows share vectors of a block of channels anyhow
        (pool(5, 1, 2, 9, 21, 16), True),
        (pool(3, 1, 2, 9, 21, stride=2), True),  # lanes lie apart in them, but not in their lines
        (pool(2, 1, 2, 9, 21, stride=4), True),
        (pool(2, 1, 2, 9, 51, stride=5), False),  # more vectors than shuffles pay for
        (pool(3, 1, 2, 9, 21, 16, stride=2), False),
    ],
)
def test_windows_are_taken_that_share_enough(func: Func, taken: bool) -> None:
    trace = Trace(func)
    prepare(trace, AVX512)
    assert (match(trace.func, AVX512) is not None) is taken


def test_no_vector_crosses_the_border_of_an_image() -> None:
    func = optimize(pool(3, 1, 2, 9, 53, pads=1), AVX512)
    lanes = [f.extent.value for f in loops(func.body).values() if f.kind is LoopKind.VECTOR]
    assert set(lanes) == {16, 5, 7}  # of 53 pixels 48, of 55 with the border 48
    assert "< 53" not in str(func)


def test_what_needs_no_border_is_read_where_it_is() -> None:
    def kept(func: Func) -> int:
        trace = Trace(func)
        prepare(trace, AVX512)
        found = match(trace.func, AVX512)
        assert found is not None
        sliding.schedule(trace, found, AVX512, {})
        return sum("_line" in name and "_panel" not in name for name in allocs(trace.func.body))

    assert (kept(pool(3, 1, 2, 9, 21)), kept(pool(3, 1, 2, 9, 21, pads=1))) == (1, 2)
