"""Which iterations depend on each other. Conservative: unsure means dependent.

Two iterations are independent when neither writes an element that the other reads or writes. To
prove it for a buffer, the values of the loops are read off the index by a mixed-radix argument: in
some dimension every access has the form `step * x + rest` with one step for all, and `rest` varies
over less than `step`; then equal elements have equal `x`. What is known about `x` is fixed, and
the argument repeats with the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd

from dlc.schedule.edit import aliases
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
    accumulation,
    allocs,
    loops,
)
from dlc.schedule.region import Interval, Span, interval
from dlc.te.affine import loop_bounds
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Expr, Var
from dlc.te.poly import Poly, from_poly
from dlc.te.simplify import (
    Bounds,
    canonical,
    simplify,
    surely_at_most,
    surely_equal,
    surely_less,
    to_poly,
)
from dlc.te.transform import free_vars, loads


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of an element; `op` is set for the write of an accumulation.

    The read that belongs to an accumulation is not listed: it reads what the write writes.
    `reach` are variables that stand for the rest of the region of an instruction's operand.
    """

    buffer: str
    index: tuple[Expr, ...]
    write: bool
    op: BinOp | None = None
    reach: tuple[tuple[str, Interval], ...] = ()


def why_not_independent(func: Func, loop: str, *, reductions: bool = False) -> str:
    """Why the iterations of `loop` may not run at the same time, or "".

    With `reductions`, a buffer that is only accumulated into, and read by nobody else, is safe
    where all iterations mean one element, or each another one: of lanes that meet in some elements,
    as at places that come from data, all but one would be lost.
    """
    nest = loops(func.body)[loop]
    if reason := _why_not(func, nest, (loop,), reductions=reductions):
        return reason
    own = {loop: bounds_in(nest)[loop]}
    for access in accesses(nest) if reductions else ():
        if access.op is None or not any(loop in free_vars(i) for i in access.index):
            continue
        if access.buffer not in allocs(nest.body) and not _distinct([access], (loop,), own):
            return f"some iterations may use one element of '{access.buffer}', which is written"
    return ""


def why_not_all_independent(func: Func, names: tuple[str, ...]) -> str:
    """Why iterations that differ in any of the loops may not run at the same time, or ""."""
    return _why_not(func, loops(func.body)[names[0]], names, reductions=False)


def why_not_permutable(func: Func, nest: For, order: tuple[str, ...]) -> str:
    """Why the iterations of the loops in `order`, all in `nest`, may not run in another order.

    A buffer that is only accumulated into, and read by nobody else, is safe.
    """
    return _why_not(func, nest, order, reductions=True)


def why_not_disjoint(func: Func, nest: Stmt, names: tuple[str, ...], buffer: str) -> str:
    """Why iterations of `nest` that differ in `names` may use one element of a buffer, or ""."""
    same = aliases(func)
    found = [a for a in accesses(nest) if same.get(a.buffer, a.buffer) == buffer]
    if not found or _distinct(found, names, bounds_in(nest)):
        return ""
    return f"different iterations may use one element of '{buffer}'"


def why_not_apart(
    func: Func, nest: Stmt, names: tuple[str, ...], buffer: str, box: tuple[Span, ...]
) -> str:
    """Why the boxes of a buffer in iterations that differ in `names` may overlap, or ""."""
    reach = tuple((f"#{d}", (ZERO, s.extent - ONE)) for d, s in enumerate(box))
    index = tuple(s.start + Var(name) for s, (name, _) in zip(box, reach, strict=True))
    if _distinct([Access(buffer, index, True, None, reach)], names, bounds_in(nest)):
        return ""
    return f"different iterations may use one element of '{buffer}'"


def bounds_in(stmt: Stmt) -> Bounds:
    """The ranges of the loop variables of a statement."""
    return loop_bounds({v: f.extent for v, f in loops(stmt).items()})


def _why_not(func: Func, nest: For, names: tuple[str, ...], *, reductions: bool) -> str:
    private = set(allocs(nest.body))
    same = aliases(func)
    groups: dict[str, list[Access]] = {}
    for access in accesses(nest):
        if access.buffer not in private:
            groups.setdefault(same.get(access.buffer, access.buffer), []).append(access)
    bounds = bounds_in(nest)
    for name, group in groups.items():
        ops = {a.op for a in group if a.write}
        if not ops:
            continue
        if reductions and len(ops) == 1 and None not in ops and all(a.write for a in group):
            continue
        if not _distinct(group, names, bounds):
            return f"different iterations may use one element of '{name}', which is written"
    return ""


def accesses(stmt: Stmt) -> Iterator[Access]:
    """Every read and write of a statement and its children."""
    match stmt:
        case Store(buffer, index, value):
            op = accumulation(stmt)
            yield Access(buffer, index, True, op)
            if op is not None and isinstance(value, Binary):
                value = value.b
            for expr in (*index, value):
                yield from _reads(expr)
        case If(cond, body):
            yield from _reads(cond)
            yield from accesses(body)
        case For(_, _, _, body) | Alloc(_, _, body):
            yield from accesses(body)
        case Block(stmts):
            for child in stmts:
                yield from accesses(child)
        case Invoke():
            yield from _operands(stmt)


def _reads(expr: Expr) -> Iterator[Access]:
    for load in loads(expr):
        yield Access(load.buffer, load.index, False)


def _operands(stmt: Invoke) -> Iterator[Access]:
    known = INSTRUCTIONS[stmt.instruction].func
    if known.body == Block(()):
        return  # what is only asked for is not read
    outputs = {b.name for b in known.outputs}
    for param, (buffer, index) in zip(known.params, stmt.operands, strict=True):
        for expr in index:
            yield from _reads(expr)
        reach: list[tuple[str, Interval]] = []
        whole = list(index)
        lead = len(index) - param.type.rank
        for d, size in enumerate(param.type.shape):
            name = f"#{d}"  # no loop has such a name
            reach.append((name, (ZERO, size - ONE)))
            whole[lead + d] = whole[lead + d] + Var(name)
        yield Access(buffer, tuple(whole), False, None, tuple(reach))
        if param.name in outputs:
            yield Access(buffer, tuple(whole), True, None, tuple(reach))


def _distinct(group: list[Access], names: tuple[str, ...], bounds: Bounds) -> bool:
    """Whether iterations that differ in `names` always use different elements."""
    names = tuple(v for v in names if not surely_at_most(bounds[v][1], 0))  # one iteration
    ranges = dict(bounds)
    for access in group:
        ranges |= dict(access.reach)
    if len({len(a.index) for a in group}) != 1:
        return False
    forms = list(dict.fromkeys((a.index, a.write) for a in group))
    reading = _Reading(
        [[to_poly(part, ranges) for part in index] for index, _ in forms],
        [write for _, write in forms],
        ranges,
    )
    moving = tuple(n for n in names if n not in ranges or not surely_equal(*ranges[n]))
    while not reading.knows(moving):
        if not reading.step():
            return False
    return True


class _Reading:
    """What can be read off the indices of all accesses to one buffer."""

    def __init__(self, forms: list[list[Poly]], writes: list[bool], bounds: Bounds) -> None:
        self.forms, self.writes, self.bounds = forms, writes, bounds
        self.known: list[Expr] = []
        self.moving = frozenset(bounds)

    def knows(self, names: tuple[str, ...]) -> bool:
        return all(Var(name) in self.known for name in names)

    def step(self) -> bool:
        """Read off one more atom; False when there is none."""
        for d, part in enumerate(self.forms[0]):
            for atoms, factor in part.items():
                if len(atoms) != 1 or atoms[0] in self.known or not self.varies(atoms[0]):
                    continue
                if any(form[d].get(atoms) != factor for form in self.forms):
                    continue
                if self.dominates(d, atoms, abs(factor)) or self.is_residue(d, atoms, factor):
                    self.learn(atoms[0])
                    return True
        return False

    def varies(self, atom: Expr) -> bool:
        return bool(free_vars(atom) & self.moving)

    def dominates(self, dim: int, atoms: tuple[Expr, ...], step: int) -> bool:
        """Whether the rest of the index varies over less than `step`."""
        edges: list[Interval] = []
        for form in self.forms:
            rest = {m: f for m, f in form[dim].items() if m != atoms}
            found = self.reach(rest)
            if found is None:
                return False
            edges.append(found)
        return self.differ_by_less(edges, step)

    def is_residue(self, dim: int, atoms: tuple[Expr, ...], factor: int) -> bool:
        """Whether the rest of the index steps by more than the atom's term varies.

        Then the term is what is left of the index modulo these steps: i of 2 * x + i and 2 * y + i,
        where i is 0 or 1. It may have a remainder itself, of less than one step of the atom: k of
        4 * x + 2 * i + k.
        """
        steps, edges = 0, list[Interval]()
        first = self.forms[0][dim]
        for form in self.forms:
            remainder: Poly = {}
            for term in (form[dim].keys() | first.keys()) - {atoms}:
                here, there = form[dim].get(term, 0), first.get(term, 0)
                if all(map(self.fixed, term)):
                    steps = gcd(steps, here - there)
                elif abs(here) < abs(factor):
                    remainder[term] = here
                else:
                    steps = gcd(steps, here)
            found = self.reach(remainder)
            if found is None:
                return False
            edges.append(found)
        own = self.reach({atoms: factor})
        if own is None or not self.differ_by_less(edges, abs(factor)):
            return False
        return self.differ_by_less(edges, steps - (own[1] - own[0]))

    def differ_by_less(self, edges: list[Interval], limit: Expr | int) -> bool:
        """Whether a write and another access differ by less in what is in these ranges."""
        pairs = product(range(len(edges)), repeat=2)
        return all(
            surely_less(edges[b][1] - edges[a][0], limit, self.bounds)
            for a, b in pairs
            if self.writes[a] or self.writes[b]
        )

    def reach(self, rest: Poly) -> Interval | None:
        """The range of a sum in which known atoms stand still."""
        if not rest:
            return ZERO, ZERO
        still = {m: f for m, f in rest.items() if all(self.fixed(a) for a in m)}
        moving = {m: f for m, f in rest.items() if m not in still}
        edges = interval(from_poly(moving), self.bounds, self.bounds)
        if edges is None:
            return None
        base = from_poly(still)
        return canonical(base + edges[0]), canonical(base + edges[1])

    def fixed(self, atom: Expr) -> bool:
        if atom in self.known:
            return True
        return not loads(atom) and self.all_known(atom)  # what it loads may change

    def all_known(self, atom: Expr) -> bool:
        moving = free_vars(atom) & self.moving
        return all(Var(name) in self.known for name in moving)

    def learn(self, atom: Expr) -> None:
        """Note an atom, and what follows: x // m and x % m together give x."""
        pending = [atom]
        while pending:
            self.known.append(pending.pop())
            for node in self.known:
                match node:
                    case Binary(BinOp.MOD, x, m) if x not in self.known and self.quotient(x, m):
                        if x not in pending:
                            pending.append(x)

    def quotient(self, x: Expr, m: Expr) -> bool:
        whole = simplify(x // m, self.bounds)
        if self.all_known(whole):
            return True
        return any(
            isinstance(k, Binary) and k.op is BinOp.FLOORDIV and surely_equal(whole, k)
            for k in self.known
        )
