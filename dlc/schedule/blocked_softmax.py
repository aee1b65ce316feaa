"""The nests of a softmax, and of the sums that it weighs, for some keys at a time.

A row carries from block to block: its largest score, the total of its exponentials, and what was
summed up at the weights of the keys so far.

Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlc.core.types import DType
from dlc.schedule.edit import Site, redirect, renamed, sites, written
from dlc.schedule.loop import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    LoopKind,
    Scope,
    Stmt,
    Store,
    allocs,
    block,
    rewrite,
)
from dlc.schedule.nest import Stage
from dlc.schedule.softmax import Softmax, general, specific
from dlc.te.expr import (
    ZERO,
    Binary,
    BinOp,
    Expr,
    Load,
    UnOp,
    Var,
    const,
    equal,
    index,
    maximum,
    select,
    unary,
)
from dlc.te.simplify import canonical, surely_divides, surely_less
from dlc.te.transform import free_vars, substitute
from dlc.te.transform import rewrite as rewrite_expr
from dlc.te.types import TensorType

BEGIN, NOW, NEXT, END = "begin", "now", "in", "end"  # behind the names of loops
LOWEST = const(float("-inf"), DType.F32)


@dataclass(frozen=True, slots=True)
class Names:
    """The buffers that blocks need beside those there are: numbers of a row, and a sum."""

    largest: str  # of all keys so far
    total: str  # of all keys so far
    base: str  # what is subtracted from scores
    over: str  # 1 / total
    scale: str  # what the weights of the keys before are multiplied by
    part: str  # what the keys of the block are mixed to

    @property
    def every(self) -> tuple[str, ...]:
        """All of them."""
        return (self.largest, self.total, self.base, self.over, self.scale, self.part)


def names_for(found: Softmax) -> Names:
    """Names after those of the buffers they go with."""
    largest, total, mixed = (s.buffer for s in (found.largest, found.total, found.mixed))
    return Names(
        f"{largest}_all", f"{total}_all", f"{largest}_base",
        f"{total}_over", f"{total}_scale", f"{mixed}_part",
    )  # fmt: skip


class BlockedSoftmax:
    """Writes the nests for `keys` keys at a time; `loop` is the loop over the blocks."""

    def __init__(self, func: Func, found: Softmax, loop: str, keys: int) -> None:
        largest = found.largest
        self.found = found
        self.loop = loop
        self.keys = keys
        self.names = names_for(found)
        self.made = allocs(func.body)
        self.is_cut = not surely_divides(keys, found.keys)
        self.by_key = {s.buffer for s in (*found.before, found.exps, found.weights)}
        self.row = tuple(general(i, largest, "") for i in largest.store.index)
        self.of_rows = self.made[largest.buffer].buffer.type
        self.sites = {s.buffer: _site(func, s) for s in found.stages}

    def blocked(self, nests: Sequence[Stmt]) -> Stmt:
        """The nests as a loop over blocks, with what is before and behind it."""
        count = canonical((self.found.keys + index(self.keys - 1)) // index(self.keys))
        step = For(self.loop, count, LoopKind.SERIAL, self.step(nests))
        return block(*self.begin(), step, self.end())

    def kept(self) -> tuple[Buffer, Buffer]:
        """The buffers around the loop that were not there."""
        return Buffer(self.names.largest, self.of_rows), Buffer(self.names.total, self.of_rows)

    def begin(self) -> tuple[Stmt, Stmt]:
        """What the carries start from."""
        stage, mixed = self.found.largest, self.found.mixed
        zero = const(0, DType.F32)
        start = block(self.store(self.names.largest, LOWEST), self.store(self.names.total, zero))
        sums = Store(mixed.buffer, mixed.store.index, zero)
        return self.nest(stage, start, BEGIN), self.nest(mixed, sums, BEGIN)

    def step(self, nests: Sequence[Stmt]) -> Stmt:
        """What a block of keys adds: its nests, and the carries brought up to date."""
        found = self.found
        stages = {s.buffer: s for s in found.stages}
        parts: list[Stmt] = []
        for nest in nests:
            stage = stages[min(written(nest))]
            if stage not in (found.base, found.factor):
                parts.append(self.narrowed(stage, nest))
            if stage is found.largest:
                parts.append(self.nest(stage, self.new_base(), NOW))
            if stage is found.total:
                parts.append(self.nest(found.largest, self.new_totals(), NEXT))
        parts.append(self.nest(found.mixed, self.taken_in(), NEXT))
        body = block(*parts)
        mixed = self.made[found.mixed.buffer].buffer
        inside = [replace(mixed, name=self.names.part)]
        inside += [
            Buffer(n, self.of_rows) for n in (self.names.base, self.names.over, self.names.scale)
        ]
        gone = (found.base, found.factor, found.mixed)
        inside += [self.shrunk(s.buffer) for s in found.stages if s not in gone]
        for buffer in inside:
            body = Alloc(buffer, Scope.LOCAL, body)
        return body

    def end(self) -> Stmt:
        """Rows whose scores are all -inf have no weights, which makes them NaN: 0 / 0.

        Guarded weights are 0 then.
        """
        stage = self.found.mixed
        where = stage.store.index
        total, mixed = self.at(self.names.total, stage), Load(stage.buffer, where, DType.F32)
        value = self.weight(total / total) * mixed
        if not surely_less(0, self.found.keys):
            value = select(equal(self.found.keys, ZERO), mixed, value)
        return self.nest(stage, Store(stage.buffer, where, value), END)

    def new_base(self) -> Stmt:
        """What is subtracted from scores: the largest so far, 0 as long as all are -inf."""
        stage, base = self.found.largest, self.names.base
        now = self.at(base, stage)
        return block(
            self.store(base, self.new_largest()),
            self.store(base, select(equal(now, LOWEST), const(0, DType.F32), now)),
        )

    def new_largest(self) -> Expr:
        """The largest score of the keys so far, those of the block included."""
        stage = self.found.largest
        return maximum(self.at(stage.buffer, stage), self.at(self.names.largest, stage))

    def new_totals(self) -> Stmt:
        """The total so far, how weights change, and the largest so far.

        The exponential of the largest is 1, so the total is at least 1 unless there is none.
        """
        stage, names = self.found.largest, self.names
        total, base, over, scale = (
            self.at(n, stage) for n in (names.total, names.base, names.over, names.scale)
        )
        change = unary(UnOp.EXP, self.at(names.largest, stage) - base)
        one = const(1, DType.F32)
        return block(
            self.store(names.scale, total * change),
            self.store(names.total, scale + self.at(self.found.total.buffer, stage)),
            self.store(names.over, one / maximum(total, one)),
            self.store(names.scale, self.weight(over * scale)),
            self.store(names.largest, self.new_largest()),
        )

    def taken_in(self) -> Store:
        """The sum of the block and what was summed up before, at its new weights."""
        stage = self.found.mixed
        where = stage.store.index
        before = Load(stage.buffer, where, DType.F32) * self.at(self.names.scale, stage)
        return Store(stage.buffer, where, Load(self.names.part, where, DType.F32) + before)

    def weight(self, value: Expr) -> Expr:
        """What weights of a row are multiplied by: 0 where guarded weights would be NaN."""
        if not self.found.guarded:
            return value
        return select(unary(UnOp.ISNAN, value), const(0, DType.F32), value)

    def at(self, name: str, stage: Stage) -> Load:
        """A number of the row of a stage."""
        return Load(name, tuple(specific(i, stage) for i in self.row), DType.F32)

    def store(self, name: str, value: Expr) -> Store:
        """Store a number of a row, in a nest like that of the largest score."""
        return Store(name, self.at(name, self.found.largest).index, value)

    def nest(self, stage: Stage, body: Stmt, tag: str) -> Stmt:
        """Loops and guards over the elements of a stage, its summands left out."""
        inner = {f.var for f in stage.inner}
        own = {f.var: f"{f.var}_{tag}" for f in stage.loops}
        for outer in reversed(self.sites[stage.buffer].around):
            if isinstance(outer, For) and outer.var in own:
                body = replace(outer, body=body)
            elif isinstance(outer, If) and not free_vars(outer.cond) & inner:
                body = If(outer.cond, body)
        return renamed(body, own, {})

    def shrunk(self, name: str) -> Buffer:
        """A buffer with elements for the keys of a block."""
        buffer = self.made[name].buffer
        if name not in self.by_key:
            return buffer
        shape = (*buffer.type.shape[:-1], index(self.keys))
        return replace(buffer, type=TensorType(shape, buffer.type.dtype))

    def narrowed(self, stage: Stage, nest: Stmt) -> Stmt:
        """A nest for the keys of one block."""
        found = self.found
        key = found.key(stage).var
        place = Var(self.loop) * index(self.keys) + Var(key)
        inside = place < found.keys
        is_guarded = self.is_cut and (stage in found.before or stage is found.mixed)

        def load(node: Expr) -> Expr:
            match node:
                case Load(name, where, dtype) if name in self.by_key:
                    return Load(name, (*where[:-1], Var(key)), dtype)
                case _:
                    return node

        def moved(expr: Expr) -> Expr:
            return rewrite_expr(substitute(expr, {key: place}), load)

        def visit(stmt: Stmt) -> Stmt:
            match stmt:
                case Store(name, where, value):
                    at = where if name in self.by_key else tuple(map(moved, where))
                    return Store(name, at, self.cut(stage, moved(self.value(stage, value)), inside))
                case If(cond, body):
                    return If(moved(cond), body)
                case For() if stmt.var == key:
                    body = If(inside, stmt.body) if is_guarded else stmt.body
                    return replace(stmt, extent=index(self.keys), body=body)
                case _:
                    return stmt

        result = rewrite(nest, visit)
        if stage is found.mixed:
            result = redirect(result, stage.buffer, self.names.part, lambda where: where)
        return result

    def value(self, stage: Stage, value: Expr) -> Expr:
        """What a nest stores, in terms of the carries."""
        found = self.found
        if stage is found.exps:
            old = (found.base or found.largest).buffer
            return _with(value, old, self.at(self.names.base, stage))
        if stage is found.weights:
            over = self.at(self.names.over, stage)
            if found.factor is not None:
                return _with(value, found.factor.buffer, over)
            return _as_product(value, over)
        return value

    def cut(self, stage: Stage, value: Expr, inside: Expr) -> Expr:
        """A value that keys behind the last one do not change."""
        if self.is_cut and stage is self.found.exps:
            return select(inside, value, const(0, value.dtype))
        if self.is_cut and stage is self.found.largest and isinstance(value, Binary):
            return replace(value, b=select(inside, value.b, LOWEST))
        return value

    def new_loops(self) -> tuple[str, ...]:
        """The names of the loops that were not there."""
        row, mixed = self.found.largest.names, self.found.mixed.names
        rows = (f"{v}_{tag}" for v in row for tag in (BEGIN, NOW, NEXT))
        return (self.loop, *rows, *(f"{v}_{tag}" for v in mixed for tag in (BEGIN, NEXT, END)))


def _site(func: Func, stage: Stage) -> Site:
    return next(s for s in sites(func.body) if s.store is stage.store)


def _with(value: Expr, buffer: str, new: Expr) -> Expr:
    """A value with another number for those of a buffer."""
    return rewrite_expr(value, lambda e: new if isinstance(e, Load) and e.buffer == buffer else e)


def _as_product(value: Expr, over: Expr) -> Expr:
    """A quotient as a product by the reciprocal of its divisor."""

    def visit(node: Expr) -> Expr:
        match node:
            case Binary(BinOp.DIV, a, _):
                return Binary(BinOp.MUL, a, over)
            case _:
                return node

    return rewrite_expr(value, visit)
