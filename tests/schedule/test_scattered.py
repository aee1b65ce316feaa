"""Columns whose lines lie far apart are copied side by side, where that pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.ops.matmul import MatMul, MatMulPacked
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func, allocs
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.te.expr import Expr, Var, index
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType

TARGET = Target(features=frozenset({"avx512f", "avx2", "fma"}), thread_operations=0, cores=2)
NARROW = replace(TARGET, features=frozenset({"avx2", "fma"}))
N = Var("n")


def product(a: tuple[int | Expr, ...], b: tuple[int | Expr, ...]) -> Func:
    x, y = placeholder("x", TensorType(a)), placeholder("y", TensorType(b))
    return lower_tensors("f", ("n",), (x, y), (MatMul().compute(x, y),))


def copies(func: Func, target: Target = TARGET) -> list[str]:
    return [name for name in allocs(optimize(func, target).body) if "packed" in name]


@pytest.mark.parametrize(
    ("a", "b", "is_copied"),
    [
        ((64, 32), (32, 1024), True),
        ((64, 32), (32, 3072), True),
        ((64, 32), (32, 1040), False),  # lines of 4,160 bytes: their addresses differ
        ((64, 32), (32, 512), False),
        ((63, 32), (32, 1024), False),  # few rows
        ((64, 128), (128, 1024), True),
        ((64, 129), (129, 1024), False),  # long sums
        ((4096, 129), (129, 1024), True),  # of rows from afar
        ((2, 64, 32), (2, 32, 1024), True),
        ((2, 32, 32), (32, 1024), True),  # rows are counted through all matrices
        ((64, N), (N, 1024), False),  # nobody knows how long
        ((64, 32), (32, N), False),
        ((N, 32), (32, 1024), False),
    ],
)
def test_what_is_copied(
    a: tuple[int | Expr, ...], b: tuple[int | Expr, ...], is_copied: bool
) -> None:
    assert bool(copies(product(a, b))) == is_copied


@pytest.mark.parametrize(
    ("a", "b", "is_copied"),
    [
        ((64, 256), (256, 256), True),
        ((64, 64), (64, 130), True),
        ((64, 64), (64, 128), False),  # the first cache holds the columns
        ((63, 256), (256, 256), False),  # few rows
        ((40, 257), (257, 256), True),  # some rows, whose panels leave the first cache
        ((39, 257), (257, 256), False),
        ((25, 257), (257, 1024), True),
        ((24, 257), (257, 1024), False),
        ((25, 600), (600, 1040), True),  # columns that leave the second cache
        ((25, 257), (257, 1016), False),
        ((25, 2400), (2400, 250), False),  # lines near each other
        ((64, 256), (256, 60), False),  # less than four vectors for each core
        ((N, 256), (256, 256), False),
        ((64, 256), (256, N), False),
    ],
)
def test_tiles_of_two_vectors_read_copies_of_what_is_not_near(
    a: tuple[int | Expr, ...], b: tuple[int | Expr, ...], is_copied: bool
) -> None:
    assert bool(copies(product(a, b), NARROW)) == is_copied


def test_few_rows_read_copies_of_lines_whole_pages_apart() -> None:
    large = replace(NARROW, l2_bytes=1 << 24)
    assert copies(product((25, 257), (257, 1024)), large)
    assert not copies(product((25, 257), (257, 1040)), large)


def test_packed_panels_lie_side_by_side_already() -> None:
    x, w = placeholder("x", TensorType((128, 1024))), placeholder("w", TensorType((8, 1024, 16)))
    func = lower_tensors("f", (), (x, w), (MatMulPacked(n=index(128)).compute(x, w),))
    assert not [name for name in copies(func, NARROW) if name.startswith("w_packed")]


def test_cores_share_columns_not_the_rows_of_a_copy() -> None:
    func = product((64, 32), (32, 1024))
    assert copies(func, replace(TARGET, cores=16))
    assert not copies(func, replace(TARGET, cores=17))


def test_the_square_of_a_matrix_is_not_copied() -> None:
    x = placeholder("x", TensorType((1024, 1024)))
    func = lower_tensors("f", (), (x,), (MatMul().compute(x, x),))
    assert not copies(func, replace(TARGET, l2_bytes=1 << 20))


def test_a_copy_changes_no_result() -> None:
    func = product((2, 33, 3), (3, 1024))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 33, 3)), rng.standard_normal((3, 1024))
    arrays = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    assert copies(func)
    for made in (func, optimize(func, TARGET)):
        (found,) = run_func(made, {"n": 1}, arrays).values()
        np.testing.assert_allclose(found, x @ y, rtol=1e-5, atol=1e-5)
