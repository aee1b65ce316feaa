"""Winograd's convolution as machine code: what is not finite, and what is fused behind it."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.core.types import DType
from dlc.graph.ops.activation import Silu
from dlc.graph.ops.binary import Add
from dlc.graph.ops.byte_products import ConvBytes, pack_bytes
from dlc.graph.ops.filters import Tile, inverse_of, scale_of, transform_weights
from dlc.graph.ops.winograd import ConvWinograd, ConvWinogradBytes
from dlc.schedule.loop import Func, allocs, loops
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import prepare, schedule_by, transform
from dlc.schedule.rules.transform_accuracy import is_accurate
from dlc.schedule.trace import Trace
from dlc.te.expr import Var, cast, index
from dlc.te.tensor import elementwise, placeholder
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


@pytest.mark.parametrize(("times", "nests"), [(1, {"", "_pair", "_pair_single"}), (8, {""})])
def test_tiles_that_fours_leave_of_an_open_row_are_computed_together(
    times: int, nests: set[str]
) -> None:
    random, block = np.random.default_rng(0), AVX2.lanes(4)
    w = 225 * random.integers(-3, 4, (4, 1, 3, 3, block, block)).astype(np.float32)
    u = transform_weights(w, (4, 4)).astype(np.float32)
    x = placeholder("x", TensorType((1, 1, Var("h") * times + 2, Var("v") * times + 2, block)))
    others = [placeholder(n, TensorType(a.shape)) for n, a in (("u", u), ("w", w))]
    conv = ConvWinograd(out=(4, 4))
    func = lower_tensors("f", ("h", "v"), (x, *others), (conv.compute(x, *others),))
    fast = transformed(func, AVX2, (4, 4))
    ends = {name.rpartition("_rest")[2] for name in loops(fast.body) if "_rest" in name}
    assert {end for end in ends if end.removeprefix("_pair") in ("", "_single")} == nests
    kernel = Kernel(fast, AVX2)
    for wide in range(1, 30, 4):  # from one tile of a row to eight
        high = 3 + wide % 3
        shape = (1, 1, times * high + 2, times * wide + 2, block)
        pixels = random.integers(-3, 4, shape).astype(np.float32)
        found = kernel({"h": high, "v": wide}, {"x": pixels, "u": u, "w": w})["out"]
        wanted = conv.reference(pixels.astype(np.float64), u, w)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize(
    ("out", "depth", "kernel", "step"),
    [((2, 2), 32, 3, 1), ((2, 4), 64, 3, 1), ((2, 4), 256, 3, 1), ((4, 4), 256, 3, 1),
     ((4, 4), 512, 3, 1), ((2,), 16, 3, 1), ((4,), 64, 3, 1), ((4,), 256, 3, 1), ((4,), 48, 5, 1),
     ((3,), 64, 4, 1), ((3,), 48, 7, 1), ((4, 4), 96, 5, 1), ((3, 3), 48, 7, 1),
     ((3, 3), 128, 4, 1), ((3, 3), 32, 2, 1), ((3, 3), 256, 2, 1), ((3,), 32, 2, 1),
     ((3,), 128, 2, 1), ((3, 2), 32, (2, 3), 1), ((3, 3), 80, (4, 2), 1), ((3, 4), 80, (2, 3), 1),
     ((4, 3), 256, (3, 2), 1),
     ((3, 3), 32, 3, 2), ((3, 3), 128, 3, 2), ((3, 3), 64, 4, 2), ((2, 2), 16, 5, 2),
     ((3,), 32, 3, 2), ((3,), 64, 4, 2), ((3, 4), 256, (4, 3), 1)],
)  # fmt: skip
def test_results_are_as_accurate_as_those_of_direct_sums(
    out: tuple[int, ...], depth: int, kernel: int | tuple[int, ...], step: int
) -> None:
    """Sums in one chain of float32, of random data, where tiles are said to be accurate.

    Half of the pixels are 0 behind a Relu, but of lines of four results, which are said to round
    more then.
    """
    random, block = np.random.default_rng(2), NATIVE.lanes(4)
    blocks = 32 // block  # as many results to take the mean of, whatever the vectors
    taps = kernel if isinstance(kernel, tuple) else (kernel,) * len(out)
    tile = Tile(out, taps, (step,) * len(out))
    reach = 7 * step + 1  # from the first pixel of eight results by one tap to the last
    sizes = [k - 1 + reach for k in taps]
    x = random.standard_normal((1, depth // block, *sizes, block)).astype(np.float32)
    x = x if out == (4,) else np.maximum(x, 0)
    w = random.standard_normal((blocks, depth // block, *taps, block, block)).astype(np.float32)
    conv = ConvWinograd(out=out, steps=tile.steps)
    arrays = {"x": x, "u": transform_weights(w, out, tile.steps).astype(np.float32), "w": w}
    operands = tuple(placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    func = lower_tensors("f", (), operands, (conv.compute(*operands),))
    found = Kernel(transformed(func, NATIVE, out), NATIVE)({}, arrays)
    exact = conv.reference(x.astype(np.float64), arrays["u"], w.astype(np.float64))
    direct = np.zeros(exact.shape, np.float32)
    for b, i, *k in np.ndindex(*x.shape[1:2], block, *taps):
        part = tuple(slice(n, n + reach, step) for n in k)
        pixels = x[(slice(None), None, b, *part, i, None)].astype(np.float64)
        weights = w[(None, slice(None), b, *k, i)].reshape(1, blocks, *(1 for _ in k), block)
        direct = (direct + pixels * weights).astype(np.float32)
    ours, theirs = (np.sqrt(((a - exact) ** 2).mean()) for a in (found["out"], direct))
    assert is_accurate(out, tile.positions, depth * prod(taps) / prod(tile.taps))
    assert ours < 1.25 * theirs


@pytest.mark.parametrize(
    ("tile", "least"),
    [
        (Tile((2, 2), (3, 3)), 0),
        (Tile((2, 4), (3, 3)), 64),
        (Tile((4, 2), (3, 3)), 64),
        (Tile((4, 4), (3, 3)), 256),
        (Tile((3, 3), (4, 4)), 128),
        (Tile((3, 4), (4, 3)), 256),
        (Tile((4, 3), (3, 4)), 256),
        (Tile((2,), (3,)), 0),
        (Tile((4,), (3,)), 64),
        (Tile((3,), (4,)), 64),
        (Tile((3, 3), (2, 2)), 32),
        (Tile((3,), (2,)), 32),
        (Tile((3, 2), (2, 3)), 32),
        (Tile((3, 4), (2, 3)), 80),
        (Tile((3, 3), (4, 2)), 80),
        (Tile((3, 3), (2, 4)), 80),
        (Tile((3, 3), (3, 3), (2, 2)), 32),
        (Tile((2, 2), (5, 5), (2, 2)), 0),
        (Tile((3, 4), (4, 3), (2, 1)), 80),
    ],
    ids=str,
)
def test_tiles_are_accurate_from_some_channels_on(tile: Tile, least: int) -> None:
    assert is_accurate(tile.out, tile.positions, least)
    assert not is_accurate(tile.out, tile.positions, least - 1)


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


EXTREMES = {"u8": (0, 1, 128, 254, 255), "i8": (-128, -127, 0, 1, 127)}


def bytes_of(kind: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Widened bytes, the largest and the least often."""
    return np.random.default_rng(seed).choice(EXTREMES[kind], shape).astype(np.int16)


def in_pairs(w: np.ndarray) -> np.ndarray:
    """Weights [ob, cb, *outer, 3, 3, c, oc] with pairs of channels side by side."""
    packed = pack_bytes(w, 2)
    return packed.reshape(*packed.shape[:-2], -1)


def of_bytes(
    conv: ConvWinogradBytes, x: TensorType, w: np.ndarray, sizes: tuple[str, ...] = ()
) -> Func:
    """A transformed convolution of bytes, with arithmetic of floats behind it."""
    operands = placeholder("x", x), placeholder("w", TensorType(w.shape, DType.I8))
    halves = elementwise("halves", lambda v: cast(DType.F32, v) * 0.5, conv.compute(*operands))
    return lower_tensors("f", sizes, operands, (halves,))


def direct_sums(
    x: np.ndarray, w: np.ndarray, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> np.ndarray:
    """The convolution in i64."""
    op = ConvBytes(stride=stride, dilation=dilation)
    found = op.reference(x, pack_bytes(w, 2))
    assert np.abs(found.astype(np.int64)).max(initial=0) < 2**24, "f32 does not tell them apart"
    return found.astype(np.float32) * np.float32(0.5)


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("columns_outer", [0, 1])
@pytest.mark.parametrize(
    ("tile", "sizes", "outer"),
    [((2, 2), (9, 8), ()), ((2, 4), (7, 11), ()), ((4, 2), (10, 5), ()), ((4, 4), (7, 17), ()),
     ((2, 4), (5, 6, 9), (2,)), ((4,), (19,), ()), ((2,), (6, 9), (2,))],
    ids=str,
)  # fmt: skip
def test_sums_of_bytes_are_exact(
    target: Target, columns_outer: int,
    tile: tuple[int, ...], sizes: tuple[int, ...], outer: tuple[int, ...],
) -> None:  # fmt: skip
    block = target.lanes(4)
    w = np.random.default_rng(1).choice(
        [-128, 127, -1, 64], (5, 3, *outer, *(3 for _ in tile), block, block))  # fmt: skip
    pairs = in_pairs(w)
    steps = {"stride": (2,) * len(outer), "dilation": (1,) * len(outer)}
    type_ = TensorType((2, 3, *sizes, block), DType.I16)
    func = of_bytes(ConvWinogradBytes(out=tile, **steps), type_, pairs)
    kernel = Kernel(transformed(func, target, tile, columns_outer=columns_outer), target)
    assert ("pmadd" in kernel.ir) == (target.byte_products > 0)
    ones = (1,) * len(tile)
    for kind in EXTREMES:
        x = bytes_of(kind, 2, 3, *sizes, block)
        found = kernel({}, {"x": x, "w": pairs})["out"]
        wanted = direct_sums(x, w, (*steps["stride"], *ones), (*steps["dilation"], *ones))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("tile", "open_"),
    [((2, 4), "batch"), ((4, 4), "high"), ((2, 2), "wide"), ((2, 4), "all"), ((4, 4), "all")],
)
def test_an_image_of_bytes_may_be_of_an_open_size(tile: tuple[int, int], open_: str) -> None:
    block = NATIVE.lanes(4)
    w = np.random.default_rng(1).choice([-128, 127, 5], (3, 2, 3, 3, block, block))
    pairs = in_pairs(w)
    names = ("batch", "high", "wide") if open_ == "all" else (open_,)
    batch, high, wide = (
        Var(name) + 2 * (name != "batch") if name in names else index(n)
        for name, n in (("batch", 2), ("high", 13), ("wide", 12))
    )
    type_ = TensorType((batch, index(2), high, wide, index(block)), DType.I16)
    func = of_bytes(ConvWinogradBytes(out=tile), type_, pairs, names)
    kernel = Kernel(transformed(func, NATIVE, tile), NATIVE)
    for n in (0, 1, 2, 3, 4, 5, 9):
        shape = (
            n if batch == Var("batch") else 2,
            2,
            n + 2 if "high" in names else 13,
            n + 2 if "wide" in names else 12,
            block,
        )
        x = bytes_of("u8", *shape, seed=n)
        found = kernel(dict.fromkeys(names, n), {"x": x, "w": pairs})["out"]
        np.testing.assert_array_equal(found, direct_sums(x, w, (1, 1), (1, 1)))


def test_channels_that_only_fill_up_a_block_of_four_are_transformed() -> None:
    """Of an image of three colours."""
    x, block = bytes_of("u8", 1, 1, 12, 15, 4), NATIVE.lanes(4)
    w = np.random.default_rng(1).choice([-128, 127, 9], (4, 1, 3, 3, 4, block))
    w[..., 3, :] = 0
    pairs = in_pairs(w)
    func = of_bytes(ConvWinogradBytes(out=(4, 4)), TensorType(x.shape, DType.I16), pairs)
    found = Kernel(transformed(func, NATIVE, (4, 4)), NATIVE)({}, {"x": x, "w": pairs})["out"]
    np.testing.assert_array_equal(found, direct_sums(x, w, (1, 1), (1, 1)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("tile", [(2, 4), (4, 4)])
def test_sums_are_exact_up_to_the_last_bit(tile: tuple[int, int], sign: int) -> None:
    """The largest result whose multiple is an i32; the next weight wraps around."""
    block = NATIVE.lanes(4)
    limit = 2 ** (31 - inverse_of(scale_of(tile))[1]) - 1
    count = -(-limit // (255 * 127 * 9 * block)) + 1
    weights = np.zeros((1, count, 3, 3, block, block), np.int64)
    flat = np.moveaxis(weights, -1, 0)[0].reshape(-1)  # of the first result
    whole, rest = divmod(limit // 255, 127)
    flat[:whole], flat[whole] = 127 * sign, rest * sign
    assert flat.base is not None
    weights[0, ..., 0] = flat.reshape(count, 3, 3, block)
    x = np.full((1, count, 6, 6, block), 255, np.int16)
    for more, is_exact in ((0, True), (1, False)):
        weights[0, -1, 2, 2, -1, 0] = more * sign
        pairs = in_pairs(weights)
        operands = (
            placeholder("x", TensorType(x.shape, DType.I16)),
            placeholder("w", TensorType(pairs.shape, DType.I8)),
        )
        result = ConvWinogradBytes(out=tile).compute(*operands)
        func = lower_tensors("f", (), operands, (result,))
        found = Kernel(transformed(func, NATIVE, tile), NATIVE)({}, {"x": x, "w": pairs})["out"]
        wanted = 255 * weights.sum(axis=(1, 2, 3, 4))[:, None, None]
        assert (found == wanted).all() == is_exact


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
def test_pairs_of_words_have_an_instruction_of_every_width(cpu: str) -> None:
    """Also on a machine that cannot run them. LLVM ends a process where it can select none."""
    target = parse_target(f"llvm -mcpu={cpu}")
    block = target.lanes(4)
    pairs = in_pairs(np.ones((2, 2, 3, 3, block, block)))
    x = TensorType((1, 2, 14, 14, block), DType.I16)
    fast = transformed(of_bytes(ConvWinogradBytes(out=(4, 4)), x, pairs), target, (4, 4))
    assert 'invoke("dot_2xi16_i32"' in str(fast)
    text = emit_func(fast, target)
    assert "pmadd" in text
    assert compile_ir(text, target, passes=False)


@pytest.mark.parametrize(("blocks", "is_padded"), [(32, True), (3, False)])
def test_products_of_one_tile_lie_in_different_sets_of_a_cache(
    blocks: int, is_padded: bool
) -> None:
    """They are stored one after the other: a page apart, each would push out the ones before."""
    tile, target = (4, 4), parse_target("llvm -mcpu=haswell")
    pairs = in_pairs(np.ones((2, blocks, 3, 3, 8, 8)))
    x = TensorType((1, blocks, 10, 10, 8), DType.I16)
    func = of_bytes(ConvWinogradBytes(out=tile), x, pairs)
    made = allocs(transformed(func, target, tile, columns_outer=1).body)
    weights, pixels = (made[name].buffer.type.static_shape for name in ("weights", "pixels"))
    assert weights[3] == blocks + is_padded
    assert prod(weights[3:]) * 2 % 4096 > 0
    assert prod(pixels[3:]) * 2 % 4096 > 0
