"""Short rows of which only a run knows how many there are: groups of four, then single ones."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.ops.softmax import LogSoftmax, Softmax
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func, LoopKind, loops
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.te.expr import Expr, Var
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType

AVX2 = Target(features=frozenset({"avx2", "fma"}), thread_operations=0)
AVX512 = Target(features=frozenset({"avx512f", "avx2", "fma"}), thread_operations=0)
N, B = Var("n"), Var("b")


def softmax(*shape: int | Expr, log: bool = False) -> Func:
    x = placeholder("x", TensorType(shape))
    kind = LogSoftmax if log else Softmax
    return lower_tensors("f", ("b", "n"), (x,), (kind(axis=-1).compute(x),))


def shared(func: Func) -> list[str]:
    """The extents of the loops that threads share."""
    return [str(f.extent) for f in loops(func.body).values() if f.kind is LoopKind.PARALLEL]


@pytest.mark.thorough
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 7, 9])
def test_groups_of_open_rows_keep_the_result(rows: int, log: bool) -> None:
    plain = softmax(N, 21, log=log)
    fast = optimize(plain, AVX2)
    x = np.random.default_rng(rows).standard_normal((rows, 21)).astype(np.float32)
    sizes = {"n": rows}
    want, got = (
        run_func(f, {s: sizes[s] for s in f.sizes}, {"x": x})[f.outputs[0].name]
        for f in (plain, fast)
    )
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "target", "extents"),
    [
        ((N, 20), AVX2, ["n // 4", "(n + 3) // 4 - n // 4"]),  # what is left is one iteration
        ((B, 3, N, 20), AVX2, ["b * n * 3 // 4", "(b * n * 3 + 3) // 4 - b * n * 3 // 4"]),
        ((N, 513), AVX2, ["n"]),
        ((N, 20), AVX512, ["n // 4", "(n + 3) // 4 - n // 4"]),
    ],
)
def test_open_rows_go_together_where_threads_share_what_is_left(
    shape: tuple[int | Expr, ...], target: Target, extents: list[str]
) -> None:
    assert shared(optimize(softmax(*shape), target)) == extents
