"""Products of pairs of bf16 in vectors: scheduled kernels against the operators' references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.ops.narrow import Narrow, Widen
from dlc.graph.ops.pairs import ConvPairs, MatMulPairs, pack_pairs
from dlc.graph.ops.pairs_planar import PlanarPairs, pack_columns
from dlc.graph.ops.planes_matmul import MatMulPlanes
from dlc.schedule.instruction import DOT_2XBF16_F32
from dlc.schedule.loop import allocs
from dlc.schedule.lower import lower_tensors
from dlc.schedule.rules import contract
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, NATIVE, Kernel, check
from tests.codegen.products import Products

PAIRS = replace(NATIVE, features=NATIVE.features | {"avx512f", "avx512bf16"})
HAS_PAIRS = "avx512bf16" in NATIVE.features
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="this machine has no products of bf16")


def small(seed, *shape):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def conv(x, w, **attributes):
    """A convolution of x [n, cb, *spatial, c] by weights [ob, cb, *kernel, c, oc]."""
    return ConvPairs(**attributes), [x, pack_pairs(w)]


def planar(x, w, **attributes):
    """A convolution of x [n, c, *spatial] by weights [ob, c, *kernel, oc]."""
    return PlanarPairs(width=w.shape[-2], **attributes), [x, pack_columns(w)]


def matmul(x, w, n):
    """The product of x [..., k] with panels [p, k, nr]."""
    return MatMulPairs(n=n), [x, pack_pairs(w)]


CASES = {
    "image": conv(small(0, 1, 3, 9, 7, 16), small(1, 5, 3, 3, 3, 16, 16)),
    "batch": conv(small(0, 2, 2, 7, 11, 16), small(1, 3, 2, 1, 1, 16, 16)),
    "strided": conv(small(0, 1, 2, 10, 13, 16), small(1, 2, 2, 3, 2, 16, 16), stride=(2, 3)),
    "dilated": conv(small(0, 1, 2, 9, 9, 16), small(1, 2, 2, 3, 2, 16, 16), dilation=(2, 3)),
    "groups": conv(small(0, 1, 6, 9, 7, 16), small(1, 9, 2, 3, 3, 16, 16), groups=3, stride=(2, 1)),
    "groups_of_a_block": conv(small(0, 1, 3, 5, 9, 16), small(1, 3, 1, 3, 3, 16, 16), groups=3),
    "line": conv(small(0, 1, 2, 40, 16), small(1, 3, 2, 3, 16, 16), stride=(1,), dilation=(1,)),
    "planar": planar(small(0, 1, 3, 19, 30), small(1, 4, 3, 7, 7, 16), stride=(2, 2)),
    "planar_odd": planar(small(0, 2, 1, 6, 37), small(1, 3, 1, 3, 5, 16), dilation=(2, 1)),
    "planar_even": planar(small(0, 1, 5, 9, 20), small(1, 1, 5, 2, 4, 16), stride=(1, 3)),
    "planar_volume": planar(
        small(0, 1, 2, 4, 5, 20), small(1, 2, 2, 2, 3, 3, 16), stride=(1, 2, 2), dilation=(1, 1, 1)
    ),
    "planar_line": planar(small(0, 2, 2, 50), small(1, 2, 2, 3, 16), stride=(2,), dilation=(1,)),
    "planar_mono": planar(small(0, 1, 1, 50), small(1, 2, 1, 4, 16), stride=(2,), dilation=(1,)),
    "rows": matmul(small(0, 2, 37, 64), small(1, 5, 64, 16), 80),
    "a_row": matmul(small(0, 1, 96), small(1, 9, 96, 16), 144),
    "a_tail_of_lanes": matmul(small(0, 5, 32), small(1, 3, 32, 16), 45),
    "few_lanes": matmul(small(0, 5, 32), small(1, 1, 32, 3), 3),
    "one_column": matmul(small(0, 9, 32), small(1, 1, 32, 1), 1),
    "wide_panels": matmul(small(0, 19, 48), small(1, 2, 48, 32), 50),
}


PRODUCTS = Products(PAIRS, (DType.F32, DType.BF16), "dpbf16ps")
lowered, fast, run = PRODUCTS.lowered, PRODUCTS.fast, PRODUCTS.run


@needs_pairs
@pytest.mark.parametrize("name", [name for name in CASES if name != "one_column"])
def test_products_are_exact_for_small_integers(name):
    op, arrays = CASES[name]
    np.testing.assert_array_equal(run(op, arrays), op.reference(*arrays))


INTERPRETED = {
    "planar": planar(small(0, 1, 2, 4, 6), small(1, 2, 2, 2, 3, 16)),
    "planar_mono": planar(small(0, 1, 1, 9), small(1, 2, 1, 3, 16), stride=(2,), dilation=(1,)),
    "image": conv(small(0, 1, 1, 3, 4, 16), small(1, 2, 1, 2, 2, 16, 16)),
    "groups": conv(small(0, 1, 4, 3, 4, 16), small(1, 2, 2, 1, 2, 16, 16), groups=2),
    "rows": matmul(small(0, 3, 16), small(1, 2, 16, 16), 21),
    "one_column": matmul(small(0, 5, 16), small(1, 1, 16, 1), 1),
}


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("name", INTERPRETED)
def test_any_target_and_the_interpreter_compute_the_same(name, target):
    op, arrays = INTERPRETED[name]
    func = fast(lowered(op, arrays), target)
    check(func, target=target, arrays=dict(zip("xw", arrays, strict=True)), rtol=0)


@needs_pairs
@pytest.mark.parametrize("knobs", [
    {"rows": 3, "columns": 2, "steps": 1}, {"columns_outer": 1, "first_summand": 1, "steps": 4},
    {"rows": 5, "columns": 1, "high": 2, "first_summand": 2}, {"ahead": 1024, "rows": 28},
])  # fmt: skip
def test_any_tiles_give_the_same(knobs):
    for name in ("image", "rows"):
        op, arrays = CASES[name]
        found = run(op, arrays, lambda v: v * v + v, **knobs)
        whole = op.reference(*arrays)
        np.testing.assert_array_equal(found, whole * whole + whole)


def test_the_sums_of_a_tile_stay_in_registers():
    """Also on a machine that cannot run them: the steps of a sum touch no other memory."""
    op, arrays = CASES["image"]
    func = fast(lowered(op, arrays))
    assert 'invoke("dot_2xbf16_f32"' in str(func)
    sums = [a for name, a in allocs(func.body).items() if name.startswith("conv_pairs")]
    assert {a.scope.value for a in sums} == {"register"}
    text = emit_func(func, PAIRS)
    assert "dpbf16ps.512" in text
    assert "llvm.fma" not in text


@needs_pairs
@pytest.mark.parametrize("name", ["image", "strided", "planar", "rows", "a_tail_of_lanes"])
def test_rows_of_bf16_are_read_where_they_are(name):
    op, (x, w) = CASES[name]
    given = placeholder("x", TensorType(x.shape, DType.BF16))
    weights = placeholder("w", TensorType(w.shape, DType.BF16))
    result = Narrow().compute(op.compute(Widen().compute(given), weights))
    func = fast(lower_tensors("product", (), (given, weights), (result,)))
    assert "rows" not in allocs(func.body)
    kernel = Kernel(func)
    assert "dpbf16ps" in kernel.ir
    found = kernel({}, {"x": round_to(x, DType.BF16), "w": w})["out"]
    wanted = round_to(op.reference(x, w), DType.BF16)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_rows_of_float32_are_rounded_once_by_instructions():
    op, arrays = CASES["rows"]
    func = fast(lowered(op, arrays))
    assert str(func).count('invoke("split_bf16_1_of_16"') == 1
    assert allocs(func.body)["rows"].buffer.type == TensorType((2, 37, 4, 1, 16), DType.BF16)


@needs_pairs
def test_sizes_may_be_open():
    op, (dense, w) = CASES["rows"]
    PRODUCTS.check_open_rows(op, dense, w)


@needs_pairs
def test_an_image_may_be_of_an_open_size():
    op, (dense, w) = CASES["strided"]
    PRODUCTS.check_open_image(op, dense, w)


@needs_pairs
def test_infinities_and_nan_are_those_of_floats():
    x, w = small(0, 4, 32), small(1, 2, 32, 16)
    w[:, :4] = 1
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = np.inf, -np.inf, np.nan, np.float32(3.4e38)
    op, arrays = matmul(x, w, 32)
    found = run(op, arrays)
    assert (found[0] == np.inf).all()
    assert (found[1] == -np.inf).all()
    assert np.isnan(found[2]).all()
    assert (found[3] == np.inf).all()  # which the nearest bf16 is


@needs_pairs
@pytest.mark.parametrize("width", [3, 4])
def test_what_only_zeros_of_a_planar_kernel_meet_is_not_in_the_sum(width):
    """Of three columns the fourth is zeros, which would make an infinite pixel NaN."""
    x, w = small(0, 1, 2, 5, 40), np.ones((2, 2, 3, width, 16), np.float32)
    x[0, 0, 2, 10], x[0, 1, 2, 30] = np.inf, np.nan
    op, arrays = planar(x, w)
    found = run(op, arrays)
    wanted = op.reference(*arrays).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)
    assert np.isinf(wanted[..., 0]).any(axis=(0, 1, 2)).sum() == width
    assert np.isnan(wanted[..., 0]).any(axis=(0, 1, 2)).sum() == width


@needs_pairs
def test_factors_are_rounded_and_sums_are_float32():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 512)).astype(np.float32)
    w = rng.standard_normal((2, 512, 16)).astype(np.float32)
    op, arrays = matmul(x, w, 32)
    found = run(op, arrays)
    exact = op.reference(round_to(x, DType.BF16), arrays[1])
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4)
    assert np.abs(found - op.reference(x, arrays[1])).max() > 1e-3


def test_sums_of_other_pairs_are_no_pairs():
    """Neighbours in one operand alone, or numbers of other types."""
    text = lowered(*CASES["rows"])
    assert contract.match(text, PAIRS).at_once is DOT_2XBF16_F32
    wide = (
        placeholder("x", TensorType((5, 6), DType.F32)),
        placeholder("w", TensorType((6, 16), DType.F32)),
    )
    from dlc.graph.ops.matmul import MatMul

    func = lower_tensors("product", (), wide, (MatMul().compute(*wide),))
    assert contract.match(func, PAIRS).at_once is None


def test_rows_of_tiles_are_brought_together_as_ever():
    """Sums for a matrix engine end in pairs, too, but their rows have a place of their own."""
    engine = replace(PAIRS, features=PAIRS.features | {"amx-tile", "amx-bf16"})
    given = placeholder("x", TensorType((37, 64), DType.BF16))
    tiles = placeholder("w", TensorType((2, 2, 1, 16, 16, 2), DType.BF16))
    result = MatMulPlanes(n=32).compute(Widen().compute(given), tiles)
    func = fast(lower_tensors("product", (), (given, tiles), (result,)), engine)
    assert "tile_dot_bf16" in str(func)
    assert "rows" in allocs(func.body)
    assert not any(name.startswith("widen") for name in allocs(func.body))
