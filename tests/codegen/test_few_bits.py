"""Products with weights of a few bits: scheduled kernels against the operator's reference."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dlc.core.types import DType
from dlc.frontend.onnx.dtypes import dtype_of
from dlc.graph.ops.few_bits import WORD_BITS, MatMulFewBits
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.te.expr import Var
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, NATIVE, Kernel

AVX512 = replace(NATIVE, features=NATIVE.features | {"avx512f"})


def operands(columns, depth, bits, block, lanes, zeros=None, seed=5):
    """Random words, scales that are powers of two, and zero points."""
    rng = np.random.default_rng(seed)
    panels = -(-columns // lanes)
    words = rng.integers(0, 1 << 32, (panels, depth * bits // WORD_BITS, lanes), dtype=np.uint32)
    shape = (panels, depth // block, lanes)
    given = [words, (2.0 ** rng.integers(-2, 3, shape)).astype(np.float32)]
    if zeros is not None:
        given.append(rng.integers(0, 8, shape).astype(zeros))
    return given


def kernel(op, rows, given, target):
    """A scheduled function of rows, each size of them a number or a name."""
    depth = given[0].shape[1] * op.per_word
    shapes = [(*(Var(r) if isinstance(r, str) else r for r in rows), depth)]
    shapes += [a.shape for a in given]
    kinds = [DType.F32, *(dtype_of(a) for a in given)]
    inputs = tuple(
        placeholder(f"a{n}", TensorType(shape, kind))
        for n, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
    )
    names = tuple(r for r in rows if isinstance(r, str))
    func = lower_tensors("product", names, inputs, (op.compute(*inputs),))
    return optimize(func, target)


def compare(fast, op, x, given, sizes, target):
    arrays = {f"a{n}": a for n, a in enumerate((x, *given))}
    found = Kernel(fast, target)(sizes, arrays)["out"]
    with np.errstate(invalid="ignore"):
        want = op.reference(x, *given)
    np.testing.assert_array_equal(found.reshape(want.shape), want)


CASES = {
    "a_row": ((1,), 70, 256, 4, 32, None),
    "a_row_of_few_blocks": ((1,), 16, 64, 4, 64, None),
    "two_bits": ((1,), 33, 128, 2, 16, None),
    "bytes": ((1,), 40, 128, 8, 16, np.uint8),
    "zero_points": ((1,), 70, 256, 4, 16, np.uint8),
    "floats_as_zero_points": ((3,), 20, 96, 4, 32, np.float32),
    "few_rows": ((5,), 90, 512, 4, 128, None),
    "many_rows": ((45,), 70, 256, 4, 32, np.uint8),
    "stacks": ((3, 17), 33, 128, 4, 32, None),
}


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("name", CASES)
def test_products_with_weights_of_few_bits(name, target):
    rows, columns, depth, bits, block, zeros = CASES[name]
    given = operands(columns, depth, bits, block, target.lanes(4), zeros)
    op = MatMulFewBits(n=columns, bits=bits, middle=0 if zeros else 1 << (bits - 1))
    x = np.random.default_rng(1).integers(-4, 5, (*rows, depth)).astype(np.float32)
    compare(kernel(op, rows, given, target), op, x, given, {}, target)


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
def test_rows_of_an_open_number(target):
    given = operands(70, 256, 4, 32, target.lanes(4))
    op = MatMulFewBits(n=70, bits=4, middle=8)
    fast = kernel(op, ("batch", "seq"), given, target)
    for batch, seq in ((1, 1), (2, 1), (1, 7), (3, 9), (1, 530), (0, 3), (2, 0)):
        x = np.random.default_rng(seq).integers(-4, 5, (batch, seq, 256)).astype(np.float32)
        compare(fast, op, x, given, {"batch": batch, "seq": seq}, target)


@pytest.mark.parametrize("rows", [1, 40])
def test_infinite_rows_are_infinite_in_columns_that_are_not_at_their_zero(rows):
    """Whatever is taken away from a number is so before it is multiplied."""
    given = operands(70, 64, 4, 32, NATIVE.lanes(4), np.uint8)
    op = MatMulFewBits(n=70, bits=4)
    x = np.zeros((rows, 64), np.float32)
    x[:, 37] = np.inf
    x[::2, 5] = np.nan
    compare(kernel(op, (rows,), given, NATIVE), op, x, given, {}, NATIVE)


def text_of(rows, **how):
    given = operands(70, 256, 4, 32, 16)
    return str(kernel(MatMulFewBits(n=70, bits=4, middle=8), rows, given, AVX512))


def test_few_rows_multiply_subtotals_by_scales():
    """Scales stand behind the sum of a block, and no weight is stored."""
    for rows in (1, 8):
        text = text_of((rows,))
        scaled = [line for line in text.splitlines() if "* a2[" in line]
        assert scaled
        assert not any(">>" in line for line in scaled)
        assert "weights" not in text


def test_many_rows_share_weights_that_are_unpacked_once():
    unpacks = [line.split("[")[0].strip() for line in text_of((256,)).splitlines() if ">>" in line]
    assert unpacks[0].startswith("weights")
    assert not any(name.startswith("weights") for name in unpacks[1:])  # of the last few columns


def test_only_whole_tiles_of_an_open_number_of_rows_unpack_weights_for_all():
    """A single row, as in decoding, finds none of them, so that nothing is stored for it."""
    text = text_of(("seq",))
    unpacks = [line.split("[")[0].strip() for line in text.splitlines() if ">>" in line]
    assert unpacks[0].startswith("weights")
    assert not any(name.startswith("weights") for name in unpacks[1:3])
    around = text[: text.index("weights")].splitlines()[-2]
    assert re.fullmatch(r" *for \w+ in range\(\(seq // \d+ \+ 63\) // 64\):", around)


def test_far_words_of_a_single_row_are_streams():
    """The hardware fetches them: few of them, and nobody asks for lines."""
    given = operands(1024, 2048, 4, 32, 16)
    far = replace(AVX512, l2_bytes=1 << 18)
    text = str(kernel(MatMulFewBits(n=1024, bits=4, middle=8), (1,), given, far))
    assert "prefetch" not in text
    assert "alloc(f32[1, 64]" in text


def test_rows_of_several_matrices_share_a_tile():
    """One row of each, as in decoding several texts: all rows are one line."""
    loops = [line for line in text_of(("batch", "seq")).splitlines() if "batch" in line]
    assert any("range((batch * seq // 12 + 63) // 64)" in line for line in loops)
    assert not any(re.search(r"batch (?!\* seq)", line) for line in loops)
