"""Lay constant right operands of matrix products out as the kernel reads them: in panels.

Before:
    def main(x: f32[3, 5]):
        w: f32[5, 18] = const()
        y: f32[3, 18] = matmul(x, w)
        return y

After:
    def main(x: f32[3, 5]):
        w_packed: f32[3, 5, 8] = const()
        y: f32[3, 18] = matmul_packed(x, w_packed, n=18)
        return y

Position: after merge_parallel_matmuls and the rules, which look for plain matrix products.

A panel is as wide as a vector register, so the kernel loads one vector for each k; columns beyond
the last are zeros that nobody stores. A single column stays as it is: its sums run along it, and in
a panel its elements would lie apart.

So are stacks out of which indices choose a matrix for rows of its own. Other stacks stay as they
are, as a matrix engine takes them.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.chosen import choose_again, chosen
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Value
from dlc.graph.layout import pack_columns
from dlc.graph.ops.matmul import MatMul, MatMulPacked
from dlc.graph.pass_ import PassContext, graph_pass


@graph_pass(after=("apply_rules",), bodies=True)
def pack_matmul_weights(graph: Graph, context: PassContext) -> Graph:
    """Replace matrix products with constant right operands by packed ones."""
    editor = GraphEditor(graph)
    packed: dict[str, Value] = {}
    for node in graph.nodes:
        if not isinstance(node.op, MatMul):
            continue
        (x, right), choice = node.inputs, chosen(editor, node.inputs[1])
        w = right if choice is None else choice.inputs[0]
        array = editor.array(w)
        if array is None or array.ndim < 2 or not w.type.dtype.is_float:
            continue
        if not array.size or array.shape[-1] == 1 or not (array.ndim == 2 or choice):
            continue
        if choice is not None and x.type.shape[:-2] != right.type.shape[:-2]:
            continue
        if w.name not in packed:
            lanes = max(4, context.target.lanes(w.type.dtype.size_bytes))
            packed[w.name] = editor.constant(
                pack_columns(array, lanes), w.type.dtype, f"{w.name}_packed"
            )
        columns = choose_again(editor, choice, packed[w.name])
        op = MatMulPacked(n=w.type.shape[-1])
        editor.update(replace(node, op=op, inputs=(x, columns)))
        editor.discard(node.inputs)
    return editor.finish()
