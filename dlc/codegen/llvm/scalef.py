"""Products with powers of two by AVX-512's vscalef."""

from __future__ import annotations

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val, type_of

SCALEF_LANES = {"float": 16, "double": 8}


def has_scalef(arith: Arith, x: Val) -> bool:
    """Whether the target has it for this many lanes."""
    whole = bool(x.lanes) and x.lanes % SCALEF_LANES[x.elem] == 0
    return "avx512f" in arith.target.features and arith.is_x86 and whole


def scalef(arith: Arith, x: Val, n: Val, kept: Val) -> Val:
    """x * 2**n, rounded once, one register at a time; 0 if not `kept`.

    A product that underflows takes a hundred times as long as others, and all those that are
    masked out of a softmax would.
    """
    builder, width = arith.builder, SCALEF_LANES[x.elem]
    kind = type_of(x.elem, width)
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if width == 16 else 'pd'}.512"
    mask = f"i{width}"
    builder.declarations.use(name, kind, f"{kind}, {kind}, {kind}, {mask}, i32")
    parts = []
    for first in range(0, x.lanes, width):
        one, two, lanes = (_lanes(arith, v, first, width) for v in (x, n, kept))
        chosen = builder.op(f"bitcast {lanes} to {mask}", mask)
        operands = f"{one}, {two}, {kind} zeroinitializer, {chosen}, i32 4"
        parts.append(builder.op(f"call {kind} @{name}({operands})", x.elem, width))
    return _join(arith, parts)


def _lanes(arith: Arith, x: Val, first: int, count: int) -> Val:
    if count == x.lanes:
        return x
    picked = ", ".join(f"i32 {first + n}" for n in range(count))
    text = f"shufflevector {x}, {x.type} poison, <{count} x i32> <{picked}>"
    return arith.builder.op(text, x.elem, count)


def _join(arith: Arith, parts: list[Val]) -> Val:
    """Vectors one behind the other; each step joins all so far with the next."""
    total = parts[0]
    for part in parts[1:]:
        lanes = total.lanes + part.lanes
        wide = _widen(arith, part, total.lanes)
        picked = ", ".join(f"i32 {n}" for n in range(lanes))
        text = f"shufflevector {total}, {wide}, <{lanes} x i32> <{picked}>"
        total = arith.builder.op(text, part.elem, lanes)
    return total


def _widen(arith: Arith, x: Val, lanes: int) -> Val:
    if x.lanes == lanes:
        return x
    picked = ", ".join(f"i32 {n}" if n < x.lanes else "i32 poison" for n in range(lanes))
    text = f"shufflevector {x}, {x.type} poison, <{lanes} x i32> <{picked}>"
    return arith.builder.op(text, x.elem, lanes)
