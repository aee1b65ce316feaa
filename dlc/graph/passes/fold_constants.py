"""Compute what depends only on constants.

Before:
    def main(x: f32[2]):
        w: f32[2] = const()
        w1: f32[2] = relu(w)
        y: f32[2] = add(x, w1)
        return y

After:
    def main(x: f32[2]):
        w1: f32[2] = const()
        y: f32[2] = add(x, w1)
        return y

Position: first, so that every later pattern sees weights as constants. Again after sink_constants,
which hands them to loops, and after the rules and choose_layouts, which leave reshaped and packed
weights behind.

What has no more elements than its operands is computed at any size: bytes of a weight would be
widened by each run. What has more is up to a limit, and so is a table of which rows are picked,
whose bytes are smaller.

Floats are computed in float64 and rounded once. A node without operands is left alone unless it
is known to give the same result at each run: a random generator has no operands either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from math import prod

from dlc.graph.arrays import is_heavy, round_to, spilled
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array, Op
from dlc.graph.ops.binary import Binary
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.ops.elementwise import Cast, Unary
from dlc.graph.ops.from_sizes import Range, SizeTensor
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.shape import Empty, Expand, Tile
from dlc.graph.ops.text import TextOp
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import Expr
from dlc.te.transform import free_vars

_OF_EACH = (Cast, Unary, Binary)
SMALL_BYTES = 4096
"""Repeating a constant is worth memory up to here; a larger one is repeated where it is read."""


@graph_pass(bodies=True)
def fold_constants(graph: Graph, context: PassContext) -> Graph:
    """Replace nodes whose operands are constants by constants."""
    known = {v.name: a for v, a in graph.constants.items()}
    heavy = is_heavy(graph.constants.values())
    added: dict[Value, Array] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        if not _is_foldable(node, graph, known, context):
            kept.append(node)
            continue
        results = node.op.reference(*(known[v.name] for v in node.inputs))
        arrays = results if isinstance(results, tuple) else (results,)
        for value, array in zip(node.outputs, arrays, strict=True):
            made = round_to(array, value.type.dtype)
            added[value] = known[value.name] = spilled(made) if heavy else made
    if not added:
        return graph
    read = {v.name for n in kept for v in n.inputs} | {v.name for v in graph.outputs}
    constants = {v: a for v, a in {**graph.constants, **added}.items() if v.name in read}
    return replace(graph, nodes=tuple(kept), constants=constants)


def _is_foldable(
    node: Node, graph: Graph, known: Mapping[str, Array], context: PassContext
) -> bool:
    if isinstance(node.op, Empty | BindSizes | TextOp):
        return False
    if not all(v.type.is_static for v in node.outputs):
        return False
    if not node.inputs and not isinstance(node.op, SizeTensor | Range):
        return False
    if not all(v.name in known for v in node.inputs) or _reads_sizes(node.op):
        return False
    after = sum(_bytes(v) for v in node.outputs)
    if isinstance(node.op, Expand | Tile):
        return after <= max(sum(_bytes(v) for v in node.inputs), SMALL_BYTES)
    if after <= context.fold_limit_bytes:
        return True
    more = sum(_elements(v) for v in node.outputs) > sum(_elements(v) for v in node.inputs)
    return not more and not _are_rows_picked(node, graph, known)


def _are_rows_picked(node: Node, graph: Graph, known: Mapping[str, Array]) -> bool:
    """Whether a run reads some rows alone of what is computed for each element: words, say."""
    pending, computed = [node], set(node.outputs)
    while pending:
        each = pending.pop()
        if not isinstance(each.op, _OF_EACH):
            return False
        value = each.output
        users = graph.users.get(value, ())
        if not users or value in graph.outputs:
            return False
        for user in users:
            if isinstance(user.op, Gather) and value not in user.inputs[1:]:
                continue
            if not all(v in computed or v.name in known for v in user.inputs):
                return False
            if user.outputs[0] not in computed:
                computed.update(user.outputs)
                pending.append(user)
    return True


def _reads_sizes(op: Op) -> bool:
    """Whether an attribute depends on a size variable; a graph inside an operator counts too."""
    values = [getattr(op, f.name) for f in fields(op)]  # type: ignore[arg-type]  # a dataclass
    flat = [v for value in values for v in (value if isinstance(value, tuple) else (value,))]
    return any(isinstance(v, Graph) or (isinstance(v, Expr) and free_vars(v)) for v in flat)


def _bytes(value: Value) -> int:
    return value.type.dtype.size_bytes * _elements(value)


def _elements(value: Value) -> int:
    return prod(value.type.static_shape)
