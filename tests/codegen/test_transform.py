"""Winograd's convolution as machine code: what is not finite, and what is fused behind it."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.ops.activation import Silu
from dlc.graph.ops.binary import Add
from dlc.graph.ops.winograd import ConvWinograd, taps_of, transform_weights
from dlc.schedule.loop import Func, allocs
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import prepare, schedule_by, transform
from dlc.schedule.trace import Trace
from dlc.te.expr import Var, index
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, NATIVE, Kernel


def transformed(func: Func, target: Target, tile: tuple[int, ...], **knobs: int) -> Func:
    """A function as the rule schedules it, and no other: without a word, others are far slower."""
    found = transform.match(func, target)
    assert found is not None
    assert found.tile == tile
    prepared = Trace(func)
    prepare(prepared, target)
    fast = optimize(func, target, schedule_by(transform, prepared, target, knobs).steps)
    scopes = {name: alloc.scope for name, alloc in allocs(fast.body).items()}
    for name in ("pixel_columns", "sum_columns") if len(tile) > 1 else ("transformed",):
        assert scopes[name] == "register"
    return fast


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("columns_outer", [0, 1])
@pytest.mark.parametrize("tile", [(2, 2), (2, 4), (4, 2), (4, 4)])
def test_infinite_pixels_reach_their_own_results_only(
    target: Target, columns_outer: int, tile: tuple[int, int]
) -> None:
    random, block = np.random.default_rng(0), target.lanes(4)

    def small(*shape: int) -> np.ndarray:
        return random.integers(-3, 4, shape).astype(np.float32)

    x, w, r = (
        small(1, 2, 9, 8, block),
        60 * small(3, 2, 3, 3, block, block),
        small(1, 3, 7, 6, block),
    )
    x[0, 0, 3, 3, 2], x[0, 1, 6, 5, 1], x[0, 1, 0, 0, 0] = np.inf, np.nan, 3e38
    w[0, 0, 1, 1, 2] = 0.0
    arrays = {"x": x, "u": transform_weights(w, tile).astype(np.float32), "w": w, "r": r}
    *operands, residual = (placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    conv = ConvWinograd(out=tile)
    result = Add().compute(Silu().compute(conv.compute(*operands)), residual)
    func = lower_tensors("f", (), (*operands, residual), (result,))
    fast = transformed(func, target, tile, columns_outer=columns_outer)
    found = Kernel(fast, target)({}, arrays)["out"]
    with np.errstate(all="ignore"):
        whole = conv.reference(x.astype(np.float64), arrays["u"], w).astype(np.float32)
        wanted = Silu().reference(whole.astype(np.float64)) + r
    # Whole numbers are exact but for tiles of four by four, whose sums do not fit into 24 bits.
    large = 3 * np.abs(w).sum(axis=(1, 2, 3, 4)).max() if tile == (4, 4) else 2.0
    np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=1e-5, atol=2**-21 * large)
    assert np.isnan(wanted).any()
    assert np.isinf(wanted).any()
    assert np.isfinite(wanted).any()


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize(("columns_outer", "images"), [(0, 1), (0, 2), (1, 4)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_infinite_pixels_of_a_volume_reach_what_adds_them_up(
    target: Target, columns_outer: int, images: int, stride: int, dilation: int
) -> None:
    """Four images of results, in strips of one, two and all of them."""
    random, block = np.random.default_rng(0), target.lanes(4)
    count = 3 * stride + dilation + 1
    x = random.integers(-3, 4, (2, 2, count, 6, 9, block)).astype(np.float32)
    w = 4 * random.integers(-3, 4, (3, 2, 2, 3, 3, block, block)).astype(np.float32)
    x[0, 0, 2, 3, 3, 2], x[1, 1, 0, 4, 5, 1] = np.inf, np.nan
    arrays = {"x": x, "u": transform_weights(w, (2, 2)).astype(np.float32), "w": w}
    operands = tuple(placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    conv = ConvWinograd(stride=(stride,), dilation=(dilation,))
    func = lower_tensors("f", (), operands, (conv.compute(*operands),))
    fast = transformed(func, target, (2, 2), columns_outer=columns_outer, images=images)
    found = Kernel(fast, target)({}, arrays)["out"]
    with np.errstate(all="ignore"):
        wanted = conv.reference(x.astype(np.float64), arrays["u"], w).astype(np.float32)
    assert wanted.shape == (2, 3, 4, 4, 7, block)
    np.testing.assert_array_equal(found, wanted)
    assert 0 < np.isfinite(wanted).mean() < 1


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize(("columns_outer", "images"), [(0, 1), (0, 2), (1, 4)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("tile", [2, 4])
def test_infinite_pixels_of_a_line_reach_what_adds_them_up(
    target: Target, columns_outer: int, images: int, stride: int, dilation: int, tile: int
) -> None:
    """Four lines of results, in strips of one, two and all of them."""
    random, block = np.random.default_rng(0), target.lanes(4)
    count = 3 * stride + 2 * dilation + 1
    x = random.integers(-3, 4, (2, 2, count, 11, block)).astype(np.float32)
    w = 15 * random.integers(-3, 4, (3, 2, 3, 3, block, block)).astype(np.float32)
    x[0, 0, 2, 3, 2], x[1, 1, 0, 5, 1], x[0, 1, 1, 10, 0] = np.inf, np.nan, 3e38
    arrays = {"x": x, "u": transform_weights(w, (tile,)).astype(np.float32), "w": w}
    operands = tuple(placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    conv = ConvWinograd(out=(tile,), stride=(stride,), dilation=(dilation,))
    func = lower_tensors("f", (), operands, (conv.compute(*operands),))
    fast = transformed(func, target, (tile,), columns_outer=columns_outer, images=images)
    found = Kernel(fast, target)({}, arrays)["out"]
    with np.errstate(all="ignore"):
        wanted = conv.reference(x.astype(np.float64), arrays["u"], w).astype(np.float32)
    assert wanted.shape == (2, 3, 4, 9, block)
    np.testing.assert_array_equal(found, wanted)
    assert 0 < np.isfinite(wanted).mean() < 1


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("columns_outer", [0, 1])
@pytest.mark.parametrize(
    ("tile", "kernel"),
    [((4,), (5,)), ((3,), (7,)), ((3,), (4,)), ((2,), (2,)), ((2, 2), (5, 5)), ((2, 2), (3, 4)),
     ((3, 3), (7, 4)), ((3, 3), (4, 4))],
    ids=str,
)  # fmt: skip
def test_infinite_pixels_reach_their_own_results_of_a_kernel_of_parts(
    target: Target, columns_outer: int, tile: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    random, block = np.random.default_rng(0), target.lanes(4)
    sizes = [k + n - 1 for k, n in zip(kernel, (9, 8), strict=False)]
    x = random.integers(-3, 4, (1, 2, *sizes, block)).astype(np.float32)
    w = 15 * random.integers(-3, 4, (3, 2, *kernel, block, block)).astype(np.float32)
    last = tuple(n - 1 for n in sizes)
    x[(0, 0, *last, 2)], x[(0, 1, *(n - 2 for n in last), 1)] = np.inf, np.nan
    x[(0, 1, *(0 for _ in sizes), 0)] = 3e38
    arrays = {"x": x, "u": transform_weights(w, tile).astype(np.float32), "w": w}
    operands = tuple(placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    conv = ConvWinograd(out=tile)
    func = lower_tensors("f", (), operands, (conv.compute(*operands),))
    fast = transformed(func, target, tile, columns_outer=columns_outer)
    found = Kernel(fast, target)({}, arrays)["out"]
    with np.errstate(all="ignore"):
        wanted = conv.reference(x.astype(np.float64), arrays["u"], w).astype(np.float32)
    large = np.abs(w).sum(axis=tuple(range(1, w.ndim - 1))).max() if tile == (3, 3) else 0.0
    np.testing.assert_allclose(found, wanted, rtol=0 if not large else 1e-5, atol=2**-20 * large)
    assert 0 < np.isfinite(wanted).mean() < 1


@pytest.mark.parametrize("length", [1, 5, 64, 258, 265, "n"])
def test_a_line_of_any_length_is_cut_into_strips(length: int | str) -> None:
    random, block = np.random.default_rng(0), NATIVE.lanes(4)
    w = 15 * random.integers(-3, 4, (3, 2, 3, block, block)).astype(np.float32)
    u = transform_weights(w, (4,)).astype(np.float32)
    wide = Var("n") + 2 if length == "n" else index(int(length) + 2)
    x = placeholder("x", TensorType((2, 2, wide, block)))
    others = [placeholder(n, TensorType(a.shape)) for n, a in (("u", u), ("w", w))]
    conv = ConvWinograd(out=(4,))
    sizes = ("n",) if length == "n" else ()
    func = lower_tensors("f", sizes, (x, *others), (Silu().compute(conv.compute(x, *others)),))
    kernel = Kernel(transformed(func, NATIVE, (4,)), NATIVE)
    for count in (0, 1, 6, 33, 70) if length == "n" else (int(length),):
        pixels = random.integers(-3, 4, (2, 2, count + 2, block)).astype(np.float32)
        arrays = {"x": pixels, "u": u, "w": w}
        found = kernel({"n": count} if sizes else {}, arrays)["out"]
        wanted = Silu().reference(conv.reference(pixels.astype(np.float64), u, w))
        np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize(
    ("tile", "depth", "kernel"),
    [((2, 2), 32, 3), ((2, 4), 64, 3), ((2, 4), 256, 3), ((4, 4), 256, 3), ((4, 4), 512, 3),
     ((2,), 16, 3), ((4,), 64, 3), ((4,), 256, 3), ((4,), 48, 5), ((3,), 64, 4), ((3,), 48, 7),
     ((4, 4), 96, 5), ((3, 3), 48, 7), ((3, 3), 128, 4)],
)  # fmt: skip
def test_results_are_as_accurate_as_those_of_direct_sums(
    tile: tuple[int, ...], depth: int, kernel: int
) -> None:
    """Sums in one chain of float32, of random data, where tiles are said to be accurate."""
    random, block = np.random.default_rng(2), NATIVE.lanes(4)
    blocks = 32 // block  # as many results to take the mean of, whatever the vectors
    taps, sizes = [kernel] * len(tile), [kernel + 7] * len(tile)
    x = random.standard_normal((1, depth // block, *sizes, block)).astype(np.float32)
    w = random.standard_normal((blocks, depth // block, *taps, block, block)).astype(np.float32)
    conv = ConvWinograd(out=tile)
    arrays = {"x": x, "u": transform_weights(w, tile).astype(np.float32), "w": w}
    operands = tuple(placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    func = lower_tensors("f", (), operands, (conv.compute(*operands),))
    found = Kernel(transformed(func, NATIVE, tile), NATIVE)({}, arrays)
    exact = conv.reference(x.astype(np.float64), arrays["u"], w.astype(np.float64))
    direct = np.zeros(exact.shape, np.float32)
    for b, i, *k in np.ndindex(*x.shape[1:2], block, *taps):
        part = tuple(slice(n, n + 8) for n in k)
        pixels = x[(slice(None), None, b, *part, i, None)].astype(np.float64)
        weights = w[(None, slice(None), b, *k, i)].reshape(1, blocks, *(1 for _ in k), block)
        direct = (direct + pixels * weights).astype(np.float32)
    ours, theirs = (np.sqrt(((a - exact) ** 2).mean()) for a in (found["out"], direct))
    assert transform.is_accurate(tile, depth * prod(taps) / prod(taps_of(tile)))
    assert ours < 1.25 * theirs


def test_tiles_are_accurate_from_some_channels_on() -> None:
    tiles = [(2, 2), (2, 4), (4, 2), (4, 4), (2,), (4,), (3,), (3, 3)]
    known = [(depth, [transform.is_accurate(t, depth) for t in tiles]) for depth in (48, 64, 240)]
    assert known == [
        (48, [True, False, False, False, True, False, False, False]),
        (64, [True, True, True, False, True, True, True, False]),
        (240, [True, True, True, False, True, True, True, True]),
    ]


def test_much_that_is_fused_behind_a_large_tile_is_not_written_out() -> None:
    """Sixteen times a chain of activations would be more than is compiled in good time."""
    block, rng = NATIVE.lanes(4), np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((1, 2, 10, 11, block)).astype(np.float32),
        "w": rng.standard_normal((1, 2, 3, 3, block, block)).astype(np.float32),
    }
    arrays["u"] = transform_weights(arrays["w"], (4, 4)).astype(np.float32)
    x, w, u = (placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    conv = ConvWinograd(out=(4, 4))
    result = conv.compute(x, u, w)
    for _ in range(16):
        result = Silu().compute(result)
    func = lower_tensors("f", (), (x, u, w), (result,))
    found = Kernel(transformed(func, NATIVE, (4, 4)), NATIVE)({}, arrays)["out"]
    wanted = conv.reference(arrays["x"].astype(np.float64), arrays["u"], arrays["w"])
    for _ in range(16):
        wanted = Silu().reference(wanted.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
