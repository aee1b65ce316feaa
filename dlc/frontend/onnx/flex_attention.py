"""Attention whose scores and probabilities go through subgraphs of the model.

Source: https://onnx.ai/onnx/operators/, ai.onnx.preview.FlexAttention
"""

from __future__ import annotations

from dlc.core.types import DType
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.dtypes import DTYPES
from dlc.frontend.onnx.model import OnnxGraph
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import each_repeated, transpose
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Mul
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.softmax import Softmax
from dlc.te.expr import ZERO, Const
from dlc.te.simplify import canonical
from dlc.te.types import const_size


@converter("FlexAttention", since=1, domain="ai.onnx.preview")
def convert_flex_attention(
    ctx: Context,
    q: Value,
    k: Value,
    v: Value,
    *,
    prob_mod: OnnxGraph | None = None,
    scale: float | None = None,
    score_mod: OnnxGraph | None = None,
    softmax_precision: int = 0,
) -> Value:
    """Softmax of q k^T, weighed with v; heads of k and v serve as many heads of q each."""
    if any(x.type.rank != 4 for x in (q, k, v)):
        ctx.refuse(f"its operands are {q.type}, {k.type} and {v.type}, not of rank 4")
    width = q.type.shape[3]
    if scale is None and not isinstance(width, Const):
        ctx.refuse("the size of a head is not fixed", "fix it with dims= or shapes=")
    if scale is None and width == ZERO:
        ctx.refuse("its heads have no elements to tell the scale", "state scale")
    wide = DTYPES.get(softmax_precision, DType.F64 if q.type.dtype is DType.F64 else DType.F32)
    factor = const_size(width) ** -0.5 if scale is None else scale
    keys = transpose(ctx, _repeated(ctx, k, q), (0, 1, 3, 2))
    scores = cast_to(ctx, ctx.call(MatMul(), q, keys), wide)
    scores = ctx.call(Mul(), scores, ctx.scalar(factor, wide))
    scores = _modified(ctx, score_mod, scores)
    probabilities = _modified(ctx, prob_mod, ctx.call(Softmax(axis=3), scores))
    weights = cast_to(ctx, probabilities, v.type.dtype)
    return ctx.call(MatMul(), weights, _repeated(ctx, v, q))


def _modified(ctx: Context, graph: OnnxGraph | None, x: Value) -> Value:
    if graph is None:
        return x
    made = ctx.run_graph(ctx, graph, (x,))
    if len(made) != 1 or made[0].type != x.type:
        ctx.refuse(f"its subgraph '{graph.name}' makes something else than {x.type}")
    return made[0]


def _repeated(ctx: Context, x: Value, q: Value) -> Value:
    """Each head as often as there are heads of q for it."""
    heads, wanted = x.type.shape[1], q.type.shape[1]
    if heads == wanted:
        return x
    if not isinstance(heads, Const) or not isinstance(wanted, Const) or not heads.value:
        ctx.refuse("the number of heads is not fixed", "fix it with dims= or shapes=")
    if const_size(wanted) % const_size(heads):
        ctx.refuse(f"{wanted} heads of queries for {heads} of keys")
    return each_repeated(ctx, x, 1, canonical(wanted // heads))
