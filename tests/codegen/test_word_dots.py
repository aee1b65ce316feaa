"""Bytes times weights of a few bits, as whole numbers: kernels against references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.compile import assembly
from dlc.codegen.llvm.emit import emit_func
from dlc.frontend.onnx.dtypes import dtype_of
from dlc.graph.ops.few_bits import MatMulBytesFewBits, places_of_quads
from dlc.schedule.instruction import DOT_WORDS
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import rule_for, schedule_func, words
from dlc.schedule.text import parse_func
from dlc.te.expr import Var
from dlc.te.tensor import elementwise, placeholder
from dlc.te.types import TensorType
from tests.codegen.assembly_loops import spills_in_hot_loops
from tests.codegen.jit import AVX2, NATIVE, Kernel, check
from tests.codegen.test_few_bits import operands

QUADS = replace(
    NATIVE, features=NATIVE.features | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}
)
PAIRS = replace(QUADS, features=QUADS.features - {"avx512vnni", "avxvnni"})
NARROW = replace(AVX2, features=AVX2.features - {"avxvnni"})
TARGETS = {"quads": QUADS, "pairs": PAIRS, "pairs_of_8": NARROW}
INSTRUCTIONS = {"quads": "vpdpbusd", "pairs": "pmadd", "pairs_of_8": "pmadd"}


def has(target):
    return target.features <= NATIVE.features


def case(rows, columns, depth, bits, block, target, zeros=None):
    """An operator, bytes of which many are the smallest or the largest, and what goes with them."""
    rng = np.random.default_rng(7)
    op = MatMulBytesFewBits(n=columns, bits=bits)
    x = rng.integers(-200, 200, (*rows, depth)).clip(-128, 127).astype(np.int8)
    blocks = (*rows, depth // block)
    factor = (2.0 ** rng.integers(-1, 2, blocks)).astype(np.float32)
    less = rng.integers(-900, 900, blocks).astype(np.float32)
    word, scale, *zero = operands(columns, depth, bits, block, target.lanes(4), zeros)
    word[..., ::3] |= np.uint32(0x0F0F0F0F)
    return op, [x, factor, less, word, np.minimum(scale, 1), *zero]


def lowered(op, arrays, sizes=(), epilogue=None):
    """A function of the operands; the leading sizes of the first three may be names."""
    inputs = []
    for n, a in enumerate(arrays):
        shape = (*map(Var, sizes), a.shape[-1]) if sizes and n < 3 else a.shape
        inputs.append(placeholder(f"a{n}", TensorType(shape, dtype_of(a))))
    result = op.compute(*inputs)
    if epilogue is not None:
        result = elementwise("done", epilogue, result)
    return lower_tensors("product", sizes, tuple(inputs), (result,))


def named(arrays):
    return {f"a{n}": a for n, a in enumerate(arrays)}


CASES = {
    "a_row": ((1,), 70, 256, 4, 32),
    "a_row_of_a_block": ((1,), 16, 64, 4, 64),
    "far_columns": ((1,), 700, 512, 4, 32),
    "two_bits": ((3,), 33, 128, 2, 16),
    "few_rows": ((5,), 90, 512, 4, 128),
    "many_rows": ((45,), 70, 256, 4, 32),
    "stacks": ((3, 17), 33, 128, 4, 16),
    "a_tail_of_one_column": ((2,), 17, 64, 4, 32),
    "few_lanes": ((9,), 3, 64, 4, 32),
    "zero_points": ((13,), 70, 256, 4, 16, np.uint8),
    "floats_as_zero_points": ((1,), 20, 96, 4, 32, np.float32),
}
OF_BYTES = {
    "bytes": ((7,), 40, 128, 8, 16),
    "a_row_of_bytes": ((1,), 40, 128, 8, 32, np.uint8),
}


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", [*CASES, *OF_BYTES])
def test_sums_of_blocks_are_exact(name, kind):
    """Also where 16 bits hold sums of the largest products."""
    target = TARGETS[kind]
    if not has(target):
        pytest.skip("this machine has no such instruction")
    rows, columns, depth, bits, block, *zeros = (CASES | OF_BYTES)[name]
    op, arrays = case(rows, columns, depth, bits, block, target, *zeros)
    func = lowered(op, arrays)
    if kind != "quads" and name in OF_BYTES:
        assert words.match(func, target) is None  # two products of bytes exceed 16 bits
        return
    fast = optimize(func, target)
    assert INSTRUCTIONS[kind] in emit_func(fast, target)
    found = Kernel(fast, target)({}, named(arrays))["out"]
    np.testing.assert_array_equal(found, op.reference(*arrays))


@pytest.mark.skipif(not has(QUADS), reason="this machine adds no four products")
def test_rows_of_an_open_number():
    op, (x, factor, less, *weights) = case((3, 41), 70, 256, 4, 32, QUADS)
    fast = optimize(lowered(op, [x, factor, less, *weights], ("batch", "seq")), QUADS)
    kernel = Kernel(fast, QUADS)
    for batch, seq in ((1, 1), (2, 1), (1, 7), (3, 41), (1, 12), (0, 3), (2, 0)):
        rows = [np.ascontiguousarray(a[:batch, :seq]) for a in (x, factor, less)]
        found = kernel({"batch": batch, "seq": seq}, named([*rows, *weights]))["out"]
        np.testing.assert_array_equal(found, op.reference(*rows, *weights))


@pytest.mark.skipif(not has(QUADS), reason="this machine adds no four products")
@pytest.mark.parametrize("knobs", [{"rows": 2, "columns": 2}, {"rows": 4}, {"columns_outer": 0}])
def test_any_choice_and_what_follows_a_sum(knobs):
    op, arrays = case((11,), 70, 128, 4, 32, QUADS)
    func = lowered(op, arrays, epilogue=lambda v: v * 2.0)
    assert rule_for(func, QUADS) is words
    fast = optimize(func, QUADS, schedule_func(func, QUADS, knobs).steps)
    found = Kernel(fast, QUADS)({}, named(arrays))["out"]
    np.testing.assert_array_equal(found, 2 * op.reference(*arrays))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("target", [NATIVE, AVX2, QUADS], ids=["native", "avx2", "quads"])
def test_any_target_and_the_interpreter_compute_the_same(bits, target):
    if not has(target):
        pytest.skip("this machine has no such instruction")
    op, arrays = case((3,), 18, 32, bits, 16, target)
    check(lowered(op, arrays), target=target, arrays=named(arrays), rtol=0)


@pytest.mark.parametrize("kind", TARGETS)
def test_tiles_stay_in_registers(kind):
    target = TARGETS[kind]
    op, arrays = case((128,), 64, 256, 4, 32, target)
    text = emit_func(optimize(lowered(op, arrays), target), target)
    assert spills_in_hot_loops(assembly(text, target)) == 0


def test_what_is_no_such_sum_is_left_to_other_rules():
    op, arrays = case((3,), 18, 32, 4, 16, QUADS)
    func = lowered(op, arrays)
    assert words.match(func, QUADS).at_once is DOT_WORDS[4]
    assert words.match(func, replace(QUADS, features=frozenset())) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" * a4[", " + a4["),  # what columns are scaled by
        (" * a1[", " - a1["),  # what rows are
        ("& u32(15)", "& u32(7)"),
        (">> u32(r2 * 8) ", ""),
        ("out[i0_2, i1_2] = ", "out[i0_2, i1_2] = f32(product_dots[i0_2, 0, i1_2]) + "),
    ],
    ids=["column", "row", "bits", "quads", "parts"],
)
def test_other_sums_are_left_to_other_rules(old, new):
    """They compute the same as without a schedule."""
    op, arrays = case((3,), 18, 32, 4, 16, QUADS)
    text = str(lowered(op, arrays)).replace("matmul_bytes_few_bits", "product")
    assert old in text
    func = parse_func(text.replace(old, new))
    if words.match(func, QUADS) is not None:  # what an instruction computes is looked at later
        assert "u32(r2 * 8)" not in str(func)
    check(func, target=QUADS if has(QUADS) else NATIVE, arrays=named(arrays), rtol=1e-6)


def test_far_words_of_a_single_row_are_one_stream():
    op, arrays = case((1,), 700, 512, 4, 32, QUADS)
    near = str(optimize(lowered(op, arrays), QUADS))
    far = str(optimize(lowered(op, arrays), replace(QUADS, l2_bytes=1 << 17)))
    assert 'alloc(f32[1, 16], "register")' in far
    assert 'alloc(f32[1, 16], "register")' not in near


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_word_holds_each_number_once(bits):
    places = places_of_quads(bits)
    assert sorted(places) == list(range(0, 32, bits))
    assert list(places[:4]) == [0, 8, 16, 24]
