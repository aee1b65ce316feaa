"""Compute functions of fewer digits where products keep few of them.

Before:
    def main(x: f32[128, 256]):
        y: f32[128, 256] = gelu(x)
        return y

After:
    def main(x: f32[128, 256]):
        y: f32[128, 256] = gelu_short(x)
        return y

Position: after everything that looks for the operators, before groups hold them.

Below "highest", a factor of a product has 16 or 8 digits. A function right to 19 is no worse than
its rounding, and what is left of a kernel when its products are fast.
"""

from __future__ import annotations

from dataclasses import replace

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph
from dlc.graph.ops.activation import Gelu, GeluShort
from dlc.graph.pass_ import PassContext, graph_pass


@graph_pass(after=("choose_layouts",), bodies=True)
def shorten_functions(graph: Graph, context: PassContext) -> Graph:
    """Replace Gelu by a shorter form where the precision allows it."""
    if context.precision == "highest" or context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    for node in graph.nodes:
        if node.op == Gelu() and node.inputs[0].type.dtype in GeluShort.accepts:
            editor.update(replace(node, op=GeluShort()))
    return editor.finish()
