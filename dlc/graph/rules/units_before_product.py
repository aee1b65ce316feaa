"""reshape(x @ w) -> reshape(x) @ w, where the reshape does nothing but add or drop axes of one.

Exporters of attention drop the axis of the batch before a product and give it back behind it. What
is added then, a residual, is of the result's shape, and fuses with a product of that shape.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Reshape
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.one_before_moves import moves_units


@rule(Pattern(Reshape, (Pattern(MatMul, ("x", "w"), name="product"),)))
def units_before_product(match: Match) -> Value | Refusal:
    """Reshape the rows before they are multiplied."""
    x, w, product = (match[name].type for name in ("x", "w", "product"))
    result = match.root.output.type
    if w.rank != 2 or x.rank < 2:
        return Refusal("the product is not one of rows with a matrix")
    if result.rank < 2 or not moves_units(product.shape[:-1], result.shape[:-1]):
        return Refusal("the reshape moves more than axes of one")
    if result.shape[-1] != product.shape[-1]:
        return Refusal("the reshape changes the columns")
    rows = Reshape(shape=as_sizes((*result.shape[:-1], x.shape[-1])))
    return match.call(MatMul(), match.call(rows, match["x"]), match["w"])
