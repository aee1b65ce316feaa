"""Looking at loop nests: which statement computes which buffer, under which loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlc.core.remember import per_object
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    LoopKind,
    Scope,
    Stmt,
    Store,
    accumulation,
    touches,
)
from dlc.schedule.loop import walk as walk_stmt
from dlc.te.affine import loop_bounds
from dlc.te.expr import Binary, BinOp, Expr, Unary, UnOp
from dlc.te.simplify import simplify
from dlc.te.transform import free_vars, loads, walk


@dataclass(frozen=True, slots=True)
class Stage:
    """One store and the loops around it, outermost first, from where its buffer is allocated on.

    For a reduction it is the accumulating store: `start` is the store of the initial value, and
    `inner` the loops that only the accumulation has.
    """

    buffer: str
    store: Store
    loops: tuple[For, ...]
    inner: tuple[For, ...]
    start: Store | None

    @property
    def names(self) -> list[str]:
        """The loops over the elements of the buffer."""
        return [f.var for f in self.loops]

    @property
    def is_reduction(self) -> bool:
        """Whether the stage accumulates."""
        return self.start is not None

    @property
    def is_scattered(self) -> bool:
        """Whether data says which elements are stored."""
        return _from_data(self.store)

    @property
    def value(self) -> Expr:
        """What is stored, or added up."""
        if self.start is not None:
            assert isinstance(self.store.value, Binary)
            return self.store.value.b
        return self.store.value

    def reads(self, buffer: str) -> bool:
        """Whether an element is made of elements of a buffer; a sum's own do not count."""
        return any(load.buffer == buffer for load in loads(self.value))

    @property
    def factors(self) -> tuple[Expr, Expr] | None:
        """The two factors where the stage is a sum of products."""
        value = self.value
        if accumulation(self.store) is BinOp.ADD and isinstance(value, Binary):
            return (value.a, value.b) if value.op is BinOp.MUL else None
        return None


def stages(func: Func) -> list[Stage]:
    """The stages of a function in order. A buffer stored in several nests has several stages."""
    return list(_stages(func.body))


def stages_of(func: Func, buffer: str) -> list[Stage]:
    """Those of `stages` that compute one buffer."""
    return _from_stores(_stores(func.body, buffer))


@per_object
def _stages(body: Stmt) -> tuple[Stage, ...]:
    return tuple(_from_stores(_stores(body)))


def _from_stores(found: list[tuple[Store, tuple[For, ...]]]) -> list[Stage]:
    result: list[Stage] = []
    starts: dict[str, tuple[Store, tuple[For, ...]]] = {}
    begins = _begins([store for store, _ in found])
    for (store, around), is_start in zip(found, begins, strict=True):
        is_total = accumulation(store) is not None and not _from_data(store)
        if is_total and store.buffer in starts:
            start, outer = starts.pop(store.buffer)
            ids = {id(f) for f in outer}
            shared = tuple(f for f in around if id(f) in ids)
            inner = tuple(f for f in around if id(f) not in ids)
            if len(shared) < len(outer):  # after decompose_reduction: told apart by the index
                shared, inner = _by_index(store, around)
            result.append(Stage(store.buffer, store, shared, inner, start))
        elif is_total:
            shared, inner = _by_index(store, around)
            result.append(Stage(store.buffer, store, shared, inner, None))
        elif is_start:
            starts[store.buffer] = (store, around)
        else:
            result.append(Stage(store.buffer, store, around, (), None))
    return result


def is_scheduled(func: Func) -> bool:
    """Whether a function says how it runs: it holds registers, vectors or threads already."""
    return any(
        (isinstance(s, For) and s.kind is not LoopKind.SERIAL)
        or (isinstance(s, Alloc) and s.scope is Scope.REGISTER)
        for s in walk_stmt(func.body)
    )


def readers(func: Func, buffer: str) -> int:
    """How many loads of a buffer there are, accumulations of itself left out."""
    count = 0
    for store, _ in _stores(func.body):
        own = accumulation(store) is not None and store.buffer == buffer
        count += sum(1 for load in loads(store.value) if load.buffer == buffer) - own
        count += sum(1 for i in store.index for load in loads(i) if load.buffer == buffer)
    return count


def is_cheap(value: Expr) -> bool:
    """Whether computing a value again costs no more than loading it: moves and constants."""
    return not any(
        isinstance(e, Binary | Unary) and (e.dtype.is_float or e.op is UnOp.LRINT)
        for e in walk(value)
    )


def simple_index(index: Expr, around: Sequence[For]) -> Expr:
    """An index as the loops' bounds allow to write it."""
    return simplify(index, loop_bounds({f.var: f.extent for f in around}))


def top_nests(func: Func) -> list[Stmt]:
    """The statements of a function inside of its outermost allocations."""
    body = func.body
    while isinstance(body, Alloc):
        body = body.body
    return list(body.stmts) if isinstance(body, Block) else [body]


def _stores(body: Stmt, only: str = "") -> list[tuple[Store, tuple[For, ...]]]:
    """Every store in order, and the loops around it from where its buffer is allocated on.

    With `only`, the stores to one buffer.
    """
    found: list[tuple[Store, tuple[For, ...]]] = []
    outside: dict[str, int] = {}  # how many loops are around an allocation

    def visit(stmt: Stmt, around: tuple[For, ...]) -> None:
        if only and only not in touches(stmt):
            return
        match stmt:
            case Store() if only and stmt.buffer != only:
                pass
            case Store():
                found.append((stmt, around[outside.get(stmt.buffer, 0) :]))
            case For(_, _, _, body, _):
                visit(body, (*around, stmt))
            case Alloc(buffer, _, body):
                outside[buffer.name] = len(around)
                visit(body, around)
            case If(_, body):
                visit(body, around)
            case Block(stmts):
                for child in stmts:
                    visit(child, around)
            case _:
                pass

    visit(body, ())
    return found


def _by_index(store: Store, around: tuple[For, ...]) -> tuple[tuple[For, ...], tuple[For, ...]]:
    used = frozenset(name for i in store.index for name in free_vars(i))
    kept = tuple(f for f in around if f.var in used)
    return kept, tuple(f for f in around if f.var not in used)


def _from_data(store: Store) -> bool:
    return any(loads(i) for i in store.index)


def _begins(stores: list[Store]) -> list[bool]:
    """Whether each store gives an accumulator its first value: it is accumulated into next."""
    following: dict[str, Store] = {}
    found: list[bool] = []
    for store in reversed(stores):
        later = following.get(store.buffer)
        total = later is not None and accumulation(later) is not None
        found.append(later is not None and total and not _from_data(later))
        following[store.buffer] = store
    return found[::-1]
