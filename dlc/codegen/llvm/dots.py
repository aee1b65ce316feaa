"""Products of neighbours, which fill 32 bits, in the lanes of a vector, added to 32-bit sums."""

from __future__ import annotations

from dataclasses import dataclass

from dlc.codegen.llvm.ir import Builder, Val
from dlc.codegen.llvm.lanes import narrowed, widened
from dlc.codegen.llvm.memory import Memory
from dlc.core.types import DType
from dlc.te.expr import Expr
from dlc.te.simplify import canonical

_BYTE = 8  # bits
WIDTHS = (4, 8, 16)  # lanes that there is an instruction for

Operand = tuple[str, tuple[Expr, ...]]


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction that adds products of neighbours.

    `name` is that of LLVM's function but for the bits of a vector; `elem` is the type of an operand
    there, `each` of which are a lane, and `sums` the type of a sum.
    """

    name: str
    elem: str
    each: int
    sums: str

    def __call__(self, memory: Memory, operands: tuple[Operand, ...]) -> None:
        """Add the products of two operands to a sum, in each lane that runs.

        Lanes up to the next width that there is are computed and left out.
        """
        a, b, (total, index) = operands
        builder, lanes = memory.builder, max(1, memory.indices.lanes)
        width = next(w for w in WIDTHS if w >= lanes)
        words = [widened(builder, memory.load_word(*operand), width) for operand in (a, b)]
        sums = widened(builder, memory.load(total, index), width)
        name = f"{self.name}.{width * 32}"
        kind = f"<{self.each * width} x {self.elem}>"
        builder.declarations.use(name, sums.type, f"{sums.type}, {kind}, {kind}")
        if self.elem != "i32":
            words = [
                builder.op(f"bitcast {w} to {kind}", self.elem, self.each * width) for w in words
            ]
        x, y = words
        found = builder.op(f"call {sums.type} @{name}({sums}, {x}, {y})", self.sums, width)
        memory.store(total, index, narrowed(builder, found, memory.indices.lanes))


def dot_word(bits: int, memory: Memory, operands: tuple[Operand, ...]) -> None:
    """Add products with all numbers of a word to a sum; as `Dot`.

    Where nothing adds four products at once, 16 bits hold those of numbers of less than a byte.
    """
    (rows, (*row, k)), b, (total, index) = operands
    builder, lanes = memory.builder, max(1, memory.indices.lanes)
    width = next(w for w in WIDTHS if w >= lanes)
    word = widened(builder, memory.load(*b), width)
    sums = widened(builder, memory.load(total, index), width)
    mask = ((1 << bits) - 1) * 0x01010101
    factors = []
    for place in range(0, _BYTE, bits):
        quad = builder.op(f"lshr {word}, splat (i32 {place})", "i32", width) if place else word
        if bits < _BYTE:
            quad = builder.op(f"and {quad}, splat (i32 {mask})", "i32", width)
        at = (*row, canonical(k + place // bits * 4))
        factors.append((quad, widened(builder, memory.load_word(rows, at), width)))
    if memory.arith.target.byte_products == 4:
        name = f"{DOT_QUADS.name}.{width * 32}"
        for quad, left in factors:
            sums = builder.call(name, sums, sums, quad, left)
    else:
        products = _in_16_bits(builder, factors, width)
        sums = builder.op(f"add {sums}, {products.ref}", "i32", width)
    memory.store(total, index, narrowed(builder, sums, memory.indices.lanes))


def _in_16_bits(builder: Builder, factors: list[tuple[Val, Val]], width: int) -> Val:
    """The sum of products of unsigned and signed bytes, four of them in each lane."""
    ones, total = Val("splat (i16 1)", "i16", 2 * width), None
    for pair in factors:
        a, b = (builder.op(f"bitcast {x} to <{4 * width} x i8>", "i8", 4 * width) for x in pair)
        pairs = builder.call(_MULTIPLY_BYTES[width], ones, a, b)
        total = (
            pairs if total is None else builder.op(f"add {total}, {pairs.ref}", "i16", 2 * width)
        )
    assert total is not None, "a word holds numbers"
    return builder.call(_MULTIPLY_ADD[width], Val("", "i32", width), total, ones)


def dot_words(memory: Memory, operands: tuple[Operand, ...]) -> None:
    """Add products of two i16 to a sum; as `Dot`. Bytes on the right are widened as they come."""
    a, b, (total, index) = operands
    builder, lanes = memory.builder, max(1, memory.indices.lanes)
    width = next(w for w in WIDTHS if w >= lanes)
    kind = f"<{2 * width} x i16>"
    rows = widened(builder, memory.load_word(*a), width)
    left = builder.op(f"bitcast {rows} to {kind}", "i16", 2 * width)
    if memory.storage[b[0]].dtype is DType.I8:
        columns = widened(builder, memory.load_word(*b, size=2), width)
        halves = builder.op(f"bitcast {columns} to <{2 * width} x i8>", "i8", 2 * width)
        right = builder.op(f"sext {halves} to {kind}", "i16", 2 * width)
    else:
        columns = widened(builder, memory.load_word(*b), width)
        right = builder.op(f"bitcast {columns} to {kind}", "i16", 2 * width)
    name, sums = _MULTIPLY_ADD[width], f"<{width} x i32>"
    builder.declarations.use(name, sums, f"{kind}, {kind}")
    products = builder.op(f"call {sums} @{name}({left}, {right})", "i32", width)
    before = widened(builder, memory.load(total, index), width)
    found = builder.op(f"add {before}, {products.ref}", "i32", width)
    memory.store(total, index, narrowed(builder, found, memory.indices.lanes))


_MULTIPLY_ADD = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
_MULTIPLY_BYTES = {
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    16: "llvm.x86.avx512.pmaddubs.w.512",
}
DOT_PAIRS = Dot("llvm.x86.avx512bf16.dpbf16ps", "bfloat", 2, "float")
DOT_QUADS = Dot("llvm.x86.avx512.vpdpbusd", "i32", 1, "i32")
