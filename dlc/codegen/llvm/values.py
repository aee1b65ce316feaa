"""Expressions: from te/expr.py to SSA values, scalar where all lanes agree, vectors elsewhere."""

from __future__ import annotations

import math
from functools import partial
from typing import assert_never

from dlc.codegen.llvm import narrow
from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.fields import MOST_BITS, WORD_BITS, bit_field
from dlc.codegen.llvm.index import Indices
from dlc.codegen.llvm.ir import VALUE_TYPES, Builder, Val, constant, lane_constants, mangled
from dlc.codegen.llvm.math import Math
from dlc.codegen.llvm.memory import Memory
from dlc.codegen.llvm.power import Power
from dlc.core.types import INDEX, DType
from dlc.te.expr import (
    COMPARISONS,
    FALSE,
    LOGICAL,
    TRUE,
    Binary,
    BinOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnOp,
    Var,
)
from dlc.te.transform import certain_loads, loads


class Values:
    """Emits expressions through the builder of one function."""

    def __init__(self, builder: Builder, arith: Arith) -> None:
        self.builder = builder
        self.arith = arith
        self.math = Math(arith)
        self.power = Power(self.math)
        self.indices = Indices(builder, self.expr, in_vectors=arith.has_wide_lanes)
        self.memory = Memory(builder, arith, self.indices)
        self._differences: dict[int, tuple[Expr, Expr]] = {}
        self._loads: dict[int, tuple[Expr, tuple[Load, ...]]] = {}
        self._risky: dict[int, tuple[Expr, list[Load]]] = {}

    def expr(self, expr: Expr) -> Val:
        """The value of an expression: a scalar, or a vector when lanes may differ."""
        match expr:
            case Load(buffer, index, _):
                return self.memory.load(buffer, index)
            case Binary():
                return self._binary(expr)
            case Const(value, dtype):
                return constant(value, VALUE_TYPES[dtype])
            case Var():
                return self.indices.value(expr)
            case Unary(op, a):
                return self._unary(op, a)
            case Cast(DType.BF16, Unary(UnOp.FLUSH, a)) if self.arith.has_bf16:
                return narrow.flushed_bfloat(self.arith, self.expr(a))
            case Cast(dtype, Unary(UnOp.ROUND, a)) if a.dtype is DType.F32 and dtype in _QUANTIZED:
                return self.arith.saturate(self.expr(a), dtype, nearest=True)
            case Cast(dtype, a):
                field = self._field(expr)
                return field or self.arith.cast(self.expr(a), a.dtype, dtype)
            case Select(cond, then, other):
                return self._select(cond, then, other)
            case _:
                assert_never(expr)

    def _field(self, number: Expr, less: Expr | None = None) -> Val | None:
        """A few bits of a word as a float, less a whole number of no more bits; None of others."""
        match number:
            case Cast(
                DType.F32,
                Binary(
                    BinOp.BITAND, Binary(BinOp.SHR, word, Cast(DType.U32, at)), Const(int(mask))
                ),
            ) if word.dtype is DType.U32 and at.dtype is INDEX and not mask & (mask + 1):
                place = self.indices.flat(at)
                given = 0.0 if less is None else less.value if isinstance(less, Const) else -1.0
                if place.rest or place.lane or not 0 <= place.const < WORD_BITS:
                    return None
                if mask.bit_length() > MOST_BITS or given not in range(mask + 1):
                    return None
                return bit_field(
                    self.arith, self.expr(word), place.const, mask.bit_length(), float(given)
                )
            case _:
                return None

    def _pair(self, a: Val, b: Val) -> tuple[Val, Val]:
        """Two values with equally many lanes."""
        if a.lanes == b.lanes:
            return a, b
        lanes = a.lanes or b.lanes
        return self.indices.splat(a, lanes), self.indices.splat(b, lanes)

    # Operators.

    def _binary(self, expr: Binary) -> Val:
        op, a, b = expr.op, expr.a, expr.b
        if expr.dtype is INDEX and op in _INDEX_OPS:
            return self.indices.value(expr)
        if op in COMPARISONS or op in LOGICAL:
            found = self.cond(expr)
            return constant(found, "i1") if isinstance(found, bool) else found
        if a.dtype.is_float:
            if op is BinOp.ADD or op is BinOp.SUB:
                field = self._field(a, b) if op is BinOp.SUB else None
                return field or self._sum(op, a, b)
            if op is BinOp.POW:
                exponent = float(b.value) if isinstance(b, Const) else None
                return self.power.of_floats(*self._pair(self.expr(a), self.expr(b)), exponent)
            if op is BinOp.MIN or op is BinOp.MAX:
                never = (_never_nan(a), _never_nan(b))
                x, y = self._pair(self.expr(a), self.expr(b))
                return self.arith.extreme(op, x, y, a.dtype, never_nan=never)
        elif op is BinOp.POW:
            return self.power.of_integers(*self._pair(self.expr(a), self.expr(b)), a.dtype)
        x, y = self._pair(self.expr(a), self.expr(b))
        return self.arith.binary(op, x, y, a.dtype)

    def _sum(self, op: BinOp, a: Expr, b: Expr) -> Val:
        """`a + b` or `a - b` of floats; a product among them is fused."""
        match b:
            case Binary(BinOp.MUL, p, q):
                x, y, z = self._three(self.expr(p), self.expr(q), self.expr(a))
                return self.arith.fma(self.arith.neg(x) if op is BinOp.SUB else x, y, z)
        match a:
            case Binary(BinOp.MUL, p, q):
                x, y, z = self._three(self.expr(p), self.expr(q), self.expr(b))
                return self.arith.fma(x, y, self.arith.neg(z) if op is BinOp.SUB else z)
        x, y = self._pair(self.expr(a), self.expr(b))
        return self.arith.binary(op, x, y, a.dtype)

    def _three(self, a: Val, b: Val, c: Val) -> tuple[Val, Val, Val]:
        if a.lanes == b.lanes == c.lanes:
            return a, b, c
        lanes = a.lanes or b.lanes or c.lanes
        splat = self.indices.splat
        return splat(a, lanes), splat(b, lanes), splat(c, lanes)

    def _unary(self, op: UnOp, a: Expr) -> Val:
        if op is UnOp.FLUSH and isinstance(a, Unary) and a.op is UnOp.EXP:
            return self.math.exp(self.expr(a.a), flushed=True)
        x = self.expr(a)
        if op is UnOp.NOT:
            return self.arith.op("xor", x, self.arith.const(True, x))
        if op is UnOp.INVERT:
            return self.arith.op("xor", x, self.arith.const(-1, x))
        if not a.dtype.is_float:
            return self._int_unary(op, x, a.dtype)
        if op is UnOp.NEG:
            return self.arith.neg(x)
        if op is UnOp.ISNAN:
            return self.arith.is_nan(x)
        return self.math.unary(op, x)

    def _int_unary(self, op: UnOp, x: Val, dtype: DType) -> Val:
        zero = self.arith.const(0, x)
        if op is UnOp.NEG:
            return self.arith.op("sub", zero, x)
        if op is UnOp.ISNAN:
            return constant(False, "i1")
        if op is UnOp.ABS:
            if not dtype.is_signed:
                return x
            below = self.arith.test("icmp slt", x, zero)
            return self.arith.select(below, self.arith.op("sub", zero, x), x)
        return x  # floor, ceil and round of a whole number

    # Conditions and choices.

    def cond(self, expr: Expr) -> bool | Val:
        """A condition: known now, a scalar, or a vector over lanes."""
        match expr:
            case Const(value, _):
                return bool(value)
            case Binary(BinOp.AND | BinOp.OR as op, a, b):
                return self._logical(op, a, b)
            case Unary(UnOp.NOT, a):
                found = self.cond(a)
                if isinstance(found, bool):
                    return not found
                return self.arith.op("xor", found, self.arith.const(True, found))
            case Binary(op, a, b) if op in COMPARISONS and a.dtype is INDEX:
                known = self._differences.get(id(expr))
                if known is None:
                    known = self._differences[id(expr)] = (a - b, expr)
                return self.indices.compare(op, a, b, known[0])
            case Binary(op, a, b) if op in COMPARISONS:
                return self.arith.compare(op, *self._pair(self.expr(a), self.expr(b)), a.dtype)
            case _:
                return self.expr(expr)

    def _logical(self, op: BinOp, a: Expr, b: Expr) -> bool | Val:
        x = self.cond(a)
        if isinstance(x, bool):
            return self.cond(b) if x is (op is BinOp.AND) else x
        if self.risky_loads(b):  # `a` may guard the loads of `b`
            guarded = Select(a, b, FALSE) if op is BinOp.AND else Select(a, TRUE, b)
            return self.expr(guarded)
        y = self.cond(b)
        if isinstance(y, bool):
            return x if y is (op is BinOp.AND) else y
        x, y = self._pair(x, y)
        return self.arith.op("and" if op is BinOp.AND else "or", x, y)

    def loads(self, expr: Expr) -> tuple[Load, ...]:
        """The elements an expression reads."""
        found = self._loads.get(id(expr))
        if found is None:
            found = self._loads[id(expr)] = (expr, loads(expr))
        return found[1]

    def risky_loads(self, expr: Expr) -> list[Load]:
        """The loads of an expression that are not sure to stay inside their buffers."""
        found = self._risky.get(id(expr))
        if found is None:
            inside = self.memory.surely_inside
            risky = [load for load in self.loads(expr) if not inside(load.buffer, load.index)]
            found = self._risky[id(expr)] = (expr, risky)
        return found[1]

    def _select(self, cond: Expr, then: Expr, other: Expr) -> Val:
        test = self.cond(cond)
        if isinstance(test, bool):
            return self.expr(then if test else other)
        risky = {*self.risky_loads(then), *self.risky_loads(other)}
        if risky and not risky <= certain_loads(cond):
            choose = self._blend if test.lanes else self._choose
            return choose(test, then, other)
        x, y = self._pair(self.expr(then), self.expr(other))
        if test.lanes:
            x, y = self.indices.splat(x, test.lanes), self.indices.splat(y, test.lanes)
        return self.arith.select(test, x, y)

    def _choose(self, test: Val, then: Expr, other: Expr) -> Val:
        """A branch: the arm not taken may read what does not exist."""
        builder = self.builder
        ways = [partial(self.expr, then), partial(self.expr, other)]
        (x, _), (y, _) = found = builder.fork(test, ways)
        after, lanes, met = builder.current, x.lanes or y.lanes, []
        for value, end in found:
            builder.enter(end)
            builder.open_scope()
            met.append((self.indices.splat(value, lanes), end))
            builder.close_scope()
        builder.enter(after)
        return builder.phi(met)

    def _blend(self, test: Val, then: Expr, other: Expr) -> Val:
        """Lanes choose for themselves; each arm reads only for the lanes that take it."""
        inverse = self.arith.op("xor", test, self.arith.const(True, test))
        x, y = self._arm(test, then), self._arm(inverse, other)
        x, y = self.indices.splat(x, test.lanes), self.indices.splat(y, test.lanes)
        return self.arith.select(test, x, y)

    def _arm(self, mask: Val, arm: Expr) -> Val:
        reads = self.risky_loads(arm)
        if not reads:
            return self.expr(arm)
        outer = self.memory.mask
        self.memory.mask = self.both_masks(outer, mask)
        if any(self.memory.is_uniform(load) for load in reads):
            found = self.builder.when(self.any_lane(self.memory.mask), lambda: self.expr(arm))
        else:
            found = self.expr(arm)
        self.memory.mask = outer
        return found

    def both_masks(self, a: Val | None, b: Val) -> Val:
        """The lanes that are on in both."""
        if a is None:
            return b
        if a.ref[0] == b.ref[0] == "<":  # spelled out: `<i1 true, i1 false>`
            pairs = zip(a.ref[1:-1].split(", "), b.ref[1:-1].split(", "), strict=True)
            return lane_constants([int(x == y == "i1 true") for x, y in pairs], "i1")
        both, counts = self.arith.op("and", a, b), self.indices.counts
        if (x := counts.get(a.ref)) is not None and (y := counts.get(b.ref)) is not None:
            counts[both.ref] = self.builder.call("llvm.smin.i64", x, x, y)
        return both

    def any_lane(self, mask: Val) -> Val:
        """Whether any lane of a mask is on."""
        if mask.ref[0] == "<":
            return constant("true" in mask.ref, "i1")
        name = f"vector.reduce.or.v{mask.lanes}i1"
        return self.builder.call(f"llvm.{name}", Val("", "i1"), mask)

    # Reductions over lanes.

    def reduce(self, op: BinOp, value: Val, dtype: DType) -> Val:
        """All lanes that run joined by one operator."""
        arith = self.arith
        if self.memory.mask is not None:
            identity = arith.const(_identity(op, dtype), value)
            value = arith.select(self.memory.mask, value, identity)
        kind = f"{'f' if dtype.is_float else ''}{'add' if op is BinOp.ADD else 'mul'}"
        if op in (BinOp.ADD, BinOp.MUL):
            like = Val("", value.elem)
            name = f"llvm.vector.reduce.{kind}.{mangled(value.elem, value.lanes)}"
            if not dtype.is_float:
                return self.builder.call(name, like, value)
            start = constant(-0.0 if op is BinOp.ADD else 1.0, value.elem)
            return self.builder.call(name, like, start, value, flags="reassoc ")
        return self._tree(op, value, dtype)

    def _tree(self, op: BinOp, value: Val, dtype: DType) -> Val:
        """Least or greatest of all lanes, halving the vector; many are asked once if one is NaN."""
        extract = self.builder.op
        every, sure = value, dtype.is_float and self.arith.is_x86 and value.lanes > _FEW_LANES
        while value.lanes > 1 and value.lanes % 2 == 0:
            half = value.lanes // 2
            halves = []
            for first in (0, half):
                picked = ", ".join(f"i32 {first + n}" for n in range(half))
                text = f"shufflevector {value}, {value.type} poison, <{half} x i32> <{picked}>"
                halves.append(extract(text, value.elem, half))
            value = self.arith.extreme(op, halves[0], halves[1], dtype, never_nan=(sure, sure))
        total = extract(f"extractelement {value}, i64 0", value.elem)
        for lane in range(1, value.lanes):
            part = extract(f"extractelement {value}, i64 {lane}", value.elem)
            total = self.arith.extreme(op, total, part, dtype, never_nan=(sure, sure))
        if not sure:
            return total
        nan = self.any_lane(self.arith.is_nan(every))
        return self.arith.select(nan, self.arith.const(math.nan, total), total)


_FEW_LANES = 4  # whose maximum takes less than finding out whether any of them is NaN
_QUANTIZED = frozenset({DType.I8, DType.U8, DType.I16, DType.U16})
_INDEX_OPS = frozenset({
    BinOp.ADD, BinOp.SUB, BinOp.MUL, BinOp.FLOORDIV, BinOp.MOD, BinOp.MIN, BinOp.MAX,
})  # fmt: skip


def _identity(op: BinOp, dtype: DType) -> int | float | bool:
    """What a reduction may be joined with and stay the same."""
    if op is BinOp.ADD:
        return -0.0 if dtype.is_float else 0
    if op is BinOp.MUL:
        return 1
    if dtype.is_float:
        return math.inf if op is BinOp.MIN else -math.inf
    if dtype is DType.BOOL:
        return op is BinOp.MIN
    high = 2 ** (dtype.bits - dtype.is_signed) - 1
    low = -high - 1 if dtype.is_signed else 0
    return high if op is BinOp.MIN else low


def _never_nan(expr: Expr) -> bool:
    """Whether a float expression is surely not NaN."""
    match expr:
        case Const(value, _):
            return not math.isnan(value)
        case Cast(_, a):
            return not a.dtype.is_float
        case _:
            return False
