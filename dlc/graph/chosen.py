"""Matrices that indices choose out of a stack, as a router chooses experts: `gather(stack, which)`.

Products read them where they are: what is chosen is never copied.
"""

from __future__ import annotations

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.op import Op
from dlc.graph.ops.few_bits import MatMulBytesFewBits, MatMulFewBits
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.matmul import MatMulPacked

CHOOSE_COLUMNS: dict[type[Op], int] = {MatMulPacked: 1, MatMulFewBits: 1, MatMulBytesFewBits: 3}
"""Products of packed matrices, and how many operands have rows; all others have columns."""


def chosen(editor: GraphEditor, value: Value) -> Node | None:
    """The node that chooses a value out of a stack, along its first axis; or None."""
    made = editor.producer(value)
    return made if made is not None and is_choice(made) else None


def is_choice(node: Node) -> bool:
    """Whether a node picks slices of matrices, or of panels of matrices, by indices."""
    if not isinstance(node.op, Gather) or node.op.axis != 0:
        return False
    return node.inputs[0].type.rank > 2


def choose_again(editor: GraphEditor, choice: Node | None, stack: Value) -> Value:
    """The same choice out of another stack; the stack itself where there is no choice."""
    if choice is None:
        return stack
    return editor.call(choice.op, stack, choice.inputs[1], at=choice, hint=f"{stack.name}_chosen")
