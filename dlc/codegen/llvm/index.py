"""Index arithmetic of one function: from expressions to addresses that cost little in hot loops.

An index is kept as `constant + lane factor * lane + rest`, where `rest` is a polynomial over what
changes at run time. The rest is computed once, each part at the start of the outermost loop that
knows its variables; the constant, which differs between copies of an unrolled body, ends up in the
displacement of the memory instruction.
"""

from __future__ import annotations

from collections.abc import Callable

from dlc.codegen.llvm.flatten import Flat, Flattener
from dlc.codegen.llvm.from_data import is_from_data, vector_of
from dlc.codegen.llvm.ir import Builder, Val, constant, lane_constants
from dlc.codegen.llvm.movable import is_movable
from dlc.codegen.llvm.moving import without_remainders
from dlc.core.types import DType
from dlc.te.expr import (
    Binary,
    BinOp,
    Const,
    Expr,
    Select,
    Unary,
    UnOp,
    Var,
)
from dlc.te.poly import Monomial, from_poly
from dlc.te.simplify import surely_at_most, surely_less
from dlc.te.transform import free_vars

COMPARE = {BinOp.LT: "slt", BinOp.LE: "sle", BinOp.EQ: "eq", BinOp.NE: "ne"}


class Indices(Flattener):
    """Index expressions of one function, emitted through its builder.

    `vars` holds the values of loop and size variables and the level that defines each; those of
    level None are known where they are used, and nowhere before. `in_vectors` says whether the
    target computes with vectors of 64-bit integers.
    """

    def __init__(
        self, builder: Builder, evaluate: Callable[[Expr], Val], *, in_vectors: bool
    ) -> None:
        super().__init__()
        self.builder = builder
        self.evaluate = evaluate
        self.in_vectors = in_vectors
        self.vars: dict[str, tuple[Val, int | None]] = {}
        self.read: set[str] = set()  # the variables whose value is used
        self.counts: dict[str, Val] = {}  # of masks that have the first lanes only: how many
        self._groups: dict[int, list[tuple[int | None, list[tuple[Monomial, int]]]]] = {}
        self._quotients: dict[int, tuple[int, int]] = {}
        self._proofs: dict[tuple[BinOp, int, int], bool | None] = {}

    # From flat sums to values.

    def _grouped(self, rest: int) -> list[tuple[int | None, list[tuple[Monomial, int]]]]:
        """The terms of a rest by the level that knows them, outer first; None: not movable."""
        found = self._groups.get(rest)
        if found is None:
            levels: dict[int | None, list[tuple[Monomial, int]]] = {}
            for atoms, factor in self.rests[rest].items():
                levels.setdefault(self._level(atoms), []).append((atoms, factor))
            fixed = [level for level in levels if level is not None]
            found = [(level, levels[level]) for level in sorted(fixed)]
            if None in levels:
                found.append((None, levels[None]))
            self._groups[rest] = found
        return found

    def _level(self, atoms: Monomial) -> int | None:
        deepest = 0
        for atom in atoms:
            if not is_movable(atom):
                return None
            for name in free_vars(atom):
                level = self.vars[name][1]
                if level is None:
                    return None
                deepest = max(deepest, level)
        return deepest

    def _op(self, level: int | None, text: str, elem: str = "i64") -> Val:
        if level is None:
            return self.builder.op(text, elem)
        return self.builder.index_op(level, text, elem)

    def scalar(self, flat: Flat) -> Val:
        """The value of a flat sum that does not read the lane."""
        total: Val | None = None
        level: int | None = 0
        for level, terms in self._grouped(flat.rest):
            for atoms, factor in terms:
                term = self._term(level, atoms, factor)
                total = term if total is None else self._op(level, f"add nsw {total}, {term.ref}")
        if total is None:
            return Val(str(flat.const), "i64")
        return self._op(level, f"add nsw {total}, {flat.const}") if flat.const else total

    def pointer(self, base: Val, flat: Flat, elem_bytes: int) -> Val:
        """The address of an element: `base` plus the lane-free part of `flat`, in elements."""
        const, rest = self._by_quotients(flat.rest)
        const += flat.const
        key = ("pointer", base.ref, flat.rest)
        found = self.builder.recall(key)
        if found is None:
            found, level = base, None
            for level, terms in self._grouped(rest):
                found, terms = self._moving(found, level, terms, elem_bytes)
                offset: Val | None = None
                for atoms, factor in terms:
                    term = self._term(level, atoms, factor * elem_bytes)
                    offset = (
                        term if offset is None else self._op(level, f"add nsw {offset}, {term.ref}")
                    )
                if offset is not None:
                    found = self._op(level, f"getelementptr i8, {found}, {offset}", "ptr")
            if level is not None:
                self.builder.remember(key, found, self.builder.levels[level].scope)
        if not const:
            return found
        text = f"getelementptr i8, {found}, i64 {const * elem_bytes}"
        return self.builder.local_op(text, "ptr")

    def _by_quotients(self, rest: int) -> tuple[int, int]:
        """A rest whose remainders are taken from quotients, where a loop moves pointers.

        `x % 10` is `x - x // 10 * 10`: `x` moves with the loop, and `x // 10` is of use again.
        """
        found = self._quotients.get(rest)
        if found is None:
            poly = without_remainders(
                self.rests[rest], self.bounds, lambda atom: self._moves_at(self._level((atom,)))
            )
            found = self._quotients[rest] = (poly.pop((), 0), self.rest_id(poly))
        return found

    def _moves_at(self, level: int | None) -> bool:
        return level is not None and self.builder.levels[level].begin is not None

    def _moving(
        self, base: Val, level: int | None, terms: list[tuple[Monomial, int]], elem_bytes: int
    ) -> tuple[Val, list[tuple[Monomial, int]]]:
        """A pointer that moves with the loop of a level as far as the terms do; the other terms."""
        if level is None or not self._moves_at(level):
            return base, terms
        at = self.builder.levels[level]
        assert at.begin is not None
        factor = dict(terms).get((Var(at.var),))
        if factor is None:
            return base, terms
        step = factor * elem_bytes
        if at.begin.ref != "0":
            offset = self.builder.index_op(level - 1, f"mul nsw {at.begin}, {step}")
            base = self.builder.index_op(level - 1, f"getelementptr i8, {base}, {offset}", "ptr")
        rest = [term for term in terms if term[0] != (Var(at.var),)]
        return self.builder.moving(level, base, step), rest

    def reads_memory(self, flat: Flat) -> bool:
        """Whether a flat sum needs loads, and so must be evaluated in place."""
        return any(level is None for level, _ in self._grouped(flat.rest))

    def value(self, expr: Expr) -> Val:
        """An index expression as data: a scalar, or a vector when it reads the lane."""
        flat = self.flat(expr)
        if flat.lane == 0:
            return self.scalar(flat)
        if flat.lane is not None:
            ramp = [flat.lane * n for n in range(self.lanes)]
            start = self.splat(self.scalar(flat), self.lanes)
            steps = lane_constants(ramp, "i64")
            return self.builder.op(f"add nsw {start}, {steps.ref}", "i64", self.lanes)
        if is_from_data(self, expr):
            return vector_of(self, expr)
        parts = self.per_lane(lambda: self.scalar(self.flat(expr)))
        return self.gather(parts)

    def part(self, value: Val, lane: int) -> Expr:
        """One lane of an index that is a vector, as a variable."""
        name = f"{value.ref}[{lane}]"
        found = self.builder.op(f"extractelement {value}, i64 {lane}", "i64")
        self.vars[name] = (found, None)
        return Var(name)

    def gather(self, parts: list[Val]) -> Val:
        """Scalars as the lanes of one vector."""
        elem, lanes = parts[0].elem, len(parts)
        if all(p.ref == parts[0].ref for p in parts):
            return self.splat(parts[0], lanes)
        total = Val("poison", elem, lanes)
        for lane, part in enumerate(parts):
            total = self.builder.op(f"insertelement {total}, {part}, i64 {lane}", elem, lanes)
        return total

    def splat(self, value: Val, lanes: int) -> Val:
        """A scalar in every lane; vectors stay as they are."""
        if value.lanes or not lanes:
            return value
        if value.ref[0] != "%":
            ref = value.ref
            text = ref if ref == "poison" else f"splat ({value.elem} {ref})"
            return Val(text, value.elem, lanes)
        # A half is spread before it is converted, which is 2 to 5 times faster: LLVM loads a lone
        # half into part of an old register, so each load waits for the conversion before it.
        half = self.builder.recall((DType.F16, value.ref))
        if half is not None:
            return self.builder.op(
                f"fpext {self.splat(half, lanes)} to <{lanes} x float>", "float", lanes
            )
        one = self.builder.op(
            f"insertelement <{lanes} x {value.elem}> poison, {value}, i64 0", value.elem, lanes
        )
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.builder.op(
            f"shufflevector {one}, {one.type} poison, {zeros}", value.elem, lanes
        )

    def _term(self, level: int | None, atoms: Monomial, factor: int) -> Val:
        total = self._atom(level, atoms[0])
        for atom in atoms[1:]:
            total = self._op(level, f"mul nsw {total}, {self._atom(level, atom).ref}")
        return total if factor == 1 else self._op(level, f"mul nsw {total}, {factor}")

    def _atom(self, level: int | None, atom: Expr) -> Val:
        if isinstance(atom, Var):
            self.read.add(atom.name)
            return self.vars[atom.name][0]
        if level is None:
            return self._worked_out_at(level, atom)
        key = ("atom", level, atom)  # the same quotient stands in the addresses of all rows
        found = self.builder.recall(key)
        if found is None:
            found = self._worked_out_at(level, atom)
            self.builder.remember(key, found, self.builder.levels[level].scope)
        return found

    def _worked_out_at(self, level: int | None, atom: Expr) -> Val:
        match atom:
            case Binary(BinOp.FLOORDIV | BinOp.MOD as op, a, b):
                return self._quotient(level, op, a, b)
            case Binary(BinOp.MIN | BinOp.MAX as op, a, b):
                x, y = self._scalar(a), self._scalar(b)
                if x.ref[0] != "%":
                    x, y = y, x
                name = "llvm.smin.i64" if op is BinOp.MIN else "llvm.smax.i64"
                self.builder.declarations.use(name, "i64", "i64, i64")
                return self._op(level, f"call i64 @{name}({x}, {y})")
            case Select(cond, then, other) if is_movable(atom):
                test = self._movable_cond(level, cond)
                x, y = self._scalar(then), self._scalar(other)
                return self._op(level, f"select {test}, {x}, {y}")
            case _:
                return self.evaluate(atom)

    def _scalar(self, expr: Expr) -> Val:
        return self.scalar(self.flat(expr))

    def _movable_cond(self, level: int | None, cond: Expr) -> Val:
        match cond:
            case Const(value, _):
                return constant(bool(value), "i1")
            case Binary(BinOp.AND | BinOp.OR as op, a, b):
                x, y = self._movable_cond(level, a), self._movable_cond(level, b)
                return self._op(level, f"{op} {x}, {y.ref}", "i1")
            case Unary(UnOp.NOT, a):
                return self._op(level, f"xor {self._movable_cond(level, a)}, true", "i1")
            case Binary(op, a, b):
                x, y = self._scalar(a), self._scalar(b)
                return self._op(level, f"icmp {COMPARE[op]} {x}, {y.ref}", "i1")
            case _:
                raise AssertionError(f"not a movable condition: {cond}")

    def _quotient(self, level: int | None, op: BinOp, a: Expr, b: Expr) -> Val:
        """`a // b`, rounded down, or `a % b`, with the sign of `b`.

        A divisor of 0, which only dead code has, counts as 1.
        """
        x, is_rest = self._scalar(a), op is BinOp.MOD
        if isinstance(b, Const) and (divisor := int(b.value)) > 0 and divisor.bit_count() == 1:
            shift = divisor.bit_length() - 1
            return self._op(level, f"and {x}, {divisor - 1}" if is_rest else f"ashr {x}, {shift}")
        y = self._divisor(level, b)
        if surely_at_most(0, a, self.bounds) and surely_at_most(0, b, self.bounds):
            return self._op(level, f"{'urem' if is_rest else 'udiv'} {x}, {y.ref}")
        quotient = None if is_rest else self._op(level, f"sdiv {x}, {y.ref}")
        rest = self._op(level, f"srem {x}, {y.ref}")
        inexact = self._inexact(level, x, y, rest)
        if quotient is None:
            fix = self._op(level, f"select {inexact}, {y}, i64 0")
            return self._op(level, f"add nsw {rest}, {fix.ref}")
        less = self._op(level, f"sext {inexact} to i64")
        return self._op(level, f"add nsw {quotient}, {less.ref}")

    def _divisor(self, level: int | None, b: Expr) -> Val:
        y = self._scalar(b)
        if surely_less(0, b, self.bounds):
            return y
        zero = self._op(level, f"icmp eq {y}, 0", "i1")
        return self._op(level, f"select {zero}, i64 1, {y}")

    def _inexact(self, level: int | None, x: Val, y: Val, rest: Val) -> Val:
        """Whether a quotient rounded toward zero is one above the floor."""
        nonzero = self._op(level, f"icmp ne {rest}, 0", "i1")
        signs = self._op(level, f"xor {x}, {y.ref}")
        differ = self._op(level, f"icmp slt {signs}, 0", "i1")
        return self._op(level, f"and {nonzero}, {differ.ref}", "i1")

    # Comparisons.

    def compare(self, op: BinOp, a: Expr, b: Expr, difference: Expr) -> bool | Val:
        """`a op b`, where `difference` is `a - b`: known, a scalar, or a vector over lanes."""
        flat = self.flat(difference)
        known: bool | Val | None
        if flat.lane == 0:
            known = self._proven(op, flat)
            if known is not None:
                return known
            x, y = self._scalar(a), self._scalar(b)
            return self.builder.op(f"icmp {COMPARE[op]} {x}, {y.ref}", "i1")
        known = self._known_lanes(op, difference, flat)
        if known is not None:
            return known
        if flat.lane in (1, -1) and op in (BinOp.LT, BinOp.LE):
            return self._lane_mask(op, flat)
        lanes = self.lanes
        x, y = self.splat(self.value(a), lanes), self.splat(self.value(b), lanes)
        return self.builder.op(f"icmp {COMPARE[op]} {x}, {y.ref}", "i1", lanes)

    def _known_lanes(self, op: BinOp, difference: Expr, flat: Flat) -> bool | Val | None:
        """The comparison of each lane, where all of them are known."""
        if flat.lane is None:
            flats = self.per_lane(lambda: self.flat(difference))
        else:
            steps = [flat.lane * n for n in range(self.lanes)]
            flats = [Flat(flat.const + step, 0, flat.rest) for step in steps]
        verdicts: list[bool] = []
        for each in flats:
            verdict = self._proven(op, each)
            if verdict is None:
                return None
            verdicts.append(verdict)
        if all(verdicts) or not any(verdicts):
            return verdicts[0]
        return lane_constants([int(v) for v in verdicts], "i1")

    def _lane_mask(self, op: BinOp, flat: Flat) -> Val:
        """`lane + s < 0` as `lane < -s`, and `s - lane < 0` as `s < lane`, on 32-bit lanes."""
        lanes, up = self.lanes, flat.lane == 1
        start = self.scalar(flat._replace(const=flat.const - (op is BinOp.LE)))
        bound = self.builder.op(f"sub nsw i64 0, {start.ref}", "i64") if up else start
        # The bits of a number of lanes say which parts there are: it is never below 0.
        for name, limit in (("llvm.smax.i64", 0 if up else -1), ("llvm.smin.i64", lanes)):
            self.builder.declarations.use(name, "i64", "i64, i64")
            bound = self.builder.op(f"call i64 @{name}({bound}, i64 {limit})", "i64")
        narrow = self.splat(self.builder.op(f"trunc {bound} to i32", "i32"), lanes)
        ramp = lane_constants(list(range(lanes)), "i32")
        test = f"{ramp}, {narrow.ref}" if up else f"{narrow}, {ramp.ref}"
        mask = self.builder.op(f"icmp slt {test}", "i1", lanes)
        if up:
            self.counts[mask.ref] = bound
        return mask

    def _proven(self, op: BinOp, flat: Flat) -> bool | None:
        key = (op, flat.const, flat.rest)
        if key not in self._proofs:
            poly = dict(self.rests[flat.rest])
            if flat.const:
                poly[()] = flat.const
            self._proofs[key] = _sign(op, from_poly(poly), self.bounds)
        return self._proofs[key]


def _sign(op: BinOp, x: Expr, bounds: dict[str, tuple[Expr, Expr]]) -> bool | None:
    """Whether `x op 0` holds, where that is proven for all values of the variables."""
    below, above = surely_less(x, 0, bounds), surely_less(0, x, bounds)
    match op:
        case BinOp.LT:
            return True if below else False if surely_at_most(0, x, bounds) else None
        case BinOp.LE:
            return True if surely_at_most(x, 0, bounds) else False if above else None
        case _:
            if isinstance(x, Const):
                return (x.value == 0) is (op is BinOp.EQ)
            return (op is BinOp.NE) if below or above else None
