"""Products of bytes in vectors, by four and by two: kernels against the operators' references."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.core.target_parse import parse_target
from dlc.core.types import DType
from dlc.graph.ops.byte_products import ConvBytes, MatMulBytes, pack_bytes
from dlc.graph.ops.neighbours import in_rows
from dlc.graph.ops.shape import Transpose
from dlc.schedule.instruction import DOT_2XI16_2XI8_I32, DOT_4XI8_I32
from dlc.schedule.loop import allocs
from dlc.schedule.lower import lower_tensors
from dlc.schedule.rules import contract
from dlc.schedule.rules.cut_tiles import tile_registers
from dlc.te.expr import cast, index
from dlc.te.tensor import compute, placeholder, reduce_sum
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, NATIVE, Kernel, check
from tests.codegen.products import Products

QUADS = replace(NATIVE, features=NATIVE.features | {"avx512f", "avx512vl", "avx512vnni"})
NARROW = replace(AVX2, features=AVX2.features | {"avxvnni"})
HAS_QUADS = "avx512vnni" in NATIVE.features
HAS_PAIRS = "avx2" in NATIVE.features
needs_quads = pytest.mark.skipif(not HAS_QUADS, reason="this machine adds no four products")
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="this machine adds no two products")


def bytes_of(seed, *shape):
    """All of them, and often the largest."""
    return (
        np.maximum(np.random.default_rng(seed).integers(-64, 320, shape), 0)
        .clip(0, 255)
        .astype("u1")
    )


def weights(seed, *shape):
    return np.random.default_rng(seed).integers(-200, 200, shape).clip(-128, 127).astype(np.float32)


def conv(x, w, **attributes):
    """A convolution of x [n, cb, *spatial, c] by weights [ob, cb, *kernel, c, oc]."""
    return ConvBytes(**attributes), [x, pack_bytes(w, 4)]


def matmul(x, w, n):
    """The product of x [..., k] with panels [p, k, nr]."""
    return MatMulBytes(n=n), [x, pack_bytes(w, 4)]


def widened(op, arrays, *, less=0):
    """The same by two products at once, of bytes less a number."""
    x, w = arrays
    return op, [x.astype(np.int16) - np.int16(less), pack_bytes(in_rows(w), 2)]


CASES = {
    "image": conv(bytes_of(0, 1, 3, 9, 7, 16), weights(1, 5, 3, 3, 3, 16, 16)),
    "batch": conv(bytes_of(0, 2, 2, 7, 11, 16), weights(1, 3, 2, 1, 1, 16, 16)),
    "strided": conv(bytes_of(0, 1, 2, 10, 13, 16), weights(1, 2, 2, 3, 2, 16, 16), stride=(2, 3)),
    "dilated": conv(bytes_of(0, 1, 2, 9, 9, 16), weights(1, 2, 2, 3, 2, 16, 16), dilation=(2, 3)),
    "groups": conv(bytes_of(0, 2, 6, 9, 7, 16), weights(1, 9, 2, 3, 3, 16, 16), groups=3),
    "groups_of_a_block": conv(
        bytes_of(0, 1, 4, 5, 7, 16), weights(1, 4, 1, 3, 3, 16, 16), groups=4
    ),
    "line": conv(bytes_of(0, 1, 2, 40, 8), weights(1, 3, 2, 3, 8, 8), stride=(1,), dilation=(1,)),
    "rows": matmul(bytes_of(0, 2, 37, 64), weights(1, 5, 64, 16), 80),
    "a_row": matmul(bytes_of(0, 1, 96), weights(1, 9, 96, 16), 144),
    "deep": matmul(bytes_of(0, 3, 4096), weights(1, 2, 4096, 16), 32),
    "a_tail_of_lanes": matmul(bytes_of(0, 5, 36), weights(1, 3, 36, 16), 45),
    "four_deep": matmul(bytes_of(0, 7, 4), weights(1, 2, 4, 16), 32),
    "eight_deep": matmul(bytes_of(0, 7, 8), weights(1, 2, 8, 16), 32),
    "few_lanes": matmul(bytes_of(0, 5, 32), weights(1, 1, 32, 3), 3),
    "one_column": matmul(bytes_of(0, 9, 32), weights(1, 1, 32, 1), 1),
    "wide_panels": matmul(bytes_of(0, 19, 48), weights(1, 2, 48, 32), 50),
}


PRODUCTS = Products(QUADS, (DType.U8, DType.I8), "vpdpbusd")
WIDE = replace(NATIVE, features=NATIVE.features - {"avx512vnni", "avxvnni"})
PAIRS = Products(WIDE, (DType.I16, DType.I8), "pmadd")
PAIRS_OF_8 = Products(replace(WIDE, features=AVX2.features - {"avxvnni"}), PAIRS.kinds, "pmadd.wd")
lowered, fast, run = PRODUCTS.lowered, PRODUCTS.fast, PRODUCTS.run


def test_packing_keeps_every_weight():
    w = weights(3, 2, 8, 5)
    assert pack_bytes(w, 4).shape == (2, 2, 5, 4)
    for each in (2, 4):
        np.testing.assert_array_equal(in_rows(pack_bytes(w, each)), w)


@needs_quads
@pytest.mark.parametrize("name", [name for name in CASES if name != "one_column"])
def test_sums_are_exact(name):
    op, arrays = CASES[name]
    np.testing.assert_array_equal(run(op, arrays), op.reference(*arrays))


@needs_pairs
@pytest.mark.parametrize("less", [0, 255, -32000])
@pytest.mark.parametrize("products", [PAIRS, PAIRS_OF_8], ids=["native", "8_lanes"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "one_column"])
def test_sums_of_widened_bytes_are_exact(name, products, less):
    op, arrays = widened(*CASES[name], less=less)
    np.testing.assert_array_equal(products.run(op, arrays), op.reference(*arrays))


@needs_pairs
def test_sizes_of_widened_bytes_may_be_open():
    op, (dense, w) = widened(*CASES["rows"])
    PAIRS.check_open_rows(op, dense, w)
    op, (dense, w) = widened(*CASES["strided"])
    PAIRS.check_open_image(op, dense, w)


INTERPRETED = {
    "image": conv(bytes_of(0, 1, 1, 3, 4, 16), weights(1, 2, 1, 2, 2, 16, 16)),
    "groups": conv(bytes_of(0, 1, 2, 3, 4, 16), weights(1, 4, 1, 2, 2, 16, 16), groups=2),
    "rows": matmul(bytes_of(0, 3, 16), weights(1, 2, 16, 16), 21),
    "one_column": matmul(bytes_of(0, 5, 16), weights(1, 1, 16, 1), 1),
}


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("name", INTERPRETED)
def test_any_target_and_the_interpreter_compute_the_same(name, target):
    for products in (PRODUCTS, PAIRS):
        op, arrays = INTERPRETED[name] if products is PRODUCTS else widened(*INTERPRETED[name])
        func = products.fast(products.lowered(op, arrays), target)
        check(func, target=target, arrays=dict(zip("xw", arrays, strict=True)), rtol=0)


@pytest.mark.parametrize("knobs", [
    {"rows": 3, "columns": 2, "steps": 1}, {"columns_outer": 1, "first_summand": 1, "steps": 4},
    {"rows": 5, "columns": 1, "high": 2, "first_summand": 2}, {"ahead": 1024, "rows": 28},
])  # fmt: skip
@pytest.mark.parametrize("products", [
    pytest.param(PRODUCTS, marks=needs_quads), pytest.param(PAIRS, marks=needs_pairs),
])  # fmt: skip
def test_any_tiles_give_the_same(knobs, products):
    for name in ("image", "rows"):
        op, arrays = CASES[name] if products is PRODUCTS else widened(*CASES[name])
        found = products.run(op, arrays, lambda v: cast(DType.F32, v) + 0.5, **knobs)
        np.testing.assert_array_equal(found, op.reference(*arrays).astype(np.float32) + 0.5)


def test_a_tile_leaves_a_register_for_what_is_added_apart():
    """A product of widened bytes has to be somewhere before it is added to its sum."""
    for products, free in ((PRODUCTS, 0), (PAIRS_OF_8, 1)):
        op, arrays = CASES["rows"] if products is PRODUCTS else widened(*CASES["rows"])
        found = contract.match(products.lowered(op, arrays), products.target)
        assert found.at_once is (DOT_4XI8_I32 if products is PRODUCTS else DOT_2XI16_2XI8_I32)
        registers = products.target.vector_registers
        assert tile_registers(found, products.target) == registers - free


@pytest.mark.parametrize(("rows", "is_large"), [(30, True), (1, False)])
def test_a_long_loop_of_a_large_tile_has_one_step(rows, is_large):
    """More of them would take registers that hold its sums."""
    op, arrays = widened(*matmul(bytes_of(0, 1, rows, 64), weights(1, 10, 64, 8), 80))
    func = PAIRS_OF_8.lowered(op, arrays)
    assert re.findall(r"unroll=\d+", str(PAIRS_OF_8.fast(func))) == ["unroll=8"] * (not is_large)
    assert "unroll=16" in str(PAIRS_OF_8.fast(func, steps=16))


@pytest.mark.parametrize(("target", "bits"), [(QUADS, 512), (NARROW, 256)], ids=["512", "256"])
def test_the_sums_of_a_tile_stay_in_registers(target, bits):
    """Also on a machine that cannot run them: the steps of a sum touch no other memory."""
    op, arrays = CASES["line" if bits == 256 else "image"]
    func = fast(lowered(op, arrays), target)
    assert 'invoke("dot_4xi8_i32"' in str(func)
    sums = [a for name, a in allocs(func.body).items() if name.startswith("conv_bytes")]
    assert {a.scope.value for a in sums} == {"register"}
    text = emit_func(func, target)
    assert f"vpdpbusd.{bits}" in text
    assert "mul <" not in text


@needs_quads
def test_sizes_may_be_open():
    op, (dense, w) = CASES["rows"]
    PRODUCTS.check_open_rows(op, dense, w)


@needs_quads
def test_an_image_may_be_of_an_open_size():
    op, (dense, w) = CASES["strided"]
    PRODUCTS.check_open_image(op, dense, w)


@pytest.mark.parametrize("target", [QUADS, NARROW], ids=["512", "256"])
@pytest.mark.parametrize("name", ["rows", "a_tail_of_lanes", "few_lanes", "line"])
def test_there_is_an_instruction_for_every_width(name, target):
    """Also on a machine that cannot run them. LLVM ends a process where it can select none."""
    op, arrays = CASES[name]
    assert compile_ir(emit_func(fast(lowered(op, arrays), target), target), target, passes=False)
    op, arrays = widened(op, arrays)
    for cpu in ("haswell", "skylake-avx512"):
        other = parse_target(f"llvm -mcpu={cpu}")
        text = emit_func(PAIRS.fast(PAIRS.lowered(op, arrays), other), other)
        assert "pmadd" in text
        assert compile_ir(text, other, passes=False)


@needs_quads
def test_rows_that_are_transposed_are_brought_together():
    x, w = bytes_of(0, 48, 7), weights(1, 2, 48, 16)
    op, (_, packed) = matmul(x, w, 32)
    inputs = (placeholder("x", TensorType(x.shape, DType.U8)),
              placeholder("w", TensorType(packed.shape, DType.I8)))  # fmt: skip
    turned = Transpose(perm=(1, 0)).compute(inputs[0])
    func = lower_tensors("product", (), inputs, (op.compute(turned, inputs[1]),))
    kernel = Kernel(fast(func))
    assert "vpdpbusd" in kernel.ir
    found = kernel({}, {"x": x, "w": packed})["out"]
    np.testing.assert_array_equal(found, op.reference(np.ascontiguousarray(x.T), packed))


def test_sums_of_other_neighbours_are_no_bytes():
    """The left bytes are unsigned, the right ones signed, and their sums i32."""
    text = lowered(*CASES["rows"])
    assert contract.match(text, QUADS).at_once is DOT_4XI8_I32
    signed = (placeholder("x", TensorType((5, 8), DType.I8)),
              placeholder("w", TensorType((1, 2, 16, 4), DType.U8)))  # fmt: skip

    def term(i, j, q, e):
        x, w = signed[0][(i, q * 4 + e)], signed[1][(0, q, j, e)]
        return cast(DType.I32, x) * cast(DType.I32, w)

    def element(i, j):
        return reduce_sum((index(2), index(4)), lambda q, e: term(i, j, q, e))

    product = compute("product", (index(5), index(16)), element, inputs=signed)
    func = lower_tensors("product", (), signed, (product,))
    assert contract.match(func, QUADS).at_once is None
