"""Products of bytes with weights of a few bits, which lie in words: sums of scaled sums.

    parts[row, block, column] = sum of x[row, k] * number[k, column] over the block
    result[row, column] = sum over the blocks of
        (parts - less[row, block]) * scale[block, column] * factor[row, block]

The result is cut into register tiles as any contraction is. For each of its blocks, a tile has the
whole numbers of all its elements in registers, beside the sums; one instruction unpacks the numbers
of a word where it multiplies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.schedule.instruction import DOT_WORDS, Instruction
from dlc.schedule.loop import Func, loops
from dlc.schedule.nest import Stage, stages
from dlc.schedule.rules.contraction import Contraction, analyse, bytes_of
from dlc.schedule.rules.cut_tiles import cut_tiles
from dlc.schedule.rules.own_sums import accumulate, own_sums, write_result
from dlc.schedule.rules.prepare import unroll_factor
from dlc.schedule.rules.stationary import columns_stay
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.te.expr import Binary, BinOp, Cast, Const, Load

MAX_STEPS = 8  # words of a column written out in one iteration
ROWS = (0, 1, 2, 4, 6, 8, 12)  # of a tile, to try
COLUMNS = (0, 1, 2, 4)  # vectors of a tile, to try


def match(func: Func, target: Target) -> Contraction | None:
    """The sum of scaled parts in a function whose moves are inlined, or None."""
    found = stages(func)
    sums = [s for s in found if s.is_reduction]
    if len(sums) != 2:
        return None
    parts, total = sums
    dot = _of_words(parts, target)
    results = [s for s in found if not s.is_reduction and s.reads(total.buffer)]
    readers = [s for s in found if s.reads(parts.buffer)]
    if dot is None or total.factors is None or len(results) != 1 or readers != [total]:
        return None
    scaled, factor = total.factors
    if not isinstance(scaled, Binary):
        return None
    assert parts.factors is not None, "they are products"
    tiled = analyse(func, total, results[0], (factor, scaled.b))
    if tiled is None or tiled.packed is not None or not tiled.rows:
        return None
    x, words = parts.factors
    return replace(
        tiled,
        column_bytes=bytes_of(func, words),
        row_bytes=bytes_of(func, x),
        row_stride=None,
        at_once=dot,
        parts=parts.buffer,
    )


def _of_words(parts: Stage, target: Target) -> Instruction | None:
    """The instruction that multiplies bytes with the numbers of a word, or None."""
    match parts.factors:
        case (
            Cast(DType.I32, Load(_, _, DType.I8)),
            Cast(DType.I32, Binary(BinOp.BITAND, _, Const(mask))),
        ):
            bits = int(mask).bit_length()
            dot = DOT_WORDS.get(bits)
            fits = dot is not None and len(parts.inner) >= _depth(dot) and target.adds_words(bits)
            return dot if fits else None
        case _:
            return None


def space(func: Func, target: Target) -> Space:
    """Tile sizes, and which operand stays near; 0 and -1 stand for the analytic choice."""
    return Space({"rows": ROWS, "columns": COLUMNS, "columns_outer": (-1, 0, 1)})


def schedule(trace: Trace, found: Contraction, target: Target, knobs: Mapping[str, int]) -> None:
    """Tile the sums; see the module."""
    dot = found.at_once
    assert dot is not None, "match has found one"
    choice = knobs.get("columns_outer", -1)
    stay = bool(choice) if choice >= 0 else columns_stay(trace, found, target, shared=False)
    leaves = cut_tiles(trace, found, target, knobs, columns_outside=stay)
    for tile in own_sums(trace, found, leaves):
        assert tile.parts is not None, "match has found them"
        _in_registers(trace, tile.sum, tile.parts, dot, target)
        write_result(trace, tile.leaf)


def _in_registers(trace: Trace, total: str, parts: str, dot: Instruction, target: Target) -> None:
    """Put the sums of one tile, and the parts of one of its blocks, into registers."""
    blocks, _ = accumulate(trace, total, target.lanes(4), within=0)
    trace.do("compute_at", parts, blocks[-1])
    steps, each = accumulate(trace, parts, target.lanes(4), within=_depth(dot))
    if steps and (factor := unroll_factor(trace.extent(steps[-1]), MAX_STEPS)) > 1:
        trace.do("annotate", steps[-1], "unroll", factor)
    trace.do("tensorize", each[0], dot.name)
    for buffer in (total, parts):
        trace.do("set_scope", buffer, "register")


def _depth(dot: Instruction) -> int:
    """How many loops over summands an instruction has."""
    return len(loops(dot.func.body))
