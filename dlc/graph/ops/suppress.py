"""Choosing boxes greedily: the best one, then the best of those that do not overlap it."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.nest import NestOp, each, each_row, lines, when
from dlc.graph.ops.order import below, sort_by_digits
from dlc.graph.ops.selection import over_true
from dlc.schedule.loop import Buffer
from dlc.te.expr import Expr, ceil_div
from dlc.te.types import TensorType

_LANES = 16
_PARTS = ("top", "bottom", "left", "right", "area")


@op("suppress", fuse=Fuse.OPAQUE)
class Suppress(NestOp):
    """Boxes picked by their keys, the least first, at most `steps` of each row.

    A box is left out where it shares more than a part `iou` of its union with one that was picked.

    Shapes:
        keys: u32[batch, classes, n]; alive: bool, the same, which boxes take part;
        top, bottom, left, right, area: f32[batch, 1, n]; iou: f32[()]
        -> i64[batch, classes, steps]: numbers of boxes, then -1
    """

    steps: Expr

    def __post_init__(self) -> None:
        set_size(self, "steps")

    def infer(self, keys: TensorType, alive: TensorType, *boxes: TensorType) -> TensorType:
        operands = (keys, alive, *boxes)
        types = (DType.U32, DType.BOOL, *[DType.F32] * 6)
        if tuple(t.dtype for t in operands) != types or keys.rank != 3 or boxes[-1].rank:
            raise self.reject("needs keys, flags, edges, areas and a threshold", *operands)
        wanted = (keys.shape[0], 1, keys.shape[2])
        shapes = [(alive.shape, keys.shape), *((t.shape, wanted) for t in boxes[:-1])]
        if any(len(a) != 3 or any(map(differs, a, b)) for a, b in shapes):
            raise self.reject("their shapes do not fit", *operands)
        return TensorType((*keys.shape[:2], self.steps), DType.I64)

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        keys, alive, *_ = inputs
        batch, classes, size = keys.type.shape
        steps = outputs[0].type.shape[2]
        row = f"r // ({classes}), r % ({classes})"

        def keep(at: str) -> str:
            taken = f"(i64(1) if {alive.name}[{row}, {at}] else i64(0))"
            return lines(f"candidates[index(seen[0])] = i64({at})", f"seen[0] = seen[0] + {taken}")

        def key(at: str) -> str:
            return f"{keys.name}[{row}, index(candidates[{at}])]"

        def ranked(rank: str, at: str) -> str:
            return f"ranking[index({rank})] = candidates[index({at})]"

        seen = "index(seen[0])"
        room = ceil_div(steps, _LANES) * _LANES
        greedy = lines(
            f'ranking = alloc(i64[{size}], "local")',
            *(f'{part} = alloc(f32[{room}], "local")' for part in _PARTS),
            'chosen = alloc(i64[1], "register")',
            "chosen[0] = i64(0)",
            sort_by_digits(DType.U32, size, key, ranked, seen),
            below("next", size, seen, lambda at: self._consider(inputs, outputs[0], row, at)),
        )
        body = lines(
            f'candidates = alloc(i64[{size}], "local")',
            'seen = alloc(i64[1], "register")',
            "seen[0] = i64(0)",
            each("none", steps, f"{outputs[0].name}[{row}, none] = i64(-1)"),
            over_true(f"{alive.name}[{row}, AT]", size, keep),
            when("i64(0) < seen[0]", greedy),
        )
        return each_row(batch * classes, keys.type.elems, body)

    def _consider(self, inputs: tuple[Buffer, ...], out: Buffer, row: str, at: str) -> str:
        """Pick the box of a rank unless one that was picked overlaps it."""
        *boxes, iou = inputs[2:]
        steps = out.type.shape[2]
        pick = lines(
            f"{out.name}[{row}, index(chosen[0])] = own[0]",
            *(f"{part}[index(chosen[0])] = mine[{i}]" for i, part in enumerate(_PARTS)),
            "chosen[0] = chosen[0] + i64(1)",
        )
        place = f"group * {_LANES} + one"
        high, wide = (_shared(low, upper, place) for low, upper in ((0, 1), (2, 3)))
        hit = f"{iou.name}[()] < shares[one] and {place} < index(chosen[0])"
        compare = lines(
            f'common = alloc(f32[{_LANES}], "register")',
            f'union = alloc(f32[{_LANES}], "register")',
            f'shares = alloc(f32[{_LANES}], "register")',
            each("one", _LANES, lines(
                f"common[one] = {high} * {wide}",
                f"union[one] = mine[4] + area[{place}] - common[one]",
                "shares[one] = (common[one] / union[one] if 0.0 < union[one] else 0.0)",
                f"hits[one] = max(hits[one], (i32(1) if {hit} else i32(0)))",
            ), "vectorize"),
        )  # fmt: skip
        consider = lines(
            'own = alloc(i64[1], "register")',
            f'mine = alloc(f32[{len(_PARTS)}], "register")',
            f'hits = alloc(i32[{_LANES}], "register")',
            'total = alloc(i32[1], "register")',
            f"own[0] = ranking[{at}]",
            *(f"mine[{i}] = {b.name}[r // ({inputs[0].type.shape[1]}), 0, index(own[0])]"
              for i, b in enumerate(boxes)),
            each("zero", _LANES, "hits[zero] = i32(0)", "vectorize"),
            each("group", ceil_div(steps, _LANES),
                 when(f"group * {_LANES} < index(chosen[0])", compare)),
            "total[0] = i32(0)",
            each("part", _LANES, "total[0] += hits[part]", "vectorize"),
            when("total[0] == i32(0)", pick),
        )  # fmt: skip
        return when(f"index(chosen[0]) < {steps}", consider)

    def reference(self, keys: Array, alive: Array, *boxes: Array) -> Array:
        (steps,) = constants((self.steps,))
        *edges, iou = boxes
        found = np.full((*keys.shape[:2], steps), -1, np.int64)
        for b, c in np.ndindex(keys.shape[:2]):
            picked: list[int] = []
            for box in np.argsort(keys[b, c], kind="stable"):
                own = [e[b, 0] for e in edges]
                if len(picked) == steps:
                    break
                if alive[b, c, box] and not any(_share(own, box, p) > iou for p in picked):
                    picked.append(int(box))
            found[b, c, : len(picked)] = picked
        return found


def _shared(low: int, upper: int, place: str) -> str:
    """How far two boxes overlap along one axis."""
    first, last = (f"{_PARTS[i]}[{place}]" for i in (low, upper))
    return f"max(min(mine[{upper}], {last}) - max(mine[{low}], {first}), 0.0)"


def _share(edges: list[Array], a: int, b: int) -> float:
    top, bottom, left, right, area = edges
    high = max(min(bottom[a], bottom[b]) - max(top[a], top[b]), 0)
    wide = max(min(right[a], right[b]) - max(left[a], left[b]), 0)
    union = area[a] + area[b] - high * wide
    return float(high * wide / union) if union > 0 else 0.0
