"""Places along a line that cost divisions are looked up in tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.op import Op
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Pad
from dlc.schedule.loop import Func, LoopKind, Scope, allocs, loops
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import parse_func
from dlc.te.expr import Expr, Var, index
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.schedule.data import run_alike

AVX2 = Target(features=frozenset({"avx2", "fma"}), thread_operations=0, cores=2)
H, W = Var("h"), Var("w")


def lowered(op: Op, *shape: int | Expr) -> Func:
    x = placeholder("x", TensorType(shape))
    made = op.compute(x)
    assert not isinstance(made, tuple)
    return lower_tensors("f", ("h", "w"), (x,), (made,))


def resized(mode: str) -> Func:
    return lowered(Resize(sizes=(index(2), H, W), mode=mode), 2, 5, 9)


def padded(mode: str) -> Func:
    """As pads from data are: they may be negative."""
    amounts = {"before": (0, 0, H - W), "after": (0, 0, W)}
    return lowered(Pad(**amounts, mode=mode), 2, 3, 9)


CASES = {f"resize_{mode}": resized(mode) for mode in ("nearest", "linear", "cubic")}
CASES |= {f"pad_{mode}": padded(mode) for mode in ("reflect", "wrap", "edge")}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_what_a_table_says_is_what_it_stands_for(name: str) -> None:
    plain = CASES[name]
    fast = optimize(plain, AVX2)
    tables = [a for a in allocs(fast.body).values() if "_table" in a.buffer.name]
    assert tables
    assert all(t.scope is Scope.LOCAL and t.buffer.type.rank == 1 for t in tables)
    x = np.random.default_rng(0).integers(-4, 5, (2, 3 if "pad" in name else 5, 9))
    arrays = {"x": x.astype(np.float32)}
    for sizes in ({"h": 0, "w": 3}, {"h": 1, "w": 1}, {"h": 7, "w": 40}, {"h": 40, "w": 3}):
        needed = {s: sizes[s] for s in plain.sizes}
        want, got = (run_alike(f, plain, needed, arrays)[f.outputs[0].name] for f in (plain, fast))
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_one_thread_fills_a_table_element_by_element() -> None:
    fast = optimize(CASES["resize_linear"], AVX2)
    fills = [f for f in loops(fast.body).values() if "_table" in f.var]
    assert fills
    assert all(f.kind is LoopKind.SERIAL for f in fills)
    assert any(f.kind is LoopKind.PARALLEL for f in loops(fast.body).values())


@pytest.mark.parametrize(
    "plain",
    [
        lowered(Resize(sizes=(index(64), index(64)), mode="nearest"), 32, 32),  # shifts
        lowered(Pad(before=(0, 3), after=(0, 3), mode="reflect"), 4, W + 4),  # parts of a line
        lowered(Resize(sizes=(W,), mode="linear"), 40),  # no other loop reads the table again
        lowered(Resize(sizes=(index(30), index(30)), mode="linear"), 20, 20),  # short lines
    ],
)
def test_no_table_where_it_saves_little(plain: Func) -> None:
    fast = optimize(plain, replace(AVX2, cores=1))
    assert not [n for n in allocs(fast.body) if "_table" in n]


def test_what_may_not_be_divided_ahead_stays() -> None:
    plain = parse_func(
        "def f(h: size, A: f32[4, 64], *, B: f32[4, 64]):\n"
        "    for i in range(4):\n"
        "        for j in range(64):\n"
        "            B[i, j] = A[i, j] * f32(j // (h - 9))\n"
    )
    fast = optimize(plain, AVX2)
    assert not [n for n in allocs(fast.body) if "_table" in n]


def test_elements_that_are_picked_one_by_one_need_no_more_vectors_abreast() -> None:
    """Four share what it takes to find a row, where its elements lie side by side."""
    fast = optimize(CASES["resize_linear"], AVX2)
    lanes = [f.extent for f in loops(fast.body).values() if f.kind is LoopKind.VECTOR]
    assert index(16) in lanes
    assert index(32) not in lanes
