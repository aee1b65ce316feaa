"""What every rule does first and last: inline what only moves elements, finish what is left."""

from __future__ import annotations

import logging
from collections.abc import Collection
from math import prod

from dlc.core.target import Target
from dlc.core.types import INDEX
from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import loops_around, written
from dlc.schedule.loop import (
    Alloc,
    Block,
    For,
    Func,
    LoopKind,
    Scope,
    Stmt,
    accumulation,
    allocs,
    innermost_loops,
    loops,
    walk,
)
from dlc.schedule.nest import Stage, is_cheap, readers, simple_index, stages, top_nests
from dlc.schedule.rules.borders import is_fill, part, share_borders, shared_loops
from dlc.schedule.rules.operands import is_unpacked_by_few, unpacks_for_few, widens_once
from dlc.schedule.rules.tables import tabulate_places
from dlc.schedule.rules.vectorize import part_line, vectorize
from dlc.schedule.trace import Trace
from dlc.schedule.work import operations
from dlc.te.affine import coefficients
from dlc.te.expr import ONE, Binary, BinOp, Const, Expr, Load, Select, Var
from dlc.te.simplify import surely_divides
from dlc.te.transform import free_vars, loads
from dlc.te.transform import walk as walk_expr

_LOG = logging.getLogger("dlc.schedule")

SHORT_WORK = 64
"""Instructions up to which finding out where a loop is costs more than a tenth of its body."""
MAX_COPIES = 512
"""Nodes of expressions that an inlined value may have in all its places."""
MIN_CHUNKS = 64
"""Iterations of a parallel loop that are enough for any thread to get its share."""
EVEN = 0.8
"""The share of their time for which cores have to have work, else a nest is parted."""
OPEN_EXTENT = 8
"""Iterations of a loop that are only known at run time, at least: two such loops are enough."""


def inline_moves(trace: Trace, kept: Collection[str] = (), *, keep_operands: bool = False) -> None:
    """Inline every intermediate of which each element is read once, or is no work to compute.

    `kept` stay: one load in a loop reads their elements many times. `keep_operands` leaves out
    operands of sums of products that each element would compute again, and those that put strided
    elements side by side, as the transpose of a matrix does.
    """
    while found := [
        n
        for n in allocs(trace.func.body)
        if n not in kept and _is_inlined(trace.func, n, keep_operands)
    ]:
        for name in found:  # what stands here may bring the readers of others into one place
            if _is_inlined(trace.func, name, keep_operands):
                trace.do("compute_inline", name)


def guard_products(trace: Trace) -> None:
    """Leave out products by tests before them, where places of known extents say which."""
    for stage in stages(trace.func):
        if not stage.is_reduction or accumulation(stage.store) is not BinOp.ADD:
            continue
        known = {f.var for f in (*stage.loops, *stage.inner) if isinstance(f.extent, Const)}
        match stage.value:
            case Select(cond, Binary(BinOp.MUL), Const(0)) if not loads(cond):
                if free_vars(cond) <= known:
                    trace.do("guard_sum", stage.buffer)


def _is_inlined(func: Func, name: str, keep_operands: bool) -> bool:
    made = [s for s in stages(func) if s.buffer == name]
    if len(made) != 1 or made[0].is_reduction:
        return False
    if not all(isinstance(i, Var | Const) for i in made[0].store.index):
        return False  # its loops have been split: it is written elsewhere than they count
    if keep_operands and _is_operand(func, made[0]):
        return False
    if is_unpacked_by_few(func, name):
        return True
    one_place = readers(func, name) <= 1 or _is_read_once(func, made[0])
    once = one_place and not _is_spread(func, name)
    return once or is_cheap(made[0].value)


def _is_spread(func: Func, buffer: str) -> bool:
    """Whether an element is read again and again, as the factor of a row is for each element."""
    for stage in stages(func):
        around = {f.var for f in (*stage.loops, *stage.inner) if f.extent != ONE}
        for load in loads(stage.value):
            if load.buffer == buffer:
                return bool(around - {v for i in load.index for v in free_vars(i)})
    return False


def _is_operand(func: Func, made: Stage) -> bool:
    """Whether a stage makes a factor of a sum of products that is better kept in memory."""
    for stage in stages(func):
        for factor in stage.factors or ():
            if isinstance(factor, Load) and factor.buffer == made.buffer and made.loops:
                lanes = tuple(map(Var, stage.names[-1:]))  # none, where the result is a scalar
                gathers = lanes and factor.index[-1:] == lanes and gathers_rows(made)
                if unpacks_for_few(func, stage, factor):
                    return False
                moves = isinstance(made.value, Load | Const) or widens_once(made, stage, factor)
                return bool(gathers) or not moves
    return False


def _is_read_once(func: Func, made: Stage) -> bool:
    """Whether all reads of a buffer are of one element in one store, which is computed once then.

    The text of the store grows with each read, so only small values pass.
    """
    places = {
        (stage.store, load.index)
        for stage in stages(func)
        for load in loads(stage.store.value)
        if load.buffer == made.buffer and stage.buffer != made.buffer
    }
    size = sum(1 for _ in walk_expr(made.value))
    return len(places) == 1 and size * readers(func, made.buffer) <= MAX_COPIES


def gathers_rows(made: Stage) -> bool:
    """Whether a stage moves elements that lie apart into rows."""
    if not isinstance(made.value, Load) or not made.value.index:
        return False
    along = coefficients(simple_index(made.value.index[-1], made.loops))
    return along is not None and along.get(made.names[-1]) != 1


def split_digits(
    trace: Trace,
    kept: Collection[str] = (),
    *,
    single: bool = False,
    target: Target | None = None,
) -> None:
    """Split loops read as digits (i // 64, i % 64): undo a merge of dimensions.

    Loops that compute `kept` stay whole. So do those of what is made of sums, unless it reads both
    digits: a quotient alone repeats elements, as an enlarged image does, and tiles are cut anyhow.
    Loops that are one digit are left alone, too, unless `single`: their quotient is 0. The vectors
    of a target hold whole repetitions of neighbours, which are loaded at once.
    """
    sums = {s.buffer for s in stages(trace.func) if s.is_reduction}
    for stage in [s for s in stages(trace.func) if not s.is_reduction and s.buffer not in kept]:
        of_sums = any(x.buffer in sums for x in loads(stage.value))
        for loop in stage.loops:
            digits = _digits(stage.value, loop.var)
            if not digits or (of_sums and len({op for op, _ in digits}) == 1):
                continue
            factor = digits[0][1]
            if trace.constant(loop.var) == factor and not single:
                continue
            if target is not None and _repeats_in_lanes(stage, loop.var, digits, target):
                continue
            extent = trace.extent(loop.var)
            if isinstance(extent, Const) or surely_divides(factor, extent):
                trace.split(loop.var, factor)


def _repeats_in_lanes(
    stage: Stage, var: str, digits: list[tuple[BinOp, int]], target: Target
) -> bool:
    """Whether vectors along a loop are whole repetitions of elements side by side."""
    lanes = target.lanes(stage.value.dtype.size_bytes)
    few = all(op is BinOp.FLOORDIV and n < lanes and lanes % n == 0 for op, n in digits)
    return few and var == stage.names[-1] and stage.store.index[-1:] == (Var(var),)


def _digits(value: Expr, var: str) -> list[tuple[BinOp, int]]:
    """The quotients and remainders of a loop's counter by constants: which of them, by what."""
    found: list[tuple[BinOp, int]] = []
    for node in walk_expr(value):
        match node:
            case Binary((BinOp.FLOORDIV | BinOp.MOD) as op, Var(name), Const(int(factor), _)):
                if name == var:
                    found.append((op, factor))
    return found


def loop_around(func: Func, name: str) -> str | None:
    """The loop directly outside of a loop, or None."""
    around = loops_around(func, name)
    return around[-2].var if len(around) > 1 else None


def unroll_factor(extent: Expr, limit: int) -> int:
    """The largest number of steps up to `limit` that divides an extent; 1 where it is symbolic."""
    if not isinstance(extent, Const):
        return 1
    return max((f for f in range(1, limit + 1) if extent.value % f == 0), default=1)


def finish(trace: Trace, target: Target) -> None:
    """Vectorize every nest that no rule touched; run what is worth it parallel."""
    for name in innermost_loops(trace.func.body):
        part_line(trace, name, target)
    tables = tabulate_places(trace)
    for name in [v for v in innermost_loops(trace.func.body) if v not in tables]:
        if refusal := trace.attempt(vectorize, name, target):
            _LOG.info("loop '%s' stays as it is: %s", name, refusal)  # slow is better than none
    _run_parallel(trace, target, tables, fills=False)
    if target.cores > 1:
        share_borders(trace)
    _run_parallel(trace, target, tables, fills=True)


def _run_parallel(trace: Trace, target: Target, serial: Collection[str], *, fills: bool) -> None:
    """Run nests parallel that are worth it, either those that only fill in constants or others.

    Those of `serial` loops are not.
    """
    for nest in top_nests(trace.func):
        if is_fill(nest) == fills and loops(nest).keys().isdisjoint(serial):
            _part_uneven(trace, nest, target)
    nests = [(top, nest) for nest in top_nests(trace.func) for top in _inside_of_one(nest)]
    for top, nest in nests:
        if is_fill(top) != fills or not loops(top).keys().isdisjoint(serial):
            continue
        if any(isinstance(s, For) and s.kind is LoopKind.PARALLEL for s in walk(top)):
            continue
        if _shared_registers(trace.func, top):
            continue
        work = operations(top)
        if work is not None and work < target.thread_operations:
            continue
        stop = frozenset(
            s.var for s in walk(top) if isinstance(s, For) and s.kind is not LoopKind.SERIAL
        )
        names = _element_loops(trace.func, top)
        inner = frozenset(v for v in loops(top) if v not in names)
        inner |= _scattering(trace.func, top)
        if top is not nest:  # what is allocated around it may be of one iteration at a time
            inner |= {v for v in loops(top) if why_not_independent(trace.func, v)}
        stop |= inner | _short_rows(trace, top, stop | inner)
        if refusal := trace.attempt(_run_outer, top, stop):
            _LOG.info("'%s' stays on one thread: %s", trace.func.name, refusal)


def _run_outer(trace: Trace, top: Stmt, stop: frozenset[str]) -> None:
    """Run the loops of a nest parallel down to one in `stop`, or to a part of a long row."""
    chain = _outer_loops(top, stop)
    if len(chain) > 1 and (length := _part_of_row(trace, chain)) > 1:
        _, part = trace.split(chain[-1].var, length)
        top, stop = trace.loop(chain[0].var), stop | {part}
    trace.parallel_outer(top, stop)


def _part_uneven(trace: Trace, top: Stmt, target: Target) -> None:
    """Part a nest where cores cannot share its outer loops evenly, and several nests are inside.

    A few heads of an attention are such loops, and whole tiles and what these leave such nests.
    """
    names, inner = shared_loops(top)
    count = prod(trace.constant(name) or 0 for name in names)
    work = operations(top)
    if not isinstance(inner, Block) or count < 2 or work is None or work < target.thread_operations:
        return
    if count >= EVEN * (-(-count // target.cores) * target.cores):
        return
    if refusal := part(trace, names):
        _LOG.info("'%s' shares few iterations: %s", trace.func.name, refusal)


def _part_of_row(trace: Trace, chain: list[For]) -> int:
    """Iterations of the innermost loop to run in order, where it is over little work; else 1.

    The others are too few to run parallel without it, and yet a fused loop would divide its counter
    in each iteration, as where all pixels of an image are one row and blocks of channels another.
    """
    *others, last = (trace.constant(f.var) for f in chain)
    work = operations(chain[-1].body)
    if last is None or work is None or work > SHORT_WORK:
        return 1
    count = prod(OPEN_EXTENT if n is None else n for n in others)
    if not 1 < count < MIN_CHUNKS:
        return 1
    return unroll_factor(Const(last, INDEX), last * count // MIN_CHUNKS)


def _shared_registers(func: Func, top: Stmt) -> bool:
    """Whether a nest writes registers that other nests read: they belong to one thread."""
    outside = {n: a for n, a in allocs(func.body).items() if n not in allocs(top)}
    return any(n in outside and outside[n].scope is Scope.REGISTER for n in written(top))


def _inside_of_one(top: Stmt) -> list[Stmt]:
    """What a loop of one iteration contains where that is several nests; else the nest itself.

    Memory is allocated for the nests inside of it; registers belong to one thread.
    """
    match top:
        case Block(stmts):
            return [part for stmt in stmts for part in _inside_of_one(stmt)]
        case Alloc(_, scope, body) if not scope.is_fixed:
            return _inside_of_one(body)
        case For(_, Const(1), LoopKind.SERIAL, body):
            parts = _inside_of_one(body)
            return parts if len(parts) > 1 else [top]
        case _:
            return [top]


def _short_rows(trace: Trace, top: Stmt, stop: frozenset[str]) -> frozenset[str]:
    """The innermost loops over little work, to run in order where enough others run parallel.

    A fused loop divides its counter to find where it is, which costs more than a few vectors.
    """
    chain = _outer_loops(top, stop)
    kept: set[str] = set()
    while chain:
        last = chain.pop()
        work, others = operations(last.body), [trace.constant(f.var) for f in chain]
        if work is None or work > SHORT_WORK:
            break
        if prod(OPEN_EXTENT if n is None else n for n in others) < MIN_CHUNKS:
            break
        kept.add(last.var)
    return frozenset(kept)


def _outer_loops(top: Stmt, stop: frozenset[str]) -> list[For]:
    """The loops of a nest that stand directly inside each other, down to one in `stop`."""
    chain: list[For] = []
    while isinstance(top, For) and top.var not in stop:
        chain.append(top)
        top = top.body
    return chain


def _element_loops(func: Func, top: Stmt) -> set[str]:
    """The loops of a nest that choose an element, not a summand."""
    inside = set(loops(top))
    return {v for s in stages(func) for v in s.names if v in inside}


def _scattering(func: Func, top: Stmt) -> frozenset[str]:
    """The loops of a nest whose iterations may store the same element, as data says."""
    if not any(s.is_scattered and set(s.names) & set(loops(top)) for s in stages(func)):
        return frozenset()
    serial = [s.var for s in loops(top).values() if s.kind is LoopKind.SERIAL]
    return frozenset(v for v in serial if why_not_independent(func, v))
