"""Finding and replacing parts of a function: what several primitives do on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from dlc.schedule.instruction import INSTRUCTIONS
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Invoke,
    Stmt,
    Store,
    allocs,
    block,
    exprs,
    loops,
    map_bodies,
    map_exprs,
    rewrite,
    substitute,
    touches,
    walk,
)
from dlc.te.expr import Expr, Load, Var
from dlc.te.transform import loads, rename_buffers
from dlc.te.transform import rewrite as rewrite_expr


def neighbours(stmt: Stmt, target: Stmt) -> tuple[Stmt, ...]:
    """The statements that a statement is one of, in order; none where it stands alone."""
    found: list[tuple[Stmt, ...]] = []

    def visit(node: Stmt) -> Stmt:
        if isinstance(node, Block) and any(s is target for s in node.stmts):
            found.append(node.stmts)
        return node

    rewrite(stmt, visit)
    return found[0] if found else ()


def swap_loop(func: Func, loop: str, change: Callable[[For], Stmt]) -> Func:
    """Replace one loop."""
    return replace(func, body=_swap_loop(func.body, loop, change))


def _swap_loop(stmt: Stmt, loop: str, change: Callable[[For], Stmt]) -> Stmt:
    if loop not in loops(stmt):
        return stmt
    if isinstance(stmt, For) and stmt.var == loop:
        return change(stmt)
    return map_bodies(stmt, lambda part: _swap_loop(part, loop, change))


def swap_alloc(func: Func, buffer: str, change: Callable[[Alloc], Stmt]) -> Func:
    """Replace one allocation, its body included."""

    def visit(stmt: Stmt) -> Stmt:
        if buffer not in allocs(stmt):
            return stmt
        if isinstance(stmt, Alloc) and stmt.buffer.name == buffer:
            return change(stmt)
        return map_bodies(stmt, visit)

    return replace(func, body=visit(func.body))


def life(func: Func, buffer: str) -> Stmt:
    """Where a buffer can be used: the body of its allocation, or all of the function."""
    found = allocs(func.body).get(buffer)
    return func.body if found is None else found.body


def swap_life(func: Func, buffer: str, change: Callable[[Stmt], Stmt]) -> Func:
    """Replace what `life` gives."""
    if buffer in allocs(func.body):
        return swap_alloc(func, buffer, lambda a: replace(a, body=change(a.body)))
    return replace(func, body=change(func.body))


def sequence(stmt: Stmt) -> list[Stmt]:
    """The statements that run one after the other, allocations opened."""
    match stmt:
        case Alloc(_, _, body):
            return sequence(body)
        case Block(stmts):
            return [s for child in stmts for s in sequence(child)]
        case _:
            return [stmt]


def map_sequence(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """Apply `change` to each statement of `sequence(stmt)`; an empty block removes one."""
    match stmt:
        case Alloc(_, _, body):
            return replace(stmt, body=map_sequence(body, change))
        case Block(stmts):
            return block(*(map_sequence(s, change) for s in stmts))
        case _:
            return change(stmt)


def insert_before(stmt: Stmt, mark: Stmt, wrap: Callable[[Stmt], Stmt]) -> Stmt:
    """Hand `mark` (one of `sequence(stmt)`) and all that follows it in its block to `wrap`."""
    match stmt:
        case Alloc(_, _, body) if stmt is not mark:
            return replace(stmt, body=insert_before(body, mark, wrap))
        case Block(stmts):
            at = next(i for i, s in enumerate(stmts) if any(x is mark for x in sequence(s)))
            if stmts[at] is mark:
                return block(*stmts[:at], wrap(block(*stmts[at:])))
            inner = insert_before(stmts[at], mark, wrap)
            return block(*stmts[:at], inner, *stmts[at + 1 :])
        case _:
            return wrap(stmt)


def insert_at_read(body: Stmt, buffer: str, place: Callable[[Stmt], Stmt]) -> Stmt:
    """Hand what runs from the first read of a buffer on to `place`, inside of guards around all."""
    if isinstance(body, If) and not any(x.buffer == buffer for x in loads(body.cond)):
        return replace(body, body=insert_at_read(body.body, buffer, place))

    def reads(stmt: Stmt) -> bool:
        return any(x.buffer == buffer for e in exprs(stmt) for x in loads(e))

    return insert_before(body, next(s for s in sequence(body) if reads(s)), place)


@dataclass(frozen=True, slots=True)
class Site:
    """A store and what is around it inside some statement, outermost first."""

    store: Store
    around: tuple[For | If, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the store."""
        return tuple(s for s in self.around if isinstance(s, For))


def told_apart(stmt: Stmt) -> Stmt:
    """The same statement, each store an object of its own: places can be known by their store."""
    stores = [id(node) for node in walk(stmt) if isinstance(node, Store)]
    if len(set(stores)) == len(stores):
        return stmt
    return rewrite(stmt, lambda node: replace(node) if isinstance(node, Store) else node)


def sites(stmt: Stmt, around: tuple[For | If, ...] = ()) -> Iterator[Site]:
    """Every store of a statement with the loops and guards around it."""
    match stmt:
        case Store():
            yield Site(stmt, around)
        case For() | If():
            yield from sites(stmt.body, (*around, stmt))
        case Alloc(_, _, body):
            yield from sites(body, around)
        case Block(stmts):
            for child in stmts:
                yield from sites(child, around)
        case Invoke():
            pass


def own_reads(store: Store) -> int:
    """How often a store reads the very element that it writes."""
    return sum((x.buffer, x.index) == (store.buffer, store.index) for x in loads(store.value))


def loops_around(func: Func, loop: str) -> tuple[For, ...]:
    """The loops around a loop, outermost first, itself last."""
    return _path(func.body, loop) or ()


def _path(stmt: Stmt, loop: str) -> tuple[For, ...] | None:
    if loop not in loops(stmt):
        return None
    match stmt:
        case For(var, _, _, body):
            if var == loop:
                return (stmt,)
            inner = _path(body, loop)
            return None if inner is None else (stmt, *inner)
        case If(_, body) | Alloc(_, _, body):
            return _path(body, loop)
        case Block(stmts):
            found = (_path(child, loop) for child in stmts)
            return next((p for p in found if p is not None), None)
        case _:
            return None


def guards_around(stmt: Stmt, loop: str) -> list[If]:
    """The guards on the way from a statement to a loop in it."""
    return [s for s in walk(stmt) if isinstance(s, If) and _path(s.body, loop) is not None]


def written(stmt: Stmt) -> set[str]:
    """The buffers a statement may write."""
    names: set[str] = set()
    for node in walk(stmt):
        if isinstance(node, Store):
            names.add(node.buffer)
        elif isinstance(node, Invoke):
            names |= {buffer for buffer, _ in outputs(node)}
    return names


def outputs(stmt: Invoke) -> tuple[tuple[str, tuple[Expr, ...]], ...]:
    """The operands that an instruction writes: buffers, and where their regions start."""
    return stmt.operands[len(INSTRUCTIONS[stmt.instruction].func.inputs) :]


def read(stmt: Stmt) -> set[str]:
    """The buffers a statement may read; every operand of an instruction counts."""
    names = {x.buffer for e in exprs(stmt) for x in loads(e)}
    for node in walk(stmt):
        if isinstance(node, Invoke):
            names |= {buffer for buffer, _ in node.operands}
    return names


def touched_by_invoke(stmt: Stmt, buffer: str) -> bool:
    """Whether an instruction has the buffer as an operand."""
    return any(
        isinstance(s, Invoke) and any(b == buffer for b, _ in s.operands) for s in walk(stmt)
    )


def aliases(func: Func) -> dict[str, str]:
    """Names of one memory under one name: the output of each in-place pair for its input."""
    return {source: out for out, source in func.in_place}


def renamed(stmt: Stmt, loops: Mapping[str, str], buffers: Mapping[str, str]) -> Stmt:
    """A copy of a statement with other names for its loops and buffers."""
    env: dict[str, Expr] = {old: Var(new) for old, new in loops.items()}

    def visit(node: Stmt) -> Stmt:
        match node:
            case For() if node.var in loops:
                return replace(node, var=loops[node.var])
            case Alloc() if node.buffer.name in buffers:
                return replace(node, buffer=replace(node.buffer, name=buffers[node.buffer.name]))
            case Store() if node.buffer in buffers:
                return replace(node, buffer=buffers[node.buffer])
            case Invoke():
                operands = tuple((buffers.get(b, b), index) for b, index in node.operands)
                return replace(node, operands=operands)
            case _:
                return node

    stmt = rewrite(substitute(stmt, env), visit)
    return map_exprs(stmt, lambda e: rename_buffers(e, buffers))


def redirect(
    stmt: Stmt, buffer: str, name: str, at: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]
) -> Stmt:
    """Let every access to `buffer` go to `name`, its index changed by `at`."""

    def load(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer == buffer:
            return Load(name, at(node.index), node.dtype)
        return node

    def change(expr: Expr) -> Expr:
        reads = any(x.buffer == buffer for x in loads(expr))
        return rewrite_expr(expr, load) if reads else expr

    def visit(node: Stmt) -> Stmt:
        if isinstance(node, Store) and node.buffer == buffer:
            return Store(name, at(node.index), node.value)
        return node

    return rewrite(map_exprs(stmt, change, where=lambda s: buffer in touches(s)), visit)
