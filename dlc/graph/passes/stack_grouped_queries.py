"""Queries of heads that share their keys and values are rows of one matrix.

Before:
    def main(n: size, q: f32[1, 6, 2, 8], k: f32[1, 2, n, 8], v: f32[1, 2, n, 8]):
        k_apart: f32[1, 2, 1, n, 8] = reshape(k, shape=(1, 2, 1, n, 8))
        k_many: f32[1, 2, 3, n, 8] = expand(k_apart, shape=(1, 2, 3, n, 8))
        keys: f32[1, 6, n, 8] = reshape(k_many, shape=(1, 6, n, 8))
        turned: f32[1, 6, 8, n] = transpose(keys, perm=(0, 1, 3, 2))
        v_apart: f32[1, 2, 1, n, 8] = reshape(v, shape=(1, 2, 1, n, 8))
        v_many: f32[1, 2, 3, n, 8] = expand(v_apart, shape=(1, 2, 3, n, 8))
        values: f32[1, 6, n, 8] = reshape(v_many, shape=(1, 6, n, 8))
        scores: f32[1, 6, 2, n] = matmul(q, turned)
        weights: f32[1, 6, 2, n] = softmax(scores)
        y: f32[1, 6, 2, 8] = matmul(weights, values)
        return y

After:
    def main(n: size, q: f32[1, 6, 2, 8], k: f32[1, 2, n, 8], v: f32[1, 2, n, 8]):
        y_keys: f32[1, 2, 8, n] = transpose(k, perm=(0, 1, 3, 2))
        y_queries: f32[1, 2, 6, 8] = reshape(q, shape=(1, 2, 6, 8))
        scores_stacked: f32[1, 2, 6, n] = matmul(y_queries, y_keys)
        weights_stacked: f32[1, 2, 6, n] = softmax(scores_stacked)
        y_stacked: f32[1, 2, 6, 8] = matmul(weights_stacked, v)
        y: f32[1, 6, 2, 8] = reshape(y_stacked, shape=(1, 6, 2, 8))
        return y

Position: after apply_rules, which takes factors from the keys; before choose_layouts.

Exporters repeat the keys and values of a group of heads for each of its members, so a step of token
generation copied all it remembers several times. A mask of the queries is repeated for the members
of a group instead. On a GPU everything stays.

Source: Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Fuse, Op
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.norm import BatchNorm
from dlc.graph.ops.shape import Expand, Reshape, Transpose
from dlc.graph.ops.softmax import Softmax
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE, Const, Expr, index
from dlc.te.simplify import canonical, surely_equal
from dlc.te.types import is_const, same_shape

TURNED = (0, 1, 3, 2)


@dataclass(frozen=True, slots=True)
class _Attention:
    scores: Node  # the first product
    between: tuple[Node, ...]  # element by element, or softmax of rows; in execution order
    mixing: Node  # the second product
    keys: Value  # of each group, not repeated
    values: Value
    members: int  # heads of a group


@graph_pass(after=("apply_rules",), bodies=True)
def stack_grouped_queries(graph: Graph, context: PassContext) -> Graph:
    """Multiply keys and values of a group of heads once, by the queries of all of them."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    position = {node.outputs[0].name: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        found = _find(editor, node, position) if isinstance(node.op, MatMul) else None
        if found is not None:
            _stack(editor, found)
    return editor.finish()


def _find(editor: GraphEditor, scores: Node, position: dict[str, int]) -> _Attention | None:
    """The attention that begins with a product, if groups of heads share keys and values."""
    turned = editor.producer(scores.inputs[1])
    if turned is None or not isinstance(turned.op, Transpose) or turned.op.perm != TURNED:
        return None
    queries, rows = scores.inputs[0].type, scores.output.type
    if queries.rank != 4 or not surely_equal(queries.shape[1], rows.shape[1]):
        return None  # queries that heads share are few, and would have to be repeated
    keys = _shared(editor, turned.inputs[0])
    readers = None if keys is None else _readers(editor, scores)
    if keys is None or readers is None:
        return None
    between, mixing = readers
    values = _shared(editor, mixing.inputs[1])
    if values is None or values[1] != keys[1]:
        return None
    order = tuple(sorted(between, key=lambda n: position[n.outputs[0].name]))
    inside = {scores.output, *(n.output for n in order)}
    outside = {v for n in order for v in n.inputs} - inside
    if not all(_stacks(v, scores.output.type.shape) for v in outside):
        return None
    return _Attention(scores, order, mixing, keys[0], values[0], keys[1])


def _readers(editor: GraphEditor, scores: Node) -> tuple[list[Node], Node] | None:
    """What is done to the rows of scores, and the one product that they are the weights of."""
    between: dict[str, Node] = {}
    ends: dict[str, Node] = {}
    pending = [scores.output]
    while pending:
        value = pending.pop()
        if editor.is_output(value):
            return None
        for user in editor.users(value):
            name = user.outputs[0].name
            if isinstance(user.op, MatMul):
                ends[name] = user
            elif not _keeps_rows(user, scores.output):
                return None
            elif name not in between:
                between[name] = user
                pending.append(user.output)
    if len(ends) != 1:
        return None
    (mixing,) = ends.values()
    return list(between.values()), mixing


def _shared(editor: GraphEditor, value: Value) -> tuple[Value, int] | None:
    """[batch, groups, n, size], of which a value [batch, heads, n, size] has each several times."""
    merged = editor.producer(value)
    many = None if merged is None else editor.producer(merged.inputs[0])
    apart = None if many is None else editor.producer(many.inputs[0])
    if merged is None or many is None or apart is None:
        return None
    if not isinstance(merged.op, Reshape) or not isinstance(many.op, Expand):
        return None
    if not isinstance(apart.op, Reshape) or value.type.rank != 4:
        return None
    source = apart.inputs[0]
    times = many.output.type.shape[2] if many.output.type.rank == 5 else ONE
    if source.type.rank != 4 or not isinstance(times, Const) or times.value < 2:
        return None
    batch, groups, *line = source.type.shape
    shapes = (
        (apart.output.type.shape, (batch, groups, ONE, *line)),
        (many.output.type.shape, (batch, groups, times, *line)),
        (value.type.shape, (batch, canonical(groups * times), *line)),
    )
    if any(not same_shape(*pair) for pair in shapes):
        return None
    return source, int(times.value)


def _keeps_rows(node: Node, scores: Value) -> bool:
    """Whether a node has a result for each score, from the scores of the same row."""
    if len(node.outputs) != 1 or not same_shape(node.output.type.shape, scores.type.shape):
        return False
    if isinstance(node.op, Softmax):
        return node.op.axis % scores.type.rank == scores.type.rank - 1
    return node.op.fuse is Fuse.ELEMENTWISE and not isinstance(node.op, BatchNorm)  # of heads


def _stacks(value: Value, rows: tuple[Expr, ...]) -> bool:
    """Whether what is joined with scores can be stacked as they are."""
    _, heads, queries, _ = (ONE,) * (len(rows) - value.type.rank) + value.type.shape
    if is_const(heads, 1):
        return is_const(queries, 1) or surely_equal(queries, rows[2])
    return surely_equal(heads, rows[1]) and surely_equal(queries, rows[2])


def _stack(editor: GraphEditor, found: _Attention) -> None:
    last = found.mixing
    name, n = last.output.name, found.members
    queries = found.scores.output.type.shape[2]
    groups, rows = found.keys.type.shape[1], canonical(queries * n)

    def stacked(value: Value) -> Value:
        """[batch, heads, queries, x] as [batch, groups, rows, x]; what has no heads, repeated."""
        shape = (ONE,) * (4 - value.type.rank) + value.type.shape
        if not is_const(shape[1], 1):
            whole = Reshape(shape=(shape[0], groups, rows, shape[3]))
            return editor.call(whole, value, at=last, hint=f"{name}_queries")
        if is_const(shape[2], 1):
            return value
        steps: tuple[Op, ...] = (
            Reshape(shape=(shape[0], ONE, ONE, *shape[2:])),
            Expand(shape=(shape[0], ONE, index(n), *shape[2:])),
            Reshape(shape=(shape[0], ONE, rows, shape[3])),
        )
        for op in steps:
            value = editor.call(op, value, at=last, hint=f"{name}_mask")
        return value

    keys = editor.call(Transpose(perm=TURNED), found.keys, at=last, hint=f"{name}_keys")
    made: dict[str, Value] = {}
    scores = found.scores.output
    made[scores.name] = editor.call(
        MatMul(), stacked(found.scores.inputs[0]), keys, at=last, hint=f"{scores.name}_stacked"
    )
    for node in found.between:
        operands = [made[v.name] if v.name in made else stacked(v) for v in node.inputs]
        hint = f"{node.output.name}_stacked"
        made[node.output.name] = editor.call(node.op, *operands, at=last, hint=hint)
    weights = made[last.inputs[0].name]
    mixed = editor.call(MatMul(), weights, found.values, at=last, hint=f"{name}_stacked")
    result = editor.call(Reshape(shape=last.output.type.shape), mixed, at=last)
    editor.replace(last.output, result, keep_name=True)
