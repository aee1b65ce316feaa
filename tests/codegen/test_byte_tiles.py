"""Products of bytes on the matrix engine: scheduled kernels against the operators' references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.types import DType
from dlc.graph.ops.byte_products import MatMulBytes, pack_bytes
from dlc.graph.ops.byte_tiles import (
    ConvByteTiles,
    ConvPlanarByteTiles,
    MatMulByteTiles,
    byte_reach,
    pack_byte_tiles,
    unpack_byte_tiles,
)
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import matrix, schedule_func
from dlc.te.expr import Var, index
from dlc.te.tensor import elementwise, placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import NATIVE, Kernel
from tests.codegen.tiles import TILES

ENGINE = replace(NATIVE, features=NATIVE.features | TILES | {"avx512bf16"})

needs_engine = pytest.mark.usefixtures("matrix_engine")


def unsigned(seed, *shape):
    """Bytes, of which some are the largest and the smallest."""
    return np.random.default_rng(seed).choice([0, 1, 37, 128, 200, 255], shape).astype(np.uint8)


def signed(seed, *shape):
    return np.random.default_rng(seed).choice([-128, -127, -3, 0, 1, 127], shape).astype(np.float32)


def conv(x, w, out_blocks, **attributes):
    """A convolution of x [n, cb, h, w, 16] by dense weights [cb * 16, kh, kw, ob * 16]."""
    return ConvByteTiles(blocks=out_blocks, slack=200, **attributes), [x, pack_byte_tiles(w)]


def matmul(x, w, **attributes):
    return MatMulByteTiles(n=w.shape[1], slack=200, **attributes), [x, pack_byte_tiles(w)]


def planar(x, w, out_blocks, **attributes):
    """A convolution of x [n, c, h, w] by dense weights [c, *kernel, ob * 16].

    The last pixels of a line are there for results that read more of them than the kernel has.
    """
    kernel = w.shape[1:-1]
    spare = byte_reach(kernel[-1]) - kernel[-1]
    op = ConvPlanarByteTiles(blocks=out_blocks, kernel=kernel, spare=spare, slack=200, **attributes)
    return op, [x, pack_byte_tiles(op.pack(w))]


def lowered(op, x_shape, w_shape, sizes=(), epilogue=None):
    shapes = [
        tuple(index(n) if isinstance(n, int) else Var(n) for n in s) for s in (x_shape, w_shape)
    ]
    inputs = (
        placeholder("x", TensorType(shapes[0], DType.U8)),
        placeholder("w", TensorType(shapes[1], DType.I8)),
    )
    result = op.compute(*inputs)
    if epilogue is not None:
        result = elementwise("done", epilogue, result)
    return lower_tensors("product", sizes, inputs, (result,))


def compiled(func, knobs=None):
    assert matrix.match(func, ENGINE) is not None
    return optimize(func, ENGINE, schedule_func(func, ENGINE, knobs or {}).steps)


CASES = {
    "one_tile": conv(unsigned(0, 1, 1, 3, 4, 16), signed(1, 16, 1, 1, 16), 1),
    "whole_rows": conv(unsigned(0, 1, 4, 6, 7, 16), signed(1, 64, 3, 3, 64), 4),
    "odd_blocks": conv(unsigned(0, 1, 5, 9, 7, 16), signed(1, 80, 3, 3, 48), 3),
    "two_blocks": conv(unsigned(0, 2, 2, 7, 7, 16), signed(1, 32, 3, 3, 32), 2),
    "strided": conv(unsigned(0, 1, 6, 10, 13, 16), signed(1, 96, 3, 3, 32), 2, stride=(2, 2)),
    "strided_pixel": conv(unsigned(0, 1, 4, 9, 8, 16), signed(1, 64, 1, 1, 64), 4, stride=(2, 1)),
    "dilated": conv(unsigned(0, 1, 3, 9, 9, 16), signed(1, 48, 3, 2, 32), 2, dilation=(2, 3)),
    "line": conv(unsigned(0, 1, 4, 40, 16), signed(1, 64, 3, 32), 2, stride=(1,), dilation=(1,)),
    "few_channels": planar(unsigned(0, 2, 3, 13, 30), signed(1, 3, 7, 7, 48), 3, stride=(2, 2)),
    "stride_of_one": planar(unsigned(0, 1, 3, 6, 20), signed(1, 3, 3, 3, 32), 2, stride=(1, 1)),
    "stride_beyond_kernel": planar(
        unsigned(0, 1, 5, 9, 40), signed(1, 5, 2, 4, 16), 1, stride=(3, 4)
    ),
    "wide_kernel": planar(unsigned(0, 1, 2, 5, 40), signed(1, 2, 3, 11, 32), 2, stride=(1, 2)),
    "planar_line": planar(unsigned(0, 2, 1, 90), signed(1, 1, 10, 32), 2, stride=(5,)),
    "volume": planar(unsigned(0, 1, 2, 5, 6, 20), signed(1, 2, 3, 3, 3, 32), 2, stride=(2, 2, 2)),
    "rows": matmul(unsigned(0, 2, 37, 128), signed(1, 128, 80)),
    "part_of_a_row": matmul(unsigned(0, 5, 80), signed(1, 80, 48)),
    "only_row": matmul(unsigned(0, 1, 192), signed(1, 192, 80)),
    "only_rows_of_two": matmul(unsigned(0, 2, 1, 64), signed(1, 64, 32)),
}


def test_packing_can_be_undone():
    w = signed(0, 70, 3, 1, 40)
    tiles = pack_byte_tiles(w)
    assert tiles.shape == (4, 2, 3, 1, 1, 16, 16, 4)
    assert tiles.dtype == np.int8
    whole = unpack_byte_tiles(tiles)
    np.testing.assert_array_equal(whole[:70, ..., :40], w)
    assert not whole[70:].any()
    assert not whole[..., 40:].any()
    np.testing.assert_array_equal(tiles[1, 0, 2, 0, 0, 5, 7], w[20:24, 2, 0, 23])


@needs_engine
@pytest.mark.parametrize(("columns_outer", "wide"), [(0, 2), (1, 2), (1, 1)])
@pytest.mark.parametrize("name", CASES)
def test_products_are_exact(name, columns_outer, wide):
    op, (x, w) = CASES[name]
    knobs = {"columns_outer": columns_outer, "wide": wide, "strip": 3}
    func = lowered(op, x.shape, w.shape)
    kernel = Kernel(compiled(func, {**knobs, "first_summand": 2 * columns_outer}), ENGINE)
    assert "tdpbusd" in kernel.ir
    found = kernel({}, {"x": x, "w": w})["out"]
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, op.reference(x, w))


@needs_engine
@pytest.mark.parametrize("strip", [0, 32, 256])
@pytest.mark.parametrize("depth", [64, 112])
def test_an_open_number_of_rows_fills_whole_tiles_and_writes_no_more(strip, depth):
    op, (dense, w) = matmul(unsigned(0, 2, 171, depth), signed(1, depth, 96))
    shape = ("batch", "rows", depth)
    func = lowered(op, shape, w.shape, ("batch", "rows"), lambda v: v + 1)
    kernel = Kernel(compiled(func, {"strip": strip}), ENGINE)
    assert "tdpbusd" in kernel.ir
    for batch, rows in ((1, 171), (2, 71), (1, 64), (2, 33), (1, 16), (2, 1), (1, 0), (0, 5)):
        x = np.ascontiguousarray(dense[:batch, :rows])
        found = kernel({"batch": batch, "rows": rows}, {"x": x, "w": w})["out"]
        np.testing.assert_array_equal(found, op.reference(x, w) + 1)


@needs_engine
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_lines_of_an_image_of_an_open_size_are_rows_of_their_own(stride):
    op, (dense, w) = conv(unsigned(0, 2, 5, 21, 47, 16), signed(1, 80, 3, 3, 64), 4, stride=stride)
    func = lowered(op, (2, 5, "lines", "width", 16), w.shape, ("lines", "width"), lambda v: v + 1)
    kernel = Kernel(compiled(func), ENGINE)
    assert "tdpbusd" in kernel.ir
    for lines, width in ((21, 47), (3, 3), (8, 34), (4, 19)):
        x = np.ascontiguousarray(dense[:, :, :lines, :width])
        found = kernel({"lines": lines, "width": width}, {"x": x, "w": w})["out"]
        np.testing.assert_array_equal(found, op.reference(x, w) + 1)


def test_a_row_of_bytes_is_copied_by_whole_vectors():
    op, (x, w) = matmul(unsigned(0, 40, 128), signed(1, 128, 64))
    text = str(compiled(lowered(op, x.shape, w.shape)))
    assert "vectorize(64)" in text
    op, (x, w) = CASES[
        "odd_blocks"
    ]  # whose last row has a block that is there, and three that are not
    text = str(compiled(lowered(op, x.shape, w.shape)))
    assert "vectorize(64)" not in text
    assert "min(4, i1 * 4 + i6o)" in text


def test_columns_that_come_from_afar_are_asked_for():
    op, (x, w) = conv(unsigned(0, 1, 4, 9, 9, 16), signed(1, 64, 3, 3, 64), 4)
    target = replace(ENGINE, l2_bytes=1 << 14)
    func = lowered(op, x.shape, w.shape)
    steps = schedule_func(func, target, {"columns_outer": 1, "wide": 2, "strip": 7}).steps
    assert "prefetch_i8_l2" in str(optimize(func, target, steps))


def test_an_engine_of_bf16_alone_has_no_products_of_bytes():
    op, (x, w) = CASES["rows"]
    func = lowered(op, x.shape, w.shape)
    assert matrix.match(func, ENGINE) is not None
    lacking = replace(ENGINE, features=ENGINE.features - {"amx-int8"})
    assert matrix.match(func, lacking) is None


@needs_engine
@pytest.mark.parametrize(("rows", "depth"), [(31, 64), (1, 64), (31, 128)])
def test_sixteen_words_and_columns_of_vectors_are_no_tile(rows, depth):
    """Their panels look like one tile, but nobody brings their rows together."""
    x, w = unsigned(0, rows, depth), signed(1, depth, 16)
    op, packed = MatMulBytes(n=16), pack_bytes(w[np.newaxis], 4)
    func = lowered(op, x.shape, packed.shape)
    assert matrix.match(func, ENGINE) is None
    kernel = Kernel(optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps), ENGINE)
    assert "vpdpbusd" in kernel.ir
    np.testing.assert_array_equal(kernel({}, {"x": x, "w": packed})["out"], op.reference(x, packed))
