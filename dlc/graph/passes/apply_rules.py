"""Rewrite what the rules in dlc/graph/rules know a better form for.

Before:
    def main(x: f32[2, 3, 5, 7]):
        w: f32[4, 3, 1, 1] = const()
        c: f32[4, 1, 1] = const()
        a: f32[2, 4, 5, 7] = conv(x, w)
        y: f32[2, 4, 5, 7] = mul(a, c)
        return y

After:
    def main(x: f32[2, 3, 5, 7]):
        w_scaled: f32[4, 3, 1, 1] = const()
        y: f32[2, 4, 5, 7] = conv(x, w_scaled)
        return y

Position: after fold_constants, so that weights are constants, and after simplify_shapes, so that
patterns are not interrupted; before choose_layouts, whose operators no rule knows. Rules that take
operators apart come last: a scale behind a convolution would not find it behind a resize.
"""

from __future__ import annotations

from dlc.graph.graph import Graph
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules import LAST_RULES, PATTERN_RULES, STEP_RULES


@graph_pass(after=("fold_constants", "simplify_shapes"), bodies=True)
def apply_rules(graph: Graph, context: PassContext) -> Graph:
    """Apply whole patterns until none fits, then small steps, then what takes operators apart."""
    for rules in (PATTERN_RULES, STEP_RULES, LAST_RULES):
        graph = rewrite_graph(graph, rules, context)
    return graph
