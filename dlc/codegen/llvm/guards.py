"""Conditions of statements: branches where all lanes agree, masks elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from dlc.codegen.llvm.ir import Val
from dlc.codegen.llvm.usage import Usage
from dlc.codegen.llvm.values import Values
from dlc.schedule.loop import Alloc, For, If, Invoke, LoopKind, Stmt, Store, walk
from dlc.schedule.simplify import all_of, conjuncts
from dlc.te.expr import Binary, BinOp, Const, Expr


class Guards:
    """Runs statements where their conditions hold.

    `nested_if` joins a condition and a body, the same statement each time; `run_body` emits one.
    """

    def __init__(
        self,
        values: Values,
        usage: Usage,
        nested_if: Callable[[Expr, Stmt], If],
        run_body: Callable[[Stmt], None],
    ) -> None:
        self.values = values
        self.builder = values.builder
        self.memory = values.memory
        self.usage = usage
        self.nested_if = nested_if
        self.run_body = run_body
        self._lane_needs: dict[int, tuple[Stmt, bool]] = {}

    def run(self, cond: Expr, body: Stmt) -> None:
        """Branch on what all lanes agree on, first on what reads no memory; mask the rest."""
        plain: list[Expr] = []
        reading: list[Expr] = []
        for part in conjuncts(cond):
            (reading if self.values.risky_loads(part) else plain).append(part)
        tests: list[Val] = []
        masks: list[Val] = []
        for part in plain:
            test = self.values.cond(part)
            if test is False:
                return
            if not isinstance(test, bool):
                (masks if test.lanes else tests).append(test)
        rare = _is_infinite(cond)
        inner: Stmt = body
        if reading and (tests or masks):
            inner = self.nested_if(all_of(reading), body)
        elif reading:
            test = self.values.cond(cond)
            if test is False:
                return
            if not isinstance(test, bool):
                (masks if test.lanes else tests).append(test)
        self._guarded(tests, masks, inner, rare=rare)

    def _guarded(self, tests: list[Val], masks: list[Val], body: Stmt, *, rare: bool) -> None:
        if not masks:
            self._branch(tests, body, rare=rare)
            return
        outer = self.memory.mask
        for mask in masks:
            self.memory.mask = self.values.both_masks(self.memory.mask, mask)
        assert self.memory.mask is not None
        any_lane = self.values.any_lane(self.memory.mask)
        if any_lane.ref != "true" and self._needs_a_lane(body):
            tests = [*tests, any_lane]
        if any_lane.ref != "false":
            self._branch(tests, body, rare=rare)
        self.memory.mask = outer

    def _needs_a_lane(self, body: Stmt) -> bool:
        """Whether a masked statement may only run if some lane is on, or is long enough to skip."""
        found = self._lane_needs.get(id(body))
        if found is None:
            found = self._lane_needs[id(body)] = (body, self._find_lane_need(body))
        return found[1]

    def _find_lane_need(self, body: Stmt) -> bool:
        for node in walk(body):
            match node:
                case Store(buffer, index, value):
                    reads = [r for e in (*index, value) for r in self.values.risky_loads(e)]
                    if self.memory.is_shared(buffer, index):
                        return True
                    if any(self.memory.is_uniform(load) for load in reads):
                        return True
                case If(cond, _):
                    if any(self.memory.is_uniform(r) for r in self.values.risky_loads(cond)):
                        return True
                case Invoke():
                    return True
                case For(_, _, LoopKind.SERIAL | LoopKind.PARALLEL, _) | Alloc():
                    return True
        return False

    def _branch(self, tests: list[Val], body: Stmt, *, rare: bool) -> None:
        """Run `body` where all the tests hold; what surrounds it keeps its registers if `rare`."""
        if not tests:
            self.run_body(body)
            return
        builder, registers = self.builder, self.memory.registers
        test = tests[0]
        for other in tests[1:]:
            test = self.values.arith.op("and", test, other)
        chunks = registers.shape(self.usage.written(body))
        before = [registers.read(c) for c in chunks]
        start, then, after = builder.current, builder.block("if"), builder.block("endif")
        builder.branch(test, then, after, rare=rare)
        builder.enter(then)
        builder.open_scope()
        self.run_body(body)
        inside = [registers.read(c) for c in chunks]
        builder.close_scope()
        end = builder.current
        builder.jump(after)
        builder.enter(after)
        merged = [
            builder.phi([(old, start), (new, end)]) for old, new in zip(before, inside, strict=True)
        ]
        registers.replace(dict(zip(chunks, merged, strict=True)))
        self.memory.forget(self.usage.stores(body))


def _is_infinite(cond: Expr) -> bool:
    """Whether a condition asks for what is not finite: `x - x != 0`."""
    match cond:
        case Binary(BinOp.NE, Binary(BinOp.SUB, a, b), Const(value)):
            return a == b and a.dtype.is_float and value == 0
        case _:
            return False
