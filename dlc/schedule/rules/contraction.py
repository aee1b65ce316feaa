"""The parts of a sum of products: which loop of the result walks along which operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from dlc.core.types import DType
from dlc.schedule.edit import sites
from dlc.schedule.instruction import (
    ADDED_APART,
    DOT_2XBF16_F32,
    DOT_4XI8_I32,
    Instruction,
)
from dlc.schedule.loop import For, Func, If, allocs
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.schedule.rules.operands import is_few, is_unpacked, unwidened
from dlc.schedule.rules.planes import is_product
from dlc.schedule.simplify import conjuncts
from dlc.te.affine import coefficients, step_bytes
from dlc.te.expr import ONE, Binary, BinOp, Cast, Const, Expr, Load, Var, index
from dlc.te.simplify import simplify
from dlc.te.transform import free_vars, loads, substitute
from dlc.te.types import TensorType, const_size

MIN_LENGTH = 16  # of sums along vectors


@dataclass(frozen=True, slots=True)
class Contraction:
    """The parts of a sum of products, by loops of the nest that writes the result."""

    sum: str  # the buffer that accumulates
    result: str  # the buffer written from it
    lane: str  # the loop along the innermost dimension of the result
    rows: tuple[str, ...]  # loops that only the row operand depends on, outermost first
    columns: tuple[str, ...]  # loops that only the column operand depends on, without `lane`
    batch: tuple[str, ...]  # the other loops
    packed: str | None  # the column operand to bring together for the rows of a column tile
    column_bytes: int | None  # size of the column operand, None where it is symbolic
    column_line: int | None = None  # bytes of its innermost dimension, None as above
    row_bytes: int | None = None  # size of the row operand, None where it is symbolic
    row_stride: int | None = None  # bytes from one row to the next, None where it is not known
    within: str | None = None  # the loop that holds all stages, where they are part of a nest
    breaks: tuple[int, ...] | None = None  # where the last row leaves out others; None: none does
    at_once: Instruction | None = None  # adds the innermost summands, side by side in both
    choices: int | None = None  # of how many stacked columns data chooses those of `batch`
    parts: str | None = None  # the buffer of sums of blocks, one of which each summand scales


def find_contraction(func: Func) -> Contraction | None:
    """The contraction in a function whose moves are inlined, or None."""
    found = stages(func)
    sums = [s for s in found if s.is_reduction]
    if len(sums) != 1 or sums[0].factors is None:
        return None
    readers = [s for s in found if not s.is_reduction and s.reads(sums[0].buffer)]
    return analyse(func, sums[0], readers[0]) if len(readers) == 1 else None


def analyse(
    func: Func, total: Stage, result: Stage, factors: tuple[Expr, Expr] | None = None
) -> Contraction | None:
    """Sort the loops of the result by which operand depends on them.

    `factors` are the operands, where they are other parts of a summand than its own two factors.
    """
    factors = factors or total.factors
    reads = {load.index for load in loads(result.value) if load.buffer == total.buffer}
    if len(reads) != 1 or factors is None or not result.loops:
        return None
    position = [simple_index(i, result.loops) for i in reads.pop()]
    axes = [i.name if isinstance(i, Var) else "" for i in total.store.index]  # "" of one element
    chosen = [f.var for f in total.loops if f.extent != ONE or f.var in axes]
    if len(axes) != len(position) or [a for a in axes if a] != chosen:
        return None
    depends: dict[str, tuple[bool, bool]] = {}
    first, second = (free_vars(f) for f in factors)
    for loop in result.loops:
        used = {a for a, p in zip(axes, position, strict=True) if loop.var in free_vars(p)}
        depends[loop.var] = (bool(used & first), bool(used & second))
    lane = result.names[-1]
    step = coefficients(position[-1])
    inner = coefficients(simple_index(result.store.index[-1], result.loops))
    if not step or step.get(lane) != 1 or not inner or inner.get(lane) != 1:
        return None
    if not step.keys() <= depends.keys():  # lanes that a size shifts lie in no register
        return None
    if any(lane in free_vars(p) for p in position[:-1]) or depends[lane][0] == depends[lane][1]:
        return None
    column = factors[1] if depends[lane][1] else factors[0]
    if depends[lane][0]:
        depends = {v: (b, a) for v, (a, b) in depends.items()}
    others = [v for v in result.names if v != lane]
    pairs = added_at_once(total) is not None or is_product(total)
    packed = _needs_packing(func, column if pairs else unwidened(column), axes[-1])
    rows = [f.extent for f in result.loops if depends[f.var] == (True, False) and f.var != lane]
    if packed is not None and is_few(rows) and _runs_along(func, column, total):
        return None
    row = factors[0] if column is factors[1] else factors[1]
    if _is_narrow(result.loops[-1], total) and _runs_along(func, row, total):
        return None
    walked = tuple(v for v in others if depends[v] == (True, False))
    along = [a for a, p in zip(axes, position, strict=True) if a and walked[-1:] == (str(p),)]
    return Contraction(
        total.buffer,
        result.buffer,
        lane,
        walked,
        _beside_last([v for v in others if depends[v] == (False, True)], position),
        tuple(v for v in others if depends[v][0] == depends[v][1]),
        packed,
        bytes_of(func, column),
        _line(func, column),
        bytes_of(func, row),
        _stride(func, row, along[0]) if along else None,
        breaks=_breaks(func, total, along[0] if along else None),
        at_once=added_at_once(total),
        choices=_choices(func, column),
    )


def column_factor(total: Stage) -> Expr | None:
    """The factor of a product that varies along the innermost loop of its sum, if one does."""
    lane = total.names[-1] if total.names else ""
    return next((f for f in total.factors or () if lane in free_vars(f)), None)


def _breaks(func: Func, total: Stage, axis: str | None) -> tuple[int, ...] | None:
    """Where along an axis of a sum others are left out than before; None where all are summands."""
    site = next(s for s in sites(func.body) if s.store == total.store)
    conds = [c for s in site.around if isinstance(s, If) for c in conjuncts(s.cond)]
    if not conds:
        return None
    known = [c for c in conds if axis in free_vars(c)]
    read = {v for c in known for v in free_vars(c)}
    around = {f.var: f.extent for f in (*total.loops, *total.inner) if f.var in read}
    if axis is None or not known or not all(isinstance(e, Const) for e in around.values()):
        return ()
    places = range(const_size(around.pop(axis)))
    steps = product(*(range(const_size(e)) for e in around.values()))
    taps = [dict(zip(around, map(index, step), strict=True)) for step in steps]

    def tests(place: int) -> list[Expr]:
        at = {axis: index(place)}
        return [simplify(substitute(c, at | tap)) for c in known for tap in taps]

    return tuple(n for n in places[1:] if tests(n) != tests(n - 1))


def _beside_last(columns: list[str], position: Sequence[Expr]) -> tuple[str, ...]:
    """Loops over columns, the last one from one sum to the next where there is such a loop.

    A tile holds what lies between its columns, too: of phases of a stride, which are as many
    blocks apart as an image has, that were all blocks in between.
    """
    steps = [coefficients(p) or {} for p in position]
    beside = [v for v in columns if any(s.get(v) == 1 for s in steps)]
    return tuple(sorted(columns, key=lambda v: v in beside[-1:]))


def added_at_once(total: Stage) -> Instruction | None:
    """What adds the products of the innermost summands, neighbours in both operands, or None.

    Sums for tiles of a matrix engine are of another kind: their rows are brought together.
    """
    if total.factors is None or is_product(total) or not total.inner:
        return None
    each = total.inner[-1]
    for instruction in (DOT_2XBF16_F32, *ADDED_APART, DOT_4XI8_I32):
        *operands, sums = (p.type for p in instruction.func.params)
        if each.extent == operands[0].shape[0] and all(
            _is_neighbour(factor, each.var, operand.dtype, sums.dtype)
            for factor, operand in zip(total.factors, operands, strict=True)
        ):
            return instruction
    return None


def _is_neighbour(factor: Expr, each: str, dtype: DType, wide: DType) -> bool:
    match factor:
        case Cast(to, Load(_, (*outer, last), kind)) if kind is dtype and to is wide:
            steps = coefficients(last)
            beside = steps is not None and steps.get(each) == 1
            return beside and not any(each in free_vars(i) for i in outer)
        case _:
            return False


def shared_terms(total: Stage) -> int:
    """How many neighbours among the terms of a sum share a factor, as a scale of blocks; or 0."""
    if total.factors is None:
        return 0
    names = [f.var for f in total.inner]
    shared = 0
    for factor in _multiplied(total.value):
        used = [n for n, v in enumerate(names) if v in free_vars(factor)]
        extents = [f.extent for f in total.inner[used[-1] + 1 :]] if used and loads(factor) else []
        if all(isinstance(e, Const) for e in extents) and extents:
            shared = max(shared, prod(const_size(e) for e in extents))
    return shared if shared > 1 else 0


def _multiplied(value: Expr) -> list[Expr]:
    """The factors of a product, and of products among them."""
    if isinstance(value, Binary) and value.op is BinOp.MUL:
        return [*_multiplied(value.a), *_multiplied(value.b)]
    return [value]


def _needs_packing(func: Func, column: Expr, axis: str) -> str | None:
    """The operand that is an intermediate, or whose elements along `axis` lie apart; else None."""
    for load in loads(column):
        if _is_moved(func, load.buffer) or is_unpacked(func, load.buffer):
            return load.buffer
        if not load.index or axis not in {v for i in load.index for v in free_vars(i)}:
            continue
        last = coefficients(load.index[-1])
        beside = last is not None and last.get(axis) == 1
        strided = not beside or any(axis in free_vars(i) for i in load.index[:-1])
        if strided and not _is_packed(load, axis):
            return load.buffer if isinstance(column, Load) else None
    return None


def _is_moved(func: Func, buffer: str) -> bool:
    """Whether a buffer is an intermediate that one nest fills by moving elements."""
    made = [s for s in stages(func) if s.buffer == buffer]
    return len(made) == 1 and not made[0].is_reduction and isinstance(made[0].value, Load)


def _is_narrow(lane: For, total: Stage) -> bool:
    """Whether there is one column, and sums are long enough to be vectors themselves."""
    if lane.extent != ONE or not total.inner:
        return False
    length = total.inner[-1].extent
    return not isinstance(length, Const) or length.value >= MIN_LENGTH


def _runs_along(func: Func, column: Expr, total: Stage) -> bool:
    """Whether the summands of an operand lie side by side, at least where it was moved from."""
    given = {b.name for b in func.inputs}
    summed = Var(total.inner[-1].var) if total.inner else None
    return all(
        _is_moved(func, x.buffer) or (x.buffer in given and bool(x.index) and x.index[-1] == summed)
        for x in loads(column)
    )


def _is_packed(load: Load, axis: str) -> bool:
    """Whether the operand is stored in blocks along `axis`: w[j // 16, k, j % 16]."""
    return str(load.index[-1]).startswith(f"{axis} % ")


def _stride(func: Func, factor: Expr, axis: str) -> int | None:
    """The bytes that a step along an axis moves on in the memory of the one buffer it reads."""
    types = {
        b.name: b.type for b in (*func.params, *(a.buffer for a in allocs(func.body).values()))
    }
    found = set(loads(factor))
    if len(found) != 1:
        return None
    load = found.pop()
    moved = step_bytes(load.index, types[load.buffer], axis)
    return None if moved is None else abs(moved)


def _line(func: Func, factor: Expr) -> int | None:
    """The bytes of the longest innermost dimension that a factor reads; None where one is open."""
    lines = [
        _input_bytes(func, load, lambda t: t.shape[-1] if t.shape else None)
        for load in _elements(factor)
    ]
    known = [n for n in lines if n is not None]
    return max(known, default=0) if len(known) == len(lines) else None


def bytes_of(func: Func, factor: Expr) -> int | None:
    """The bytes of all inputs that a factor reads; None where any are open."""
    found = [_input_bytes(func, load, lambda t: t.elems) for load in _elements(factor)]
    known = [n for n in found if n is not None]
    return sum(known) if len(known) == len(found) else None


def _elements(factor: Expr) -> list[Load]:
    """The elements that a factor reads, but for those that say where others are."""
    found = loads(factor)
    places = {inner for load in found for i in load.index for inner in loads(i)}
    return [load for load in found if load not in places]


def _choices(func: Func, column: Expr) -> int | None:
    """How many slices an input has of which data says which are the columns; None where none."""
    shapes = {b.name: b.type.shape for b in func.inputs}
    for load in loads(column):
        if load.buffer in shapes and load.index and loads(load.index[0]):
            count = shapes[load.buffer][0]
            return int(count.value) if isinstance(count, Const) else None
    return None


def _input_bytes(func: Func, load: Load, count: Callable[[TensorType], Expr | None]) -> int | None:
    """The bytes of some elements of the input that is read; None of open sizes, and of others."""
    type_ = next((b.type for b in func.inputs if b.name == load.buffer), None)
    elements = None if type_ is None else count(type_)
    if type_ is None or not isinstance(elements, Const):
        return None
    return int(elements.value) * type_.dtype.size_bytes
