"""f(x) * c -> f(x * c), for a number c and an f that only moves elements, and
(a @ b) * c -> (a * c) @ b, where x or a comes from a product with weights: there the number
disappears into the weights (1 / sqrt(d) of attention).
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, Mul
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Reshape, Transpose
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule


@rule(
    Pattern(
        Mul, (Pattern((Reshape, Transpose), ("x",), name="moved"), Weight("c")), either_order=True
    )
)
def scale_before_move(match: Match) -> Value | Refusal:
    """Multiply before elements are moved."""
    if reason := _why_not_number(match, match["moved"]):
        return Refusal(reason)
    if not _takes_factor(match, match["x"]):
        return Refusal("no weights could take the factor")
    return match.call(match.maker("moved"), match.call(Mul(), match["x"], _number(match)))


@rule(Pattern(Mul, (Pattern(MatMul, ("a", "b"), name="y"), Weight("c")), either_order=True))
def scale_into_operand(match: Match) -> Value | Refusal:
    """Multiply the left operand."""
    if reason := _why_not_number(match, match["y"]):
        return Refusal(reason)
    if match.editor.array(match["b"]) is not None:
        return Refusal("the right operand is constant, and takes the factor itself")
    if not _takes_factor(match, match["a"]):
        return Refusal("no weights could take the factor")
    return match.call(MatMul(), match.call(Mul(), match["a"], _number(match)), match["b"])


def _why_not_number(match: Match, value: Value) -> str:
    if match.array("c").size != 1 or value.type != match.root.output.type:
        return "the factor is not one number"
    return "" if value.type.dtype.is_float else "integer products may overflow at another place"


def _number(match: Match) -> Value:
    """The factor without dimensions, so that it fits tensors of any rank."""
    return match.constant(match.array("c").reshape(()), match["c"])


def _takes_factor(match: Match, value: Value) -> bool:
    """Whether a value is read here only, and made from weights by what passes factors on."""
    editor = match.editor
    while (node := editor.producer(value)) is not None and editor.sole_user(value) is not None:
        if isinstance(node.op, MatMul | Conv):
            return editor.array(node.inputs[1]) is not None
        if isinstance(node.op, Add):
            constant = [v for v in node.inputs if editor.array(v) is not None]
            others = [v for v in node.inputs if editor.array(v) is None]
            if len(constant) != 1:
                return False
            value = others[0]
        elif isinstance(node.op, Reshape | Transpose):
            value = node.inputs[0]
        else:
            return False
    return False
