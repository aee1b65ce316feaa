"""Give the sizes that a kernel computes with names of their own.

Deep in a model a height is `(((h + 1) // 2 + 1) // 2 + 1) // 2`. A kernel does not care: inside of
it the height is `s0`, and its caller passes the value. Schedules, proofs and code get simpler, and
layers that differ only in how their sizes came about become one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dlc.schedule.loop import Alloc, Buffer, For, Func, Stmt, map_exprs, rewrite
from dlc.schedule.lower import used_names
from dlc.schedule.verify import verify_func
from dlc.te.expr import Binary, BinOp, Const, Expr, Var, children
from dlc.te.simplify import canonical, simplify, surely_at_most
from dlc.te.transform import free_vars, walk
from dlc.te.transform import rewrite as rewrite_expr
from dlc.te.types import TensorType


def abstract_sizes(func: Func) -> tuple[Func, tuple[Expr, ...]]:
    """Replace what sizes are computed from by size variables; also the value to pass for each size.

    A quotient, a minimum or a maximum is named where dimensions read a size variable through it
    alone. Where they read it through more and more of them, the innermost that they share is named:
    a strided convolution knows that its result has `(s0 + 1) // 2` rows. A dimension that is still
    computed, or may be negative, is named as a whole if no other dimension reads its variables.

    A size is never negative, and proofs rely on it: what may be negative gets no name. A dimension
    is not negative, whatever it is, so of `h // 10` and `h // 10 - 1` the latter is the size.

    Before:
        def f(h: size, A: f32[(h + 1) // 2], *, B: f32[(h + 1) // 2]):
            for i in range((h + 1) // 2):
                B[i] = A[i]

    After:
        def f(s0: size, A: f32[s0], *, B: f32[s0]):
            for i in range(s0):
                B[i] = A[i]
    """
    passed: dict[str, Expr] = {s: Var(s) for s in func.sizes}
    func, strided = _strided(func)
    passed |= strided
    for find in (_atoms, _whole):
        found = find(_open_dims(func))
        elsewhere = _used(_replaced(func, _named(func, found)))  # what the body reads besides
        kept = {
            part: least
            for part, least in found.items()
            if (_is_quotient(part) and not least) or free_vars(part).isdisjoint(elsewhere)
        }
        named = _named(func, kept)
        for name, (part, least) in named.items():
            passed[name] = rewrite_expr(
                canonical(part + least), lambda e: passed[e.name] if isinstance(e, Var) else e
            )
        func = _replaced(func, named)
    used = _used(func)
    func = replace(func, sizes=tuple(s for s in func.sizes if s in used))
    verify_func(func, when="after abstract_sizes")
    return func, tuple(passed[s] for s in func.sizes)


def _strided(func: Func) -> tuple[Func, dict[str, Expr]]:
    """Name how often windows fit in lines without a border, and what they leave of a line.

    They never fit less than 0 times, which nobody can tell from `(w + 1) // 2 - 1`, so loops over
    them were clamped. With the windows s0, a line has `s0 * 2 + s1 + 1`.
    """
    passed: dict[str, Expr] = {}
    for dim in _open_dims(func):
        if surely_at_most(0, dim) or (window := _windows(dim, _open_dims(func))) is None:
            continue
        line, moved, step, less = window
        atom = canonical((line + moved) // step)
        count, rest = _fresh(func, 2)
        passed[count] = canonical(atom - less)
        passed[rest] = canonical(line + moved - atom * step)
        counted = replace_sizes(func, {atom: Var(count) + less})
        whole = (Var(count) + less) * step - moved + Var(rest)
        func = replace_sizes(counted, {line: whole})
        func = replace(func, sizes=(*func.sizes, count, rest))
    return func, passed


def _windows(dim: Expr, dims: Sequence[Expr]) -> tuple[Var, int, int, int] | None:
    """The v, a, d, b of `(v + a) // d - b`, where other dimensions read v as it is.

    Where a is more than d * b, it is never negative, and needs no name.
    """
    for atom in filter(_is_quotient, walk(dim)):
        assert isinstance(atom, Binary)
        less, size = canonical(atom - dim), next(iter(free_vars(atom)), None)
        if size is None or not isinstance(less, Const) or not isinstance(atom.b, Const):
            return None
        line, step, moved = Var(size), int(atom.b.value), canonical(atom.a - Var(size))
        if not isinstance(moved, Const):
            return None
        around = {chain for d in dims for name, chain in _chains(d, ()) if name == size}
        return (line, int(moved.value), step, int(less.value)) if around == {(), (atom,)} else None
    return None


def _open_dims(func: Func) -> tuple[Expr, ...]:
    return tuple({s: None for b in func.params for s in b.type.shape if free_vars(s)})


def _used(func: Func) -> set[str]:
    return used_names(func.body, func.params)


def _named(func: Func, parts: Mapping[Expr, int]) -> dict[str, tuple[Expr, int]]:
    """Parts of sizes, and what is added to each, by names that a function has not yet."""
    return dict(zip(_fresh(func, len(parts)), parts.items(), strict=True))


def _replaced(func: Func, named: Mapping[str, tuple[Expr, int]]) -> Func:
    """A function of one more size for each of these parts."""
    env = {part: Var(name) - least for name, (part, least) in named.items()}
    return replace(replace_sizes(func, env), sizes=(*func.sizes, *named)) if named else func


def _whole(dims: Sequence[Expr]) -> dict[Expr, int]:
    """Dimensions that are computed, or may be negative, and have variables of their own."""
    return {
        dim: 0
        for dim in dims
        if any(map(_is_atom, walk(dim))) or not surely_at_most(0, dim)
        if all(free_vars(dim).isdisjoint(free_vars(d)) for d in dims if d != dim)
    }


def _atoms(dims: Sequence[Expr]) -> dict[Expr, int]:
    """What dimensions are computed from, and what is added to it."""
    chains: dict[str, set[tuple[Expr, ...]]] = {}
    for dim in dims:
        for name, chain in _chains(dim, ()):
            chains.setdefault(name, set()).add(chain)
    shared = {name: _shared(Var(name), found) for name, found in chains.items()}
    atoms = {e: None for s in dims for e in walk(s) if _is_atom(e) or isinstance(e, Var)}
    found = {e: _least(e, dims) for e in atoms if _is_shared(e, shared)}
    return {e: least for e, least in found.items() if least is not None}


def _chains(expr: Expr, around: tuple[Expr, ...]) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """For each occurrence of a size variable, the atoms around it, the innermost first."""
    if isinstance(expr, Var):
        yield expr.name, around
    for child in children(expr):
        yield from _chains(child, (expr, *around) if _is_atom(expr) else around)


def _shared(variable: Expr, chains: set[tuple[Expr, ...]]) -> set[Expr]:
    """The atoms through which all occurrences of a variable are read."""
    if len({len(chain) for chain in chains}) == 1:
        return {chain[-1] if chain else variable for chain in chains}
    inner = [links[0] for links in zip(*chains, strict=False) if len(set(links)) == 1]
    return {inner[-1] if inner else variable}


def _is_shared(expr: Expr, shared: Mapping[str, set[Expr]]) -> bool:
    names = free_vars(expr)
    return bool(names) and all(expr in shared[name] for name in names)


def _least(atom: Expr, dims: Sequence[Expr]) -> int | None:
    """What is added to an atom in the least dimension that is it and a number; None is no name."""
    rests = [canonical(dim - atom) for dim in dims]
    numbers = [int(rest.value) for rest in rests if isinstance(rest, Const)]
    least = min([*numbers, 0])
    if least < 0 or 0 in numbers or surely_at_most(0, atom):
        return None if isinstance(atom, Var) and not least else least
    return None


def _is_quotient(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op is BinOp.FLOORDIV


def _is_atom(expr: Expr) -> bool:
    """Whether sizes are computed by more than sums and products."""
    return isinstance(expr, Binary) and expr.op in (BinOp.FLOORDIV, BinOp.MIN, BinOp.MAX)


def _fresh(func: Func, count: int) -> list[str]:
    taken = set(func.sizes) | {b.name for b in func.params}
    names: list[str] = []
    number = 0
    while len(names) < count:
        if f"s{number}" not in taken:
            names.append(f"s{number}")
        number += 1
    return names


def replace_sizes(func: Func, env: Mapping[Expr, Expr]) -> Func:
    """Replace parts of all expressions of a function; `sizes` stays as it is."""
    only_names = all(isinstance(e, Var) for e in env.values())
    names = frozenset(name for part in env for name in free_vars(part))

    def expr(whole: Expr) -> Expr:
        if free_vars(whole).isdisjoint(names):
            return whole
        new = rewrite_expr(whole, lambda e: env.get(e, e))
        return new if only_names or new is whole else simplify(new)

    def buffer(old: Buffer) -> Buffer:
        return Buffer(old.name, TensorType(tuple(map(expr, old.type.shape)), old.type.dtype))

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case For():
                return replace(stmt, extent=expr(stmt.extent))
            case Alloc():
                return replace(stmt, buffer=buffer(stmt.buffer))
            case _:
                return stmt

    return replace(
        func,
        inputs=tuple(map(buffer, func.inputs)),
        outputs=tuple(map(buffer, func.outputs)),
        body=rewrite(map_exprs(func.body, expr), visit),
    )
