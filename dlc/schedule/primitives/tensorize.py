"""tensorize: replace a nest by the hardware instruction that does the same."""

from __future__ import annotations

from dlc.schedule.dependence import bounds_in
from dlc.schedule.edit import swap_loop
from dlc.schedule.instruction import INSTRUCTIONS, Instruction
from dlc.schedule.loop import Block, For, Func, If, Invoke, LoopKind, Stmt, Store
from dlc.schedule.primitive import find_loop, primitive, refuse
from dlc.schedule.simplify import guarded, hoist_stmt, simplify_stmt
from dlc.te.expr import TRUE, ZERO, Binary, Cast, Const, Expr, Load, Select, Unary, Var
from dlc.te.simplify import canonical, surely_equal
from dlc.te.transform import free_vars, substitute


@primitive
def tensorize(func: Func, loop: str, instruction: str) -> Func:
    """Replace a nest by an instruction whose meaning it is.

    Guards inside of the nest that none of its loops touches then stand around the instruction.

    Before:
        def f(A: u8[9, 4], W: i8[4], *, C: i32[9]):
            for i in range(9):
                C[i] = i32(0)
                for j in range(4):
                    C[i] += i32(A[i, j]) * i32(W[j])

    Call:
        tensorize("j", "dot_4xi8_i32")

    After:
        def f(A: u8[9, 4], W: i8[4], *, C: i32[9]):
            for i in range(9):
                C[i] = i32(0)
                invoke("dot_4xi8_i32", A[i, 0], W[0], C[i])

    Raises:
        ScheduleError: no such loop or instruction; the nest is not the meaning of the instruction:
            other loops, other statements, another formula, other regions of the buffers; a
            buffer it writes is also read.
    """
    target = find_loop("tensorize", func, loop)
    if instruction not in INSTRUCTIONS:
        hint = f"known: {', '.join(sorted(INSTRUCTIONS))}"
        refuse("tensorize", func, f"there is no instruction '{instruction}'", hint)
    known = INSTRUCTIONS[instruction]
    matching = _Matching(known)
    nest = hoist_stmt(simplify_stmt(target, bounds_in(func.body)))
    guard, nest = (nest.cond, nest.body) if isinstance(nest, If) else (TRUE, nest)
    if not matching.stmt(simplify_stmt(known.func.body, bounds_in(known.func.body)), nest):
        reason = f"loop '{loop}' is not what '{instruction}' does: {matching.problem}"
        refuse("tensorize", func, reason)
    names = [matching.found[p.name][0] for p in known.func.params]
    for out in known.func.outputs:
        if names.count(matching.found[out.name][0]) > 1:
            refuse("tensorize", func, f"'{matching.found[out.name][0]}' is both written and read")
    operands = tuple(matching.found[p.name] for p in known.func.params)
    return swap_loop(func, loop, lambda _: guarded([guard], Invoke(instruction, operands)))


class _Matching:
    """Walks a meaning and a nest together; `found` is the region of each operand."""

    def __init__(self, instruction: Instruction) -> None:
        self.ranks = {p.name: p.type.rank for p in instruction.func.params}
        self.found: dict[str, tuple[str, tuple[Expr, ...]]] = {}
        self.loops: dict[str, str] = {}  # variable of the meaning -> of the nest
        self.problem = ""

    def fail(self, problem: str) -> bool:
        self.problem = self.problem or problem
        return False

    def stmt(self, meaning: Stmt, nest: Stmt) -> bool:
        match meaning, nest:
            case For(), For():
                if nest.kind is LoopKind.PARALLEL or not surely_equal(meaning.extent, nest.extent):
                    return self.fail(f"loop '{nest.var}' runs {nest.kind}({nest.extent})")
                self.loops[meaning.var] = nest.var
                return self.stmt(meaning.body, nest.body)
            case Store(), Store():
                return self.access(
                    meaning.buffer, meaning.index, nest.buffer, nest.index
                ) and self.expr(meaning.value, nest.value)
            case Block(stmts), Block(others) if len(stmts) == len(others):
                return all(self.stmt(a, b) for a, b in zip(stmts, others, strict=True))
            case If(), If():
                return self.expr(meaning.cond, nest.cond) and self.stmt(meaning.body, nest.body)
            case _:
                return self.fail("other statements")

    def access(
        self, param: str, at: tuple[Expr, ...], buffer: str, index: tuple[Expr, ...]
    ) -> bool:
        """Whether an element of the buffer is that element of the operand's region."""
        inner = frozenset(self.loops.values())
        zeros: dict[str, Expr] = dict.fromkeys(inner, ZERO)
        here: dict[str, Expr] = {old: Var(new) for old, new in self.loops.items()}
        start = tuple(canonical(substitute(part, zeros)) for part in index)
        lead = len(index) - self.ranks[param]
        want = [ZERO] * lead + [substitute(part, here) for part in at]
        first = [ZERO] * lead + [canonical(substitute(part, zeros)) for part in want[lead:]]
        if lead < 0 or any(free_vars(part) & inner for part in index[:lead]):
            return self.fail(f"'{buffer}' has no such region")
        base = tuple(canonical(s - f) for s, f in zip(start, first, strict=True))
        if not all(surely_equal(part - b, w) for part, b, w in zip(index, base, want, strict=True)):
            return self.fail(f"'{buffer}' is used in another order")
        if self.found.setdefault(param, (buffer, base)) != (buffer, base):
            return self.fail(f"'{buffer}' is used at another place")
        return True

    def expr(self, meaning: Expr, value: Expr) -> bool:
        match meaning, value:
            case Load(), Load():
                if meaning.dtype is not value.dtype:
                    return self.fail(f"'{value.buffer}' holds {value.dtype}")
                return self.access(meaning.buffer, meaning.index, value.buffer, value.index)
            case Const(), Const():
                return meaning == value or self.fail("another constant")
            case Var(name, _), Var(other, _):
                return self.loops.get(name) == other or self.fail("another variable")
            case Binary(op, a, b), Binary(other_op, c, d) if op is other_op:
                return self.expr(a, c) and self.expr(b, d)
            case Unary(fn, a), Unary(other_fn, c) if fn is other_fn:
                return self.expr(a, c)
            case Cast(dtype, a), Cast(other_dtype, c) if dtype is other_dtype:
                return self.expr(a, c)
            case Select(p, a, b), Select(q, c, d):
                return self.expr(p, q) and self.expr(a, c) and self.expr(b, d)
            case _:
                return self.fail("another formula")
