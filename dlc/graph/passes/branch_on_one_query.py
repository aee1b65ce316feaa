"""Attention of an open number of queries has kernels of its own for one query.

Before:
    def main(n: size, m: size, q: f32[2, n, 8], k: f32[2, 8, m], v: f32[2, m, 8]):
        def attention(n: size, m: size, q: f32[2, n, 8], k: f32[2, 8, m], v: f32[2, m, 8]):
            scores: f32[2, n, m] = matmul(q, k)
            weights: f32[2, n, m] = softmax(scores)
            y: f32[2, n, 8] = matmul(weights, v)
            return y
        y: f32[2, n, 8] = attention(q, k, v)
        return y

After:
    def main(n: size, m: size, q: f32[2, n, 8], k: f32[2, 8, m], v: f32[2, m, 8]):
        def n_is_one(n: size):
            n_or_0: i64[()] = sizes(values=((1 if n == 1 else 0),), shape=())
            n_is_1: bool[()] = cast(n_or_0, to=bool)
            return n_is_1
        n_is_1: bool[()] = n_is_one()
        def then(n: size, m: size, q: f32[2, n, 8], k: f32[2, 8, m], v: f32[2, m, 8]):
            q_one: f32[2, 1, 8] = reshape(q, shape=(2, 1, 8))
            def matmul(n: size, m: size, q_one: f32[2, 1, 8], k: f32[2, 8, m]):
                scores_one: f32[2, 1, m] = matmul(q_one, k)
                return scores_one
            scores_one: f32[2, 1, m] = fused(q_one, k, body=matmul)
            def softmax(n: size, m: size, scores_one: f32[2, 1, m]):
                weights_one: f32[2, 1, m] = softmax(scores_one)
                return weights_one
            weights_one: f32[2, 1, m] = fused(scores_one, body=softmax)
            def matmul_2(n: size, m: size, weights_one: f32[2, 1, m], v: f32[2, m, 8]):
                y_one: f32[2, 1, 8] = matmul(weights_one, v)
                return y_one
            y_one: f32[2, 1, 8] = matmul_2(weights_one, v)
            y: f32[2, n, 8] = reshape(y_one, shape=(2, n, 8))
            return y
        def other(n: size, m: size, q: f32[2, n, 8], k: f32[2, 8, m], v: f32[2, m, 8]):
            def attention(n: size, m: size, q: f32[2, n, 8], k: f32[2, 8, m], v: f32[2, m, 8]):
                scores: f32[2, n, m] = matmul(q, k)
                weights: f32[2, n, m] = softmax(scores)
                y: f32[2, n, 8] = matmul(weights, v)
                return y
            y: f32[2, n, 8] = attention(q, k, v)
            return y
        y: f32[2, n, 8] = branch(n_is_1, q, k, v, q, k, v, then=then, other=other)
        return y

Position: last. Groups are there, so that branches are in the way of no fusion.

Many queries read keys and values that are brought together first. One query, as when tokens are
generated, reads each key once, and waits for memory: copies take as long as all the rest. Where
heads share keys, one query of each is a known number of rows. An encoder, whose queries are as many
as its keys, stays as it is; so does what always has several queries.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.core.errors import ShapeError
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Fuse
from dlc.graph.ops.control import If
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.pairs_computed import MatMulPairsComputed
from dlc.graph.ops.planes_pair import MatMulPair
from dlc.graph.ops.shape import Reshape
from dlc.graph.ops.softmax import Softmax
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.passes.fuse_groups import form_groups, kernels
from dlc.graph.size_conditions import ask_sizes
from dlc.graph.sizes import bind_op, bind_shape
from dlc.te.expr import Var, equal
from dlc.te.transform import free_vars
from dlc.te.types import const_or


@graph_pass(after=("fuse_groups",), bodies=True)
def branch_on_one_query(graph: Graph, context: PassContext) -> Graph:
    """Let a run choose between the kernel of an attention and those for one query."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    asked: dict[str, Value] = {}
    for node in graph.nodes:
        size = _queries(node)
        if size is None or context.size_ranges.get(size, (0, None))[0] > 1:
            continue
        assert isinstance(node.op, FusedGroup)
        body = node.op.body
        try:
            with_one = _with_one(body, size)
        except ShapeError:
            continue  # another operand says that there are more
        if size not in asked:
            asked[size] = _is_one(editor, node, size)
        alone = form_groups(with_one, lambda g: kernels(g, context))
        then = replace(alone, name="then")
        other = replace(body, name="other", nodes=(replace(node, inputs=body.inputs),))
        inputs = (asked[size], *node.inputs, *node.inputs)
        editor.update(replace(node, op=If(then=then, other=other), inputs=inputs))
    return editor.finish()


def _queries(node: Node) -> str | None:
    """The size that is the number of queries of an attention, where it is open."""
    if not isinstance(node.op, FusedGroup):
        return None
    nodes = node.op.body.nodes
    products = [n for n in nodes if n.op.fuse is Fuse.ANCHOR]
    known = (MatMul, MatMulPair, MatMulPairsComputed)
    if len(products) != 2 or not all(isinstance(n.op, known) for n in products):
        return None
    if not any(isinstance(n.op, Softmax) for n in nodes) or len(node.outputs) != 1:
        return None
    names = free_vars(products[0].output.type.shape[-2])
    if len(names) != 1:
        return None
    (name,) = names
    rows, keys = bind_shape(products[0].output.type.shape, {name: 1})[-2:]
    few = const_or(keys, 2) <= 1  # or none at all, or fewer: a run has more of the size than 1
    return name if const_or(rows, 0) >= 1 and not few else None


def _is_one(editor: GraphEditor, at: Node, size: str) -> Value:
    """Whether a size is 1, as a group that the host computes by itself."""
    names = editor.fresh(f"{size}_or_0"), editor.fresh(f"{size}_is_1")
    number, is_one = ask_sizes(equal(Var(size), 1), *names)
    body = Graph(f"{size}_is_one", (size,), (), (number, is_one), is_one.outputs)
    return editor.add(Node(FusedGroup(body=body), (), is_one.outputs), at=at).output


def _with_one(body: Graph, size: str) -> Graph:
    """The nodes of a group with a size of 1, between operands and a result of any such size."""
    known = {size: 1}
    values: dict[Value, Value] = {}
    nodes: list[Node] = []
    for value in body.inputs:
        values[value] = value
        shape = bind_shape(value.type.shape, known)
        if shape != value.type.shape:
            nodes.append(call(Reshape(shape=shape), value, name=f"{value.name}_one"))
            values[value] = nodes[-1].output
    for node in body.nodes:
        inputs = (values[v] for v in node.inputs)
        names = tuple(f"{v.name}_one" for v in node.outputs)
        by_engine = isinstance(node.op, MatMulPair | MatMulPairsComputed)  # few rows are by none
        op = MatMul() if by_engine else bind_op(node.op, known)
        nodes.append(call(op, *inputs, name=names, source=node.source))
        values |= zip(node.outputs, nodes[-1].outputs, strict=True)
    (result,) = body.outputs
    nodes.append(call(Reshape(shape=result.type.shape), values[result], name=result.name))
    return replace(body, nodes=tuple(nodes), outputs=nodes[-1].outputs)
