"""What the cost model sees: numbers that describe a scheduled loop nest.

They are taken from the nest and not from the knobs that made it, so that what is learned on one
shape, rule or model holds for another. Quantities that span orders of magnitude are logarithms.
The vector has one part for the whole function and one for each of its busiest stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import log2, prod

from dlc.core.target import Target
from dlc.core.types import INDEX
from dlc.schedule.asking import LINE_BYTES
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    Store,
    accumulation,
    allocs,
)
from dlc.schedule.loop import walk as walk_stmt
from dlc.te.affine import coefficients
from dlc.te.expr import Binary, BinOp, Cast, Expr, Select, Unary
from dlc.te.transform import loads, walk

BUSIEST = 3  # stores that are described one by one
_WHOLE = (
    "lanes", "cores", "l1", "l2", "registers", "stores", "loops", "vector_operations",
    "arithmetic", "special", "moves", "instructions", "largest_body", "local_bytes",
    "register_vectors", "register_excess", "parameter_bytes", "parallel_loops",
    "parallel_extent", "imbalance", "serial_share", "from_l2", "from_memory", "scalar_share",
)  # fmt: skip
_EACH = (
    "share", "iterations", "lanes", "written_out", "inner_trips", "parallel_extent", "add", "mul",
    "div", "minmax", "special", "integer", "select", "is_sum", "to_register", "guards", "streams",
    "contiguous", "broadcast", "gathered", "loads_per_operation", "l1_footprint", "l1_reuse",
    "from_l2", "l2_footprint", "from_memory",
)  # fmt: skip
NAMES = (*_WHOLE, *(f"{name}_{n}" for n in range(BUSIEST) for name in _EACH))
VERSION = 2  # one more where a feature, or a number of a tree of loops, is counted otherwise
_SPECIAL_COST = 12.0  # vector instructions of a polynomial, about


@dataclass(frozen=True, slots=True)
class _Site:
    """A statement with the loops around it, outermost first."""

    stmt: Store | Invoke
    around: tuple[For, ...]
    guards: int


@dataclass(slots=True)
class _Work:
    """What one store does, all iterations together."""

    operations: float  # vector operations
    scalar: float  # of them, those on one element
    serial: float  # of them, those outside of any parallel loop
    instructions: float  # written out in the code
    special: float
    arithmetic: float
    moves: float
    from_l2: float
    from_memory: float
    parallel: float
    features: list[float] = field(default_factory=list)


def extract_features(func: Func, target: Target, sizes: Mapping[str, int]) -> list[float]:
    """One number for each of `NAMES`."""
    extents = _Extents(sizes)
    types = {b.name: (b.type.dtype.size_bytes, b.type.shape) for b in func.params}
    inside = allocs(func.body)
    types |= {n: (a.buffer.type.dtype.size_bytes, a.buffer.type.shape) for n, a in inside.items()}
    registers = {n for n, a in inside.items() if a.scope is Scope.REGISTER}
    describe = _Describer(extents, types, registers, target)
    works = [describe.work(site) for site in _sites(func.body, (), 0)]
    works.sort(key=lambda w: -w.operations)
    whole = _describe_whole(func, target, works, describe)
    total = sum(w.operations for w in works) or 1.0
    each = []
    for work in works[:BUSIEST]:
        each += [work.operations / total, *work.features]
    each += [0.0] * (len(_EACH) * BUSIEST - len(each))
    return [round(x, 4) for x in (*whole, *each)]


def _describe_whole(
    func: Func, target: Target, works: list[_Work], describe: _Describer
) -> list[float]:
    total = sum(w.operations for w in works) or 1.0
    parallel = [w.parallel for w in works if w.parallel > 1]
    most = max(parallel, default=1.0)
    kinds = [s.kind for s in _loops(func.body)]
    vectors = describe.register_vectors(func)
    available = target.vector_registers
    local = sum(
        describe.bytes_of(name) for name, a in allocs(func.body).items() if a.scope is Scope.LOCAL
    )
    rounds = -(-most // target.cores)
    return [
        log2(target.lanes(4)), float(target.cores), _log(target.l1_bytes), _log(target.l2_bytes),
        float(available), float(len(works)), float(len(kinds)), _log(total),
        _log(sum(w.arithmetic for w in works)), _log(sum(w.special for w in works)),
        _log(sum(w.moves for w in works)), _log(sum(w.instructions for w in works)),
        _log(max((w.instructions for w in works), default=0.0)), _log(local),
        float(vectors), float(max(0, vectors - available)),
        _log(sum(describe.bytes_of(b.name) for b in func.params)),
        float(kinds.count(LoopKind.PARALLEL)), _log(most), rounds * target.cores / most,
        sum(w.serial for w in works) / total, _log(sum(w.from_l2 for w in works)),
        _log(sum(w.from_memory for w in works)), sum(w.scalar for w in works) / total,
    ]  # fmt: skip


class _Extents:
    """Extents of loops as numbers, at the sizes of the task."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.known: dict[Expr, int] = {}

    def __call__(self, size: Expr) -> int:
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = max(0, evaluate_size(size, self.sizes))
        return found


class _Describer:
    def __init__(
        self,
        extents: _Extents,
        types: Mapping[str, tuple[int, tuple[Expr, ...]]],
        registers: set[str],
        target: Target,
    ) -> None:
        self.extents, self.types, self.registers = extents, types, registers
        self.target = target
        self._steps: dict[Expr, Mapping[str, int] | None] = {}

    def bytes_of(self, buffer: str) -> int:
        """Bytes of a whole buffer."""
        width, shape = self.types[buffer]
        return width * prod(self.extents(s) for s in shape)

    def register_vectors(self, func: Func) -> int:
        """Vectors that accumulators take at the same time, at most."""
        return max(
            (-(-self.bytes_of(name) * 8 // self.target.vector_bits) for name in self.registers),
            default=0,
        )

    def work(self, site: _Site) -> _Work:
        """Count what a store does."""
        stmt = site.stmt
        trips = [self.extents(f.extent) for f in site.around]
        iterations = float(prod(trips))
        lanes = prod(
            n for n, f in zip(trips, site.around, strict=True) if f.kind is LoopKind.VECTOR
        )
        out = prod(n for n, f in zip(trips, site.around, strict=True) if f.kind is LoopKind.UNROLL)
        out *= prod(count for f in site.around for note, count in f.notes if note == "unroll")
        width = max(1, self.target.lanes(4))
        vectors = -(-lanes // width)
        steps = iterations / max(1, lanes) * vectors
        parallel = prod(
            n for n, f in zip(trips, site.around, strict=True) if f.kind is LoopKind.PARALLEL
        )
        serial = [n for n, f in zip(trips, site.around, strict=True) if f.kind is LoopKind.SERIAL]
        ops = operations(stmt)
        arithmetic = sum(ops[k] for k in ("add", "mul", "minmax", "integer", "select"))
        arithmetic += 4 * ops["div"] + _SPECIAL_COST * ops["special"]
        accesses = self._accesses(stmt)
        streams = [name for name, _ in accesses if name not in self.registers]
        kinds = self._access_kinds(site, accesses)
        per_step = max(1.0, arithmetic + len(streams))
        levels = self._traffic(site, trips, accesses)
        work = _Work(
            operations=steps * per_step,
            scalar=steps * per_step if lanes == 1 else 0.0,
            serial=steps * per_step if parallel == 1 else 0.0,
            instructions=out * vectors * per_step,
            special=steps * ops["special"],
            arithmetic=steps * arithmetic,
            moves=steps * len(streams),
            from_l2=levels[2],
            from_memory=levels[4],
            parallel=float(parallel),
        )
        work.features = [
            _log(iterations), _log(lanes), _log(out), _log(serial[-1] if serial else 1),
            _log(parallel), *(ops[k] for k in ("add", "mul", "div", "minmax", "special")),
            ops["integer"], ops["select"], float(_is_sum(stmt)),
            float(isinstance(stmt, Store) and stmt.buffer in self.registers),
            float(site.guards), float(len(streams)), *kinds,
            self._loads_per_operation(site, trips, accesses, out, vectors, arithmetic),
            _log(levels[0]), _log(levels[1]), _log(levels[2]), _log(levels[3]), _log(levels[4]),
        ]  # fmt: skip
        return work

    def _accesses(self, stmt: Store | Invoke) -> list[tuple[str, tuple[Expr, ...]]]:
        """Buffers and indices a statement touches, equal ones once."""
        found: dict[tuple[str, tuple[Expr, ...]], None] = {}
        if isinstance(stmt, Invoke):
            found |= dict.fromkeys(stmt.operands)
        else:
            found[stmt.buffer, stmt.index] = None
            found |= dict.fromkeys((x.buffer, x.index) for x in loads(stmt.value))
        return list(found)

    def _step(self, index: Expr) -> Mapping[str, int] | None:
        if index not in self._steps:
            self._steps[index] = coefficients(index)
        return self._steps[index]

    def _access_kinds(
        self, site: _Site, accesses: list[tuple[str, tuple[Expr, ...]]]
    ) -> tuple[float, float, float]:
        """How many accesses are contiguous along the lanes, the same for all, or neither."""
        lane = next((f.var for f in reversed(site.around) if f.kind is LoopKind.VECTOR), None)
        counts = [0.0, 0.0, 0.0]
        for name, index in accesses:
            if name in self.registers:
                continue
            steps = [self._step(i) for i in index]
            if lane is None or all(s is not None and not s.get(lane) for s in steps):
                counts[1] += 1
            elif all(s is not None and not s.get(lane) for s in steps[:-1]) and (
                (steps[-1] or {}).get(lane) == 1
            ):
                counts[0] += 1
            else:
                counts[2] += 1
        return counts[0], counts[1], counts[2]

    def _loads_per_operation(
        self,
        site: _Site,
        trips: list[int],
        accesses: list[tuple[str, tuple[Expr, ...]]],
        out: int,
        vectors: int,
        arithmetic: float,
    ) -> float:
        """Distinct vectors loaded per arithmetic instruction of the part that is written out."""
        body = [
            (f.var, n)
            for f, n in zip(site.around, trips, strict=True)
            if f.kind in (LoopKind.UNROLL, LoopKind.VECTOR)
        ]
        width = max(1, self.target.lanes(4))
        distinct = 0.0
        for name, index in accesses:
            if name in self.registers:
                continue
            used = [self._step(i) or {} for i in index]
            count = prod(n for v, n in body if any(s.get(v) for s in used))
            lane = any(s.get(f.var) for s in used for f in site.around if f.kind is LoopKind.VECTOR)
            distinct += count / width if lane and count >= width else count
        notes = prod(count for f in site.around for note, count in f.notes if note == "unroll")
        return distinct / max(1.0, arithmetic * out * vectors / max(1, notes))

    def _traffic(
        self, site: _Site, trips: list[int], accesses: list[tuple[str, tuple[Expr, ...]]]
    ) -> tuple[float, float, float, float, float]:
        """Bytes that fit L1 and how often they are used, bytes from L2, that fit L2, from memory.

        The largest inner part of the nest whose bytes fit a cache moves them once each time it
        runs.
        """
        memory = [(n, i) for n, i in accesses if n not in self.registers]
        footprints = [0.0] * (len(trips) + 1)
        for name, index in memory:
            for depth, size in enumerate(self._footprints(name, index, site.around, trips)):
                footprints[depth] += size
        result: list[float] = []
        for size in (self.target.l1_bytes, self.target.l2_bytes):
            depth = next(d for d, b in enumerate(footprints) if b <= size or d == len(trips))
            runs = float(prod(trips[:depth]))
            accessed = float(prod(trips[depth:]))
            result += [footprints[depth], accessed, runs * footprints[depth]]
        return result[0], result[1], result[2], result[3], result[5]

    def _footprints(
        self, name: str, index: tuple[Expr, ...], around: tuple[For, ...], trips: list[int]
    ) -> list[float]:
        """Bytes of a buffer that the loops from each depth on touch, in whole cache lines."""
        width, shape = self.types[name]
        counts, lasts = [1.0] * (len(trips) + 1), [1] * (len(trips) + 1)
        for position, size in zip(index, shape[len(shape) - len(index) :], strict=True):
            lasts = self._reaches(position, size, around, trips)
            counts = [count * last for count, last in zip(counts, lasts, strict=True)]
        return [
            count / last * -(-last * width // LINE_BYTES) * LINE_BYTES
            for count, last in zip(counts, lasts, strict=True)
        ]

    def _reaches(
        self, position: Expr, size: Expr, around: tuple[For, ...], trips: list[int]
    ) -> list[int]:
        """How many elements of a dimension the loops from each depth on touch."""
        most, steps = max(1, self.extents(size)), self._step(position)
        if steps is None:
            return [most] * len(trips) + [1]
        found = [1]
        for loop, count in zip(reversed(around), reversed(trips), strict=True):
            found.append(found[-1] + abs(steps.get(loop.var, 0)) * (count - 1))
        return [min(max(1, reach), most) for reach in reversed(found)]


def operations(stmt: Store | Invoke) -> dict[str, float]:
    """Arithmetic of one execution by kind."""
    ops = dict.fromkeys(("add", "mul", "div", "minmax", "special", "integer", "select"), 0.0)
    if isinstance(stmt, Invoke):
        return ops | {"add": 1.0, "mul": 1.0}
    for node in walk(stmt.value):
        match node:
            case Binary(_, a, _) | Unary(_, a) if a.dtype is INDEX:
                pass  # addresses are computed beside
            case Select() | Cast():
                ops["select"] += 1
            case Unary(op, a):
                kind = "special" if op.value.isalpha() and op.value not in ("abs", "not") else "add"
                ops[kind if a.dtype.is_float else "integer"] += 1
            case Binary(op, a, _) if not a.dtype.is_float:
                ops["integer"] += 1
            case Binary(op, _, _):
                ops[_KINDS.get(op, "add")] += 1
            case _:
                pass
    return ops


_KINDS = {
    BinOp.MUL: "mul",
    BinOp.DIV: "div",
    BinOp.MIN: "minmax",
    BinOp.MAX: "minmax",
    BinOp.POW: "special",
}


def _is_sum(stmt: Store | Invoke) -> bool:
    return isinstance(stmt, Invoke) or accumulation(stmt) is not None


def _sites(stmt: Stmt, around: tuple[For, ...], guards: int) -> Iterator[_Site]:
    match stmt:
        case Store() | Invoke():
            yield _Site(stmt, around, guards)
        case For(body=body):
            yield from _sites(body, (*around, stmt), guards)
        case If(body=body):
            yield from _sites(body, around, guards + 1)
        case Alloc(body=body):
            yield from _sites(body, around, guards)
        case Block(stmts):
            for child in stmts:
                yield from _sites(child, around, guards)


def _loops(stmt: Stmt) -> Iterator[For]:
    return (s for s in walk_stmt(stmt) if isinstance(s, For))


def _log(value: float) -> float:
    return log2(1.0 + value)
