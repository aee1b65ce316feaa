"""How many tile registers hold left operands of products, and how many right ones."""

from __future__ import annotations

from collections.abc import Iterator

from dlc.codegen.llvm.flatten import Flat, Flattener
from dlc.schedule.loop import Alloc, Block, For, If, Invoke, LoopKind, Stmt, walk
from dlc.te.expr import Const

Place = tuple[Flat, ...]


def lefts(stmt: Stmt, registers: int) -> int:
    """Of the registers for operands, those for left ones: the choice with the fewest loads."""
    half = (registers + 1) // 2
    read = _Products()
    products = max((list(read.of(body)) for body in _bodies(stmt)), key=len, default=[])
    options = sorted(range(1, registers), key=lambda n: abs(n - half))
    return min(options, key=lambda n: _count_loads(products, n, registers - n), default=half)


def _bodies(stmt: Stmt) -> Iterator[Stmt]:
    """What is written out in loops that run in order."""
    yield stmt
    for node in walk(stmt):
        if isinstance(node, For) and node.kind is not LoopKind.UNROLL:
            yield node.body


class _Products(Flattener):
    """Reads the operands of products."""

    def of(self, stmt: Stmt) -> Iterator[tuple[Place, Place]]:
        """In order, loops that are written out included."""
        match stmt:
            case For(var, Const(count), LoopKind.UNROLL, body):
                for n in range(int(count)):
                    self.fixed[var] = n
                    yield from self.of(body)
                self.fixed.pop(var, None)
            case If(_, body) | Alloc(_, _, body):
                yield from self.of(body)
            case Block(stmts):
                for child in stmts:
                    yield from self.of(child)
            case Invoke(name, ((_, a), (_, b), _)) if name.startswith("tile_dot"):
                yield tuple([self.flat(i) for i in a]), tuple([self.flat(i) for i in b])
            case _:
                pass


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
