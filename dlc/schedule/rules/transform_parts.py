"""Which stages of a nest are products between two transforms, and what is around them.

See `transform`, the rule that schedules them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.schedule.loop import Func
from dlc.schedule.nest import Stage, simple_index, stages
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Cast, Const, Expr, Load, Select, Var
from dlc.te.transform import loads, walk
from dlc.te.types import const_size

RANKS = (3, 4)  # without those of a tile: of images, and of volumes


@dataclass(frozen=True, slots=True)
class Transformed:
    """The parts of a function, by buffers and by loops of the nest that writes the result."""

    pixel_columns: str | None  # of tiles of two axes, as the columns of sums
    operand: str
    sums: str
    sum_columns: str | None
    weight_columns: str | None
    weights: str | None  # that are transformed in a run, as pixels are
    readers: tuple[str, ...]  # what reads those before the result, in order
    result: str
    lead: str
    block: str
    image: str | None  # of a volume
    rows: tuple[str, ...]
    lane: str
    tile: tuple[int, ...]  # results of one tile along each of the rows
    positions: tuple[int, ...]  # products of one tile, likewise

    @property
    def place(self) -> int:
        """That of a volume's images in an index of the operand."""
        return len(self.tile) + 2


@dataclass(frozen=True, slots=True)
class _Parts:
    """The stages around the sums, in order, and the results of a tile along both axes."""

    pixel_columns: Stage | None
    operand: Stage
    sums: Stage
    sum_columns: Stage | None
    weight_columns: Stage | None
    weights: Stage | None
    transformed: Stage
    tile: tuple[int, ...]


def kept(func: Func) -> frozenset[str]:
    """The intermediates around the sums, which are computed once for many of them."""
    parts = _parts(stages(func))
    if parts is None:
        return frozenset()
    around = (
        parts.pixel_columns,
        parts.operand,
        parts.weight_columns,
        parts.weights,
        parts.sum_columns,
        parts.transformed,
    )
    return frozenset(stage.buffer for stage in around if stage is not None)


def find_transformed(func: Func) -> Transformed | None:
    """The transformed products in a function whose moves are inlined, or None."""
    found = stages(func)
    parts = _parts(found)
    if parts is None:
        return None
    readers = [parts.transformed]
    for stage in found[found.index(parts.transformed) + 1 :]:
        known = {r.buffer for r in readers}
        if any(x.buffer in known for x in loads(stage.value)):
            readers.append(stage)
    result = readers[-1]
    if not all(_in_place(r, readers[0]) for r in readers[1:]):
        return None
    axes = len(parts.tile)
    if len(result.loops) - axes not in RANKS or result.is_reduction:
        return None
    if len(parts.sums.loops) != len(result.loops) + axes:
        return None
    *positions, _ = around = parts.sums.loops[1 : axes + 2]  # and blocks
    if not all(isinstance(f.extent, Const) for f in (*around, parts.sums.loops[-1])):
        return None
    lead, block, *image, lane = result.names
    image, rows = image[:-axes], image[-axes:]
    return Transformed(
        pixel_columns=_name(parts.pixel_columns),
        operand=parts.operand.buffer,
        sums=parts.sums.buffer,
        sum_columns=_name(parts.sum_columns),
        weight_columns=_name(parts.weight_columns),
        weights=_name(parts.weights),
        readers=tuple(r.buffer for r in readers[:-1]),
        result=result.buffer,
        lead=lead,
        block=block,
        image=image[0] if image else None,
        rows=tuple(rows),
        lane=lane,
        tile=parts.tile,
        positions=tuple(const_size(f.extent) for f in positions),
    )


def _name(stage: Stage | None) -> str | None:
    return None if stage is None else stage.buffer


def _parts(found: list[Stage]) -> _Parts | None:
    """The sums, what their operand is computed of, and what is computed of them."""
    made = {s.buffer: s for s in found}
    for sums in found:
        operand, weights = (_made(made, factor) for factor in sums.factors or (None, None))
        reader = _if_select(_only_reader(found, sums))
        if operand is None or reader is None:
            continue
        if tile := _tile(reader, axes=1):
            return _Parts(None, operand, sums, None, None, weights, reader, tile)
        pixels = _if_select(made.get(_only_load(operand)))
        columns = _if_select(made.get(_only_load(weights))) if weights else None
        transformed = _if_select(_only_reader(found, reader))
        if pixels and transformed and (tile := _tile(transformed, axes=2)):
            return _Parts(pixels, operand, sums, reader, columns, weights, transformed, tile)
    return None


def _made(made: Mapping[str, Stage], factor: Expr | None) -> Stage | None:
    """The stage that makes a factor, which may be widened, in one of several ways."""
    load = factor.a if isinstance(factor, Cast) else factor
    return _if_select(made.get(load.buffer)) if isinstance(load, Load) else None


def _if_select(stage: Stage | None) -> Stage | None:
    """A stage whose elements are computed in one of several ways, by where they are."""
    is_one = stage is not None and not stage.is_reduction and isinstance(stage.value, Select)
    return stage if is_one else None


def _only_load(stage: Stage) -> str:
    """The one buffer that a stage reads, "" where there are others."""
    read = {x.buffer for x in loads(stage.value)}
    return read.pop() if len(read) == 1 else ""


def _only_reader(found: list[Stage], stage: Stage) -> Stage | None:
    """The one stage that reads another."""
    readers = [s for s in found if any(x.buffer == stage.buffer for x in loads(s.value))]
    return readers[0] if len(readers) == 1 else None


def _tile(stage: Stage, *, axes: int) -> tuple[int, ...] | None:
    """By what its own positions are divided to find the tile that an element is of."""
    if len(stage.loops) - axes not in RANKS or not isinstance(stage.value, Select):
        return None
    found = set[tuple[str, int]]()
    for load in loads(stage.value):
        for i in load.index:
            for node in walk(i):
                match node:
                    case Binary(BinOp.FLOORDIV, Var(name), Const(factor)):
                        found.add((name, int(factor)))
    along = dict(found)
    rows = stage.names[-1 - axes : -1]
    is_one = len(found) == len(along) == axes and set(along) == set(rows)
    return tuple(along[row] for row in rows) if is_one else None


def _in_place(stage: Stage, transformed: Stage) -> bool:
    """Whether a stage reads what was transformed at its own position, loop by loop."""
    for load in loads(stage.value):
        if load.buffer != transformed.buffer:
            continue
        for i, loop in zip(load.index, stage.loops, strict=False):
            simple = simple_index(i, stage.loops)
            if simple != Var(loop.var) and not (simple == ZERO and loop.extent == ONE):
                return False
    return True
