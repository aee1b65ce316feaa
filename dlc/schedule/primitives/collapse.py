"""collapse: loops over neighbouring dimensions that nobody tells apart become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from dlc.schedule.dependence import accesses
from dlc.schedule.edit import aliases, redirect
from dlc.schedule.loop import (
    Alloc,
    Buffer,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Stmt,
    Store,
    allocs,
    loops,
    rewrite,
    substitute,
    walk,
)
from dlc.schedule.primitive import primitive, refuse
from dlc.te.expr import ONE, ZERO, Const, Expr, Load, Var
from dlc.te.simplify import canonical, surely_at_most, surely_equal
from dlc.te.transform import free_vars
from dlc.te.transform import rewrite as rewrite_expr
from dlc.te.types import TensorType

Index = tuple[Expr, ...]
Dim = tuple[str, int]  # a dimension of a buffer
_LOADED = ""  # the name of no loop and no size


@dataclass(frozen=True, slots=True)
class _Place:
    """An index of an access, with those beside it."""

    at: Dim
    before: Expr | None
    index: Expr
    after: Expr | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is made one: loops with the loop in them, dimensions with the next; and what goes."""

    inner: Mapping[str, str]
    joined: frozenset[Dim]
    dropped: frozenset[Dim]

    def runs(self, buffer: Buffer) -> Iterator[list[int]]:
        """The dimensions of a buffer that stay, each with those that it is joined with."""
        run: list[int] = []
        for d in range(buffer.type.rank):
            if (buffer.name, d) in self.dropped:
                continue
            run.append(d)
            if (buffer.name, d) not in self.joined:
                yield run
                run = []


@primitive
def collapse(func: Func) -> Func:
    """Run nested loops as one, and store dimensions as one, where all accesses agree.

    Two loops become one where the inner one is all that the outer one does, and wherever one of
    them is read it is, with the other, the index of two neighbouring dimensions. Dimensions of one
    element go, and loops of one iteration. Buffers, those of the caller too, are the same memory
    under another shape.

    Before:
        def f(A: f32[3, 4, 1], s: f32[1], *, B: f32[3, 4, 1]):
            for i in range(3):
                for j in range(4):
                    B[i, j, 0] = A[i, j, 0] * s[0]

    Call:
        collapse()

    After:
        def f(A: f32[12], s: f32[()], *, B: f32[12]):
            for i in range(12):
                B[i] = A[i] * s[()]

    Raises:
        ScheduleError: no loops can be made one, and no dimension goes; the function has
            instructions.
    """
    if any(isinstance(s, Invoke) for s in walk(func.body)):
        refuse("collapse", func, "the function has instructions")
    buffers = [*func.inputs, *func.outputs, *(a.buffer for a in allocs(func.body).values())]
    body = rewrite(func.body, _once)
    plan = _plan(func, body, buffers)
    if body is func.body and not (plan.inner or plan.dropped):
        refuse("collapse", func, "all loops and dimensions are told apart")
    for buffer in buffers:
        runs = list(plan.runs(buffer))
        sizes = buffer.type.shape

        def at(index: Index, runs: list[list[int]] = runs, sizes: Index = sizes) -> Index:
            return tuple(_joined([index[d] for d in run], [sizes[d] for d in run]) for run in runs)

        if len(runs) < len(sizes):
            body = redirect(body, buffer.name, buffer.name, at)

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case For(var, extent, kind, For() as body) if var in plan.inner:
                return For(var, canonical(extent * body.extent), kind, body.body)
            case Alloc(buffer, _, _):
                return replace(stmt, buffer=_reshaped(buffer, plan))
            case _:
                return stmt

    return replace(
        func,
        inputs=tuple(_reshaped(b, plan) for b in func.inputs),
        outputs=tuple(_reshaped(b, plan) for b in func.outputs),
        body=rewrite(body, visit),
    )


def _once(stmt: Stmt) -> Stmt:
    """The body of a loop of one iteration, unless memory is allocated in it: that is its own."""
    match stmt:
        case For(var, extent, LoopKind.SERIAL, body) if extent == ONE and not allocs(body):
            return substitute(body, {var: ZERO})
        case _:
            return stmt


def _joined(index: list[Expr], sizes: list[Expr]) -> Expr:
    """One index for dimensions that are one: the outermost loop, which counts for all."""
    if len(index) == 1 or isinstance(index[0], Var):
        return index[0]
    total: Expr = ZERO
    for i, size in zip(index, sizes, strict=True):
        assert isinstance(i, Const), "others are told apart"
        total = total * size + i
    return canonical(total)


def _reshaped(buffer: Buffer, plan: _Plan) -> Buffer:
    runs, shape = list(plan.runs(buffer)), buffer.type.shape
    sizes = tuple(
        shape[run[0]] if len(run) == 1 else canonical(prod((shape[d] for d in run), start=ONE))
        for run in runs
    )
    return replace(buffer, type=TensorType(sizes, buffer.type.dtype))


def _plan(func: Func, body: Stmt, buffers: list[Buffer]) -> _Plan:
    """As many loops and dimensions as can be one: those that an access tells apart are left out."""
    found = [(access.buffer, access.index) for access in accesses(body)]
    shapes = {b.name: b.type.shape for b in buffers}
    held = {(n, d) for n, index in found for d, i in enumerate(index) if i != ZERO}
    dropped = _alike(func, {
        (n, d) for n, shape in shapes.items() for d, size in enumerate(shape) if size == ONE
    } - held)  # fmt: skip
    bare = _bare(body)
    inner = {
        f.var: f.body.var
        for f in loops(body).values()
        if isinstance(f.body, For) and {f.kind, f.body.kind} == {LoopKind.SERIAL}
        and all(surely_at_most(0, loop.extent) for loop in (f, f.body))
        and not {f.var, f.body.var} & bare
    }  # fmt: skip
    extents = {f.var: f.extent for f in loops(body).values()}
    rest = {
        name: [d for d in range(len(shape)) if (name, d) not in dropped]
        for name, shape in shapes.items()
    }
    joined = {(n, d): shapes[n][e] for n, dims in rest.items() for d, e in pairwise(dims)}
    places = [place for name, index in found for place in _places(name, index, rest[name])]
    while True:
        apart, alone = _told_apart(places, inner, joined, extents)
        kept = _alike(func, set(joined) - apart)
        if len(kept) == len(joined) and not alone:
            return _Plan(inner, frozenset(joined), frozenset(dropped))
        joined = {at: size for at, size in joined.items() if at in kept}
        inner = {a: b for a, b in inner.items() if a not in alone}


def _places(name: str, index: Index, dims: list[int]) -> Iterator[_Place]:
    """Each index of an access between its neighbours, without the dimensions that go."""
    kept = [None, *(index[d] for d in dims), None]
    for d, before, i, after in zip(dims, kept, kept[1:], kept[2:], strict=False):
        assert i is not None
        yield _Place((name, d), before, i, after)


def _told_apart(
    places: list[_Place],
    inner: Mapping[str, str],
    joined: Mapping[Dim, Expr],
    extents: Mapping[str, Expr],
) -> tuple[set[Dim], set[str]]:
    """The dimensions and the outer loops that some access tells from the next ones.

    `joined` has the size of the next dimension.
    """
    outer = {b: a for a, b in inner.items()}
    apart: set[Dim] = set()
    alone: set[str] = set()
    for place in places:
        at, loop = place.at, place.index.name if isinstance(place.index, Var) else ""
        is_pair = loop in inner and place.after == Var(inner[loop])
        if at in joined:
            counts_all = is_pair and surely_equal(extents[inner[loop]], joined[at])
            is_element = isinstance(place.index, Const) and isinstance(place.after, Const)
            if not (counts_all or is_element):
                apart.add(at)
        if loop in inner and not (is_pair and at in joined):
            alone.add(loop)
        if loop in outer and place.before != Var(outer[loop]):
            alone.add(outer[loop])
    return apart, alone


def _alike(func: Func, dims: set[Dim]) -> set[Dim]:
    """Those dimensions that an output and the input it may take the place of have in common."""
    partner = dict(func.in_place) | aliases(func)
    return {(n, d) for n, d in dims if n not in partner or (partner[n], d) in dims}


def _bare(stmt: Stmt) -> set[str]:
    """The variables that are read elsewhere than as an index by themselves."""
    found: set[str] = set()
    for access in accesses(stmt):
        others = (i for i in access.index if not isinstance(i, Var))
        found |= {v for i in others for v in free_vars(rewrite_expr(i, _without_load))}
    for node in walk(stmt):
        if isinstance(node, Store | If):
            value = node.value if isinstance(node, Store) else node.cond
            found |= free_vars(rewrite_expr(value, _without_load))
    for loop in loops(stmt).values():
        found |= free_vars(loop.extent)
    return found - {_LOADED}


def _without_load(expr: Expr) -> Expr:
    """An expression in which a variable stands for what is loaded: of a number, too much folds."""
    return Var(_LOADED, expr.dtype) if isinstance(expr, Load) else expr
