"""Transposes in registers: what they compute, and that shuffles do it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dlc.codegen.llvm.compile import assembly
from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.core.types import DType
from dlc.graph.ops.activation import Gelu
from dlc.graph.ops.binary import Add, Mul, Where
from dlc.graph.ops.channels import PackChannels, UnpackChannels
from dlc.graph.ops.narrow import Narrow, Widen
from dlc.graph.ops.norm import LayerNorm
from dlc.graph.ops.shape import Transpose
from dlc.schedule.loop import Func, allocs
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import parse_func
from dlc.te.expr import Var, index
from dlc.te.tensor import Tensor, placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, BASELINE, NATIVE, TARGETS, check

ARM = Target(triple="aarch64-unknown-linux-gnu", features=frozenset({"neon"}))

TILE = """
def f(A: {type}[{rows}, {width}], *, B: {type}[{width}, {rows}]):
    tile = alloc({type}[{rows}, {width}], "register")
    for i in unroll({rows}):
        for j in vectorize({width}):
            tile[i, j] = A[i, j]
    for k in unroll({width}):
        for l in vectorize({rows}):
            B[k, l] = tile[l, k]
"""


def tile(rows: int, width: int, type_: str = "f32") -> str:
    return TILE.format(type=type_, rows=rows, width=width).strip()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    ("rows", "width"),
    [(16, 16), (8, 8), (4, 4), (2, 2), (16, 5), (5, 16), (3, 7), (1, 4), (9, 2), (12, 16), (7, 4)],
)
def test_a_tile_of_any_shape_is_transposed(rows: int, width: int, target: Target) -> None:
    check(tile(rows, width), target=target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("type_", ["f64", "i64", "i32", "u8", "i16", "f16", "bf16", "bool"])
def test_a_tile_of_any_type_is_transposed(type_: str, target: Target) -> None:
    check(tile(8, 16, type_), target=target)


def test_a_tile_that_changes_is_transposed_again() -> None:
    again = (
        tile(4, 4)
        + """
    for m in vectorize(4):
        tile[2, m] = A[0, m] * 3.0
    for n in unroll(4):
        for p in vectorize(4):
            B[n, p] = B[n, p] + tile[p, n]
"""
    )
    check(again)


def test_lanes_of_parts_of_vectors_are_read() -> None:
    check("""
def f(A: f32[4, 8], *, B: f32[8, 3], C: f32[2, 4]):
    tile = alloc(f32[4, 8], "register")
    for i in unroll(4):
        for j in vectorize(8):
            tile[i, j] = A[i, j]
    for k in unroll(8):
        for l in vectorize(3):
            B[k, l] = tile[l + 1, k]
    for m in unroll(2):
        for n in vectorize(4):
            C[m, n] = tile[m * 2, n * 2]
""")


X, Y, Z = "x", "y", "z"


def func(*inputs: Tensor, out: Tensor) -> Func:
    return lower_tensors("f", (), inputs, (out,))


def moved(*shape: int, perm: tuple[int, ...], dtype: DType = DType.F32) -> Func:
    x = placeholder(X, TensorType(shape, dtype))
    return func(x, out=Transpose(perm=perm).compute(x))


def fused(rows: int, columns: int, *, long: bool) -> Func:
    """A transposed tensor times one that is not, plus a row, in a longer expression or not."""
    x, y = (
        placeholder(X, TensorType((2, columns, rows))),
        placeholder(Y, TensorType((rows, columns))),
    )
    z = placeholder(Z, TensorType((columns,)))
    turned = Transpose(perm=(0, 2, 1)).compute(x)
    left = Gelu().compute(turned) if long else turned
    return func(x, y, z, out=Add().compute(Mul().compute(left, y), z))


def twice(rows: int, columns: int) -> Func:
    """The sum of two transposed tensors."""
    x, y = (placeholder(n, TensorType((columns, rows))) for n in (X, Y))
    return func(x, y, out=Add().compute(*(Transpose(perm=(1, 0)).compute(v) for v in (x, y))))


SIZES = [(16, 16), (4, 4), (5, 37), (37, 5), (33, 47), (64, 19), (17, 31), (3, 50), (50, 3), (1, 9)]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_scheduled_transposes_are_right(rows: int, columns: int, target: Target) -> None:
    for plain in (
        moved(columns, rows, perm=(1, 0)),
        moved(2, columns, 3, rows, perm=(0, 2, 3, 1)),
        fused(rows, columns, long=False),
        fused(rows, columns, long=True),
        twice(rows, columns),
    ):
        check(optimize(plain, target), target=target)


@pytest.mark.parametrize(
    "dtype",
    [DType.F64, DType.I64, DType.I32, DType.U8, DType.I8, DType.I16, DType.F16, DType.BF16]
    + [DType.BOOL],
)
def test_scheduled_transposes_of_any_type_are_right(dtype: DType) -> None:
    for target in (NATIVE, AVX2):
        check(optimize(moved(3, 21, 35, perm=(0, 2, 1), dtype=dtype), target), target=target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("shape", [(2, 37, 3, 56), (3, 45, 147), (2, 5, 7, 7), (1, 48, 67)])
def test_norms_of_transposed_images_are_right(shape: tuple[int, ...], target: Target) -> None:
    x = placeholder(X, TensorType(shape))
    y, z = (placeholder(n, TensorType((shape[1],))) for n in (Y, Z))
    turned = Transpose(perm=(0, *range(2, len(shape)), 1)).compute(x)
    plain = func(x, y, z, out=LayerNorm(axis=-1).compute(turned, y, z))
    check(optimize(plain, target), target=target, rtol=1e-4)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_channels_of_open_images_are_packed_and_unpacked(target: Target) -> None:
    """The last block has fewer channels, and the last vector fewer pixels."""
    n = Var("n")
    x, y = placeholder(X, TensorType((2, 21, 3, n))), placeholder(Y, TensorType((2, 2, 3, n, 16)))
    packed, plain = PackChannels(block=16).compute(x), UnpackChannels(channels=index(21)).compute(y)
    for inputs, output in ((x, packed), (y, plain)):
        made = lower_tensors("f", ("n",), (inputs,), (output,))
        sizes = [{"n": size} for size in (0, 1, 16, 37)]
        check(optimize(made, target), *sizes, target=target)


AVX512 = replace(NATIVE, features=NATIVE.features | {"avx512f", "avx512vl", "avx512bw", "avx512dq"})


@pytest.mark.parametrize(
    ("target", "lanes", "shuffles"),
    [
        (AVX512, 16, "vunpcklps|vunpckhps|vshuff64x2|vshuff32x4"),
        (AVX2, 8, "vunpcklps|vunpckhps|vinsertf128|vperm2f128"),
        (BASELINE, 4, "unpcklps|unpckhps|movlhps|movhlps|unpcklpd|unpckhpd|shufps"),
        (ARM, 4, r"zip1|zip2|st2|trn1|trn2"),
    ],
    ids=["avx512", "avx2", "sse2", "neon"],
)
def test_a_transpose_is_shuffles_of_two_vectors(target: Target, lanes: int, shuffles: str) -> None:
    """log2(lanes) for each vector, and nothing goes through memory or lane by lane."""
    plain = moved(lanes, lanes, perm=(1, 0))
    text = assembly(emit_func(optimize(plain, target), target), target)
    made = re.findall(rf"^\s+(?:{shuffles})\b", text, re.MULTILINE)
    assert 0 < len(made) <= lanes * lanes.bit_length()
    assert not re.search(r"gather|vinsertps|pinsr|extractps|%[er]sp|\bins\b|\bld1\b", text)
    if target is not ARM:
        assert len(made) == lanes * (lanes.bit_length() - 1)


@pytest.mark.parametrize(
    ("dtype", "shuffle", "count"),
    [(DType.BF16, "vpunpck[lh]wd", 48), (DType.F16, "vpunpck[lh]wd", 48)]
    + [(DType.U8, "vpunpck[lh]bw", 64), (DType.BOOL, "vpunpck[lh]bw", 64)],
    ids=str,
)
def test_small_elements_are_transposed_as_they_lie(dtype: DType, shuffle: str, count: int) -> None:
    """Not widened, nor rounded; 8 of 16 bits fill the 128 within which they are zipped."""
    target = replace(AVX512, features=AVX512.features | {"f16c"})
    text = assembly(
        emit_func(optimize(moved(16, 16, perm=(1, 0), dtype=dtype), target), target), target
    )
    assert len(re.findall(rf"^\s+(?:{shuffle})\b", text, re.MULTILINE)) == count
    assert not re.search(r"gather|pinsr|pextr|%[er]sp|vcvt|vpadd", text)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_bools_that_were_computed_are_transposed_as_bytes(target: Target) -> None:
    text = """
def f(A: f32[16, 16], B: f32[16, 16], *, C: bool[16, 16]):
    tile = alloc(bool[16, 16], "register")
    for i in unroll(16):
        for j in vectorize(16):
            tile[i, j] = A[i, j] < B[i, j]
    for k in unroll(16):
        for l in vectorize(16):
            C[k, l] = tile[l, k]
""".strip()
    check(text, target=target)
    assert "insertelement" not in emit_func(parse_func(text), target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_conditions_are_turned(target: Target) -> None:
    """Their tiles have as many rows as what they choose between has lanes."""
    c, x = placeholder("c", TensorType((21, 35), DType.BOOL)), placeholder(X, TensorType((35, 21)))
    y, turned = placeholder(Y, TensorType((35, 21))), Transpose(perm=(1, 0)).compute(c)
    nest = optimize(func(c, x, y, out=Where().compute(turned, x, y)), target)
    assert {b.buffer.type.dtype for b in allocs(nest.body).values()} == {DType.BOOL}
    check(nest, target=target)


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("size", [(16, 64), (21, 35), (50, 7)])
def test_narrow_numbers_are_turned_widened_and_narrowed(size: tuple[int, int], target: Target):
    x = placeholder(X, TensorType(size, DType.BF16))
    y = placeholder(Y, TensorType(size[:1]))
    turned = Widen().compute(Transpose(perm=(1, 0)).compute(x))
    for made in (turned, Narrow().compute(Add().compute(turned, y))):
        check(optimize(func(x, y, out=made), target), target=target)


def test_a_tile_is_transposed_once_for_all_its_lanes() -> None:
    """What is transposed for one column is known to the others."""
    text = emit_func(parse_func(tile(16, 16)), NATIVE)
    assert text.count("shufflevector") == 64


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    "index", ["i * 3 + 1", "i * 4", "45 - i * 3", "i * 2 + i // 5 * 7", "i * 5"]
)
@pytest.mark.parametrize(("dtype", "lanes"), [("f32", 16), ("f32", 4), ("u8", 9), ("f64", 8)])
def test_lanes_that_lie_apart_are_picked_from_vectors(
    index: str, dtype: str, lanes: int, target: Target
) -> None:
    check(f"""
def f(A: {dtype}[76], *, B: {dtype}[{lanes}]):
    for i in vectorize({lanes}):
        B[i] = A[{index}]
""", target=target)  # fmt: skip


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", [DType.F32, DType.U8], ids=str)
def test_colours_are_parted_by_shuffles(channels: int, dtype: DType) -> None:
    """A vector of one colour is picked from as many vectors as pixels have colours."""
    plain = moved(31, 128, channels, perm=(2, 0, 1), dtype=dtype)
    text = emit_func(optimize(plain, AVX512), AVX512)
    lanes = AVX512.lanes(dtype.size_bytes)
    assert "gather" not in text
    assert f"shufflevector <{lanes} x" in text or channels == 4
    assert text.count("insertelement") == 0


def test_colours_are_brought_together_by_tiles() -> None:
    nest = optimize(moved(3, 31, 128, perm=(1, 2, 0)), AVX512)
    assert any(a.buffer.type.shape == (index(3), index(16)) for a in allocs(nest.body).values())
    assert "insertelement" not in emit_func(nest, AVX512)
