"""How many tile registers hold left operands of products, and how many right ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dlc.schedule.loop import Alloc, Block, For, If, Invoke, LoopKind, Stmt, walk
from dlc.te.expr import Const, Expr, index
from dlc.te.simplify import canonical
from dlc.te.transform import free_vars, substitute

Place = tuple[Expr, ...]


def lefts(stmt: Stmt, registers: int) -> int:
    """Of the registers for operands, those for left ones: the choice with the fewest loads."""
    half = (registers + 1) // 2
    read = _Products()
    products = max((list(read.of(body, {})) for body in _bodies(stmt)), key=len, default=[])
    options = sorted(range(1, registers), key=lambda n: abs(n - half))
    return min(options, key=lambda n: _count_loads(products, n, registers - n), default=half)


def _bodies(stmt: Stmt) -> Iterator[Stmt]:
    """What is written out in loops that run in order."""
    yield stmt
    for node in walk(stmt):
        if isinstance(node, For) and node.kind is not LoopKind.UNROLL:
            yield node.body


class _Products:
    """Reads the operands of products; an index is put together once for each of its values."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...]], Expr] = {}

    def of(self, stmt: Stmt, fixed: Mapping[str, int]) -> Iterator[tuple[Place, Place]]:
        """In order, loops that are written out included; `fixed` are those around."""
        match stmt:
            case For(var, Const(count), LoopKind.UNROLL, body):
                for n in range(int(count)):
                    yield from self.of(body, {**fixed, var: n})
            case If(_, body) | Alloc(_, _, body):
                yield from self.of(body, fixed)
            case Block(stmts):
                for child in stmts:
                    yield from self.of(child, fixed)
            case Invoke(name, ((_, a), (_, b), _)) if name.startswith("tile_dot"):
                yield tuple(self._at(i, fixed) for i in a), tuple(self._at(i, fixed) for i in b)
            case _:
                pass

    def _at(self, position: Expr, fixed: Mapping[str, int]) -> Expr:
        """An index where some loops stand."""
        names = [v for v in fixed if v in free_vars(position)]
        key = id(position), tuple(fixed[v] for v in names)
        if key not in self._known:
            env = {v: index(fixed[v]) for v in names}
            self._known[key] = canonical(substitute(position, env))
        return self._known[key]


def _count_loads(products: list[tuple[Place, Place]], lefts: int, rights: int) -> int:
    """Loads of operands where each register keeps what was last used."""
    count = 0
    held: tuple[list[Place], list[Place]] = ([], [])
    for product in products:
        for known, place, room in zip(held, product, (lefts, rights), strict=True):
            if place in known:
                known.remove(place)
            else:
                count += 1
                del known[: len(known) - room + 1]
            known.append(place)
    return count
