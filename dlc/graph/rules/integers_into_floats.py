"""a @ b -> cast(cast(a) @ cast(b)), for whole numbers whose sums of products are exact in float32.

A deeper product is cut into parts that are, whose results are added up as integers.
"""

from __future__ import annotations

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.integers import F32_EXACT, integer_range, largest_sum, magnitude
from dlc.graph.op import Array
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Slice
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.graph.rules.integers_into_bytes import are_bytes

MAX_PARTS = 8
Cut = tuple[int, int]


@rule(Pattern((Conv, MatMul), ("x", Weight("w")), name="y"))
def integers_into_floats(match: Match) -> Value | Refusal:
    """Multiply as float32, for which there are faster instructions."""
    op, w = match.maker("y"), match.array("w")
    assert isinstance(op, Conv | MatMul)
    if match["y"].type.dtype is not DType.I32:
        return Refusal("the product is no i32")
    if match.context.target.gpu is not None and are_bytes(match):
        return Refusal("the target multiplies bytes")
    ranges = [integer_range(match.editor, match[name]) for name in ("x", "w")]
    largest = [magnitude(found) for found in ranges if found is not None]
    if len(largest) < 2 or max(largest) > F32_EXACT:
        return Refusal("an operand may be larger than what float32 holds exactly")
    if w.ndim < 2 or match["x"].type.rank < 2:
        return Refusal("the product is of a vector")
    axis = 1 if isinstance(op, Conv) else w.ndim - 2
    whole = isinstance(op, Conv) and op.groups > 1
    for parts in range(1, 2 if whole else MAX_PARTS + 1):
        cuts = [(c, w[(slice(None),) * axis + (slice(*c),)]) for c in _cuts(w.shape[axis], parts)]
        if all(largest_sum(op, part) * largest[0] <= F32_EXACT for _, part in cuts):
            return _sum(match, op, cuts)
    return Refusal("the sums may be larger than what float32 holds exactly")


def _cuts(size: int, parts: int) -> list[Cut]:
    step = max(1, -(-size // parts))
    return [(i, min(i + step, size)) for i in range(0, size, step)] or [(0, 0)]


def _sum(match: Match, op: Conv | MatMul, parts: list[tuple[Cut, Array]]) -> Value:
    x, w = match["x"], match["w"]
    axis = 1 if isinstance(op, Conv) else x.type.rank - 1
    total: Value | None = None
    for (start, stop), array in parts:
        part = x
        if len(parts) > 1:
            starts, sizes = [0] * x.type.rank, list(x.type.shape)
            starts[axis] = start
            sizes[axis] = as_sizes((stop - start,))[0]
            part = match.call(Slice(starts=as_sizes(starts), sizes=tuple(sizes)), x)
        weights = match.editor.constant(array, DType.F32, f"{w.name}_f32")
        product = match.call(op, match.call(Cast(to=DType.F32), part), weights)
        added = match.call(Cast(to=DType.I32), product)
        total = added if total is None else match.call(Add(), total, added)
    assert total is not None
    return total
