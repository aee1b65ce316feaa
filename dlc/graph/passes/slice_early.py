"""Compute only the rows that somebody reads: of a classifier's last layer, those of one token.

Before:
    def main(x: f32[1, 9, 4]):
        w: f32[4, 6] = const()
        a: f32[1, 9, 6] = matmul(x, w)
        b: f32[1, 9, 6] = relu(a)
        y: f32[1, 1, 6] = slice(b, starts=(0, 0, 0), sizes=(1, 1, 6))
        return y

After:
    def main(x: f32[1, 9, 4]):
        w: f32[4, 6] = const()
        x_part: f32[1, 1, 4] = slice(x, starts=(0, 0, 0), sizes=(1, 1, 4))
        a_part: f32[1, 1, 6] = matmul(x_part, w)
        y: f32[1, 1, 6] = relu(a_part)
        return y

Position: after the rules, whose patterns have made norms and softmax of their parts, and after
merge_equal_nodes; before merge_parallel_matmuls, since queries then have fewer rows than keys.

From the results backward, each value gets a box of it that holds what its readers want. Where a
slice takes at most half of a value, or so many elements of an open axis, operators that compute
rows apart from each other compute the box alone; before the others it is cut out. A slice whose
rows are not those of a product stays where it is: it is an index in the kernel that reads it, and
would part operators that are one kernel.

Source: Muchnick, "Advanced Compiler Design and Implementation", section 18.10, for dead code; that
parts of values are dead, and not whole ones, is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import mul

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Op
from dlc.graph.ops.activation import Clip
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Binary, Where
from dlc.graph.ops.elementwise import Cast, Unary
from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.norm import LayerNorm, RMSNorm
from dlc.graph.ops.shape import Concat, Reshape, Slice, Transpose
from dlc.graph.ops.softmax import Softmax
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.te.expr import ONE, ZERO, Const, Expr
from dlc.te.simplify import canonical, surely_at_most, surely_equal
from dlc.te.types import Shape, is_const

Part = tuple[Expr, Expr]  # where it begins, and how many
Box = tuple[Part | None, ...]  # of each axis; None is all of it


@graph_pass(after=("apply_rules", "merge_equal_nodes"), bodies=True)
def slice_early(graph: Graph, context: PassContext) -> Graph:
    """Narrow what is computed for slices of products' rows."""
    boxes, sources = _wanted(graph)
    if not boxes:
        return graph
    narrower = _Narrower(GraphEditor(graph), boxes, sources)
    for node in graph.nodes:
        narrower.visit(node)
    return narrower.editor.finish()


def _wanted(graph: Graph) -> tuple[dict[str, Box], dict[str, str]]:
    """The box that readers want of each value that should not be computed as a whole.

    And whose slice it is: the source of the node that a reader of the model is told about.
    """
    found: dict[str, Box | None] = dict.fromkeys(v.name for v in graph.outputs)  # None is all
    sources: dict[str, str] = {}
    for node in reversed(graph.nodes):
        name = node.outputs[0].name
        source = sources.get(name, node.source)
        for value, box in zip(node.inputs, _of_operands(node, found.get(name)), strict=True):
            known = found.get(value.name, box)
            found[value.name] = None if known is None or box is None else _both(known, box)
            sources.setdefault(value.name, source)
    boxes = {name: box for name, box in found.items() if box is not None}
    return _with_products(graph, boxes), sources


def _with_products(graph: Graph, boxes: dict[str, Box]) -> dict[str, Box]:
    """What hangs together with the rows of a product."""
    region: dict[str, str] = {}

    def root(name: str) -> str:
        while name in region:
            name = region[name]
        return name

    products: list[str] = []
    for node in graph.nodes:
        name = node.outputs[0].name
        if name not in boxes or _operands(node, boxes[name]) is None:
            continue
        if isinstance(node.op, MatMul):
            products.append(name)
        for value in node.inputs:
            if value.name in boxes and root(value.name) != root(name):
                region[root(value.name)] = root(name)
    kept = {root(name) for name in products}
    return {name: box for name, box in boxes.items() if root(name) in kept}


def _both(a: Box, b: Box) -> Box | None:
    """A box that holds two: it is limited along the axes that both limit alike."""
    found = tuple(p if p == q else None for p, q in zip(a, b, strict=True))
    return found if any(found) else None


def _of_operands(node: Node, box: Box | None) -> Sequence[Box | None]:
    """What a node wants of its operands, when so much is wanted of its result."""
    whole = [None] * len(node.inputs)
    if isinstance(node.op, Slice):
        part = _sliced(node, box)
        return [part] if part is not None and _is_small(part, node.inputs[0].type.shape) else whole
    found = None if box is None else _operands(node, box)
    return whole if found is None else [b if any(b) else None for b in found]


def _is_small(box: Box, shape: Shape) -> bool:
    """Whether a box is at most half of a value, or has so many elements of an axis of any size."""
    return any(
        (isinstance(part[1], Const) and not isinstance(size, Const))
        or surely_at_most(part[1] * 2, size)
        for part, size in zip(box, shape, strict=True)
        if part is not None
    )


def _operands(node: Node, box: Box) -> list[Box] | None:
    """The boxes of the operands from which a node computes a box of its result.

    None where it needs more of them, or where this pass does not know.
    """
    shapes = [v.type.shape for v in node.inputs]
    match node.op:
        case Slice():
            part = _sliced(node, box)
            return None if part is None else [part]
        case Cast() | Clip() | Unary() | Binary() | Where():
            return [_broadcast(s, box) for s in shapes]
        case LayerNorm(axis=axis) | RMSNorm(axis=axis):
            rows = axis % len(shapes[0])
            return None if any(box[rows:]) else [box, *((None,) * len(s) for s in shapes[1:])]
        case Softmax(axis=axis) | Concat(axis=axis):
            return None if box[axis] is not None else [box] * len(shapes)
        case MatMul():
            return _factors(shapes, box)
        case Transpose(perm=perm):
            return [tuple(box[perm.index(d)] for d in range(len(perm)))]
        case Reshape(shape=shape):
            found = _reshaped(shapes[0], shape, box)
            return None if found is None else [found]
        case _:
            return None


def _sliced(node: Node, box: Box | None) -> Box | None:
    """What a slice reads for a box of its result; None where it leaves elements out."""
    op = node.op
    assert isinstance(op, Slice), "a slice is asked for"
    if op.steps:
        return None
    found: list[Part | None] = []
    for start, size, whole, part in zip(
        op.starts, op.sizes, node.inputs[0].type.shape, box or (None,) * len(op.starts), strict=True
    ):
        begin, count = part or (ZERO, size)
        if whole == ONE and count != ONE:
            return None  # of none, which an operand that is repeated could not tell
        is_whole = part is None and is_const(start, 0) and surely_equal(size, whole)
        found.append(None if is_whole else (canonical(start + begin), count))
    return tuple(found)


def _broadcast(shape: Shape, box: Box) -> Box:
    """The box of an operand that is repeated along axes of one element."""
    own = box[len(box) - len(shape) :]
    return tuple(None if n == ONE else part for n, part in zip(shape, own, strict=True))


def _factors(shapes: list[Shape], box: Box) -> list[Box] | None:
    """The boxes of a product's operands: its rows are those of the left one."""
    left, right = shapes
    if len(left) < 2 or len(right) < 2 or box[-1] is not None:
        return None
    stack = box[:-2]
    rows = (*_broadcast(left[:-2], stack), box[-2], None)
    return [rows, (*_broadcast(right[:-2], stack), None, None)]


def _reshaped(before: Shape, after: Shape, box: Box) -> Box | None:
    """The box before a reshape that leaves the axes alone of which a part is wanted."""
    found: list[Part | None] = [None] * len(before)
    for axis, part in enumerate(box):
        if part is None:
            continue
        same = (d for d in range(len(before)) if _is_same_axis(before, d, after, axis))
        at = next(same, None)
        if at is None:
            return None
        found[at] = part
    return tuple(found)


def _is_same_axis(before: Shape, d: int, after: Shape, axis: int) -> bool:
    pairs = (
        (before[d], after[axis]),
        (_count(before[:d]), _count(after[:axis])),
        (_count(before[d + 1 :]), _count(after[axis + 1 :])),
    )
    return all(surely_equal(a, b) for a, b in pairs)


def _count(sizes: Shape) -> Expr:
    return canonical(reduce(mul, sizes, ONE))


class _Narrower:
    """One walk over a graph, which makes the wanted parts of values beside the values."""

    def __init__(self, editor: GraphEditor, boxes: dict[str, Box], sources: dict[str, str]) -> None:
        self.editor = editor
        self.boxes = boxes
        self.sources = sources
        self.parts: dict[tuple[str, Box], Value] = {}

    def visit(self, node: Node) -> None:
        """Compute the wanted part of a node's result; let slices give way to parts."""
        node = self.editor.current(node) or node  # its operands may have given way
        if len(node.outputs) > 1:
            return
        box = self.boxes.get(node.output.name)
        if box is not None:
            self.parts[node.output.name, box] = self.narrowed(node, box)
        elif isinstance(node.op, Slice) and node.inputs[0].name in self.boxes:
            wanted = _sliced(node, None)
            if wanted is not None:
                self.give_way(node.output, self.part(node.inputs[0], wanted, node))

    def give_way(self, old: Value, part: Value) -> None:
        """Let readers of a slice read a part. A result of the graph keeps its name."""
        if part.type != old.type or not self.editor.can_replace(old, part):
            return
        is_renamed = self.editor.is_output(old)
        self.editor.replace(old, part)
        if is_renamed:
            self.parts = {k: old if v == part else v for k, v in self.parts.items()}

    def narrowed(self, node: Node, box: Box) -> Value:
        """A part of what a node computes, from parts of its operands if that can be."""
        boxes = _operands(node, box)
        if boxes is None:
            return self.cut(node.output, box, node)
        inputs = [self.part(v, b, node) for v, b in zip(node.inputs, boxes, strict=True)]
        if isinstance(node.op, Slice):
            return inputs[0]
        op = _narrow(node.op, box)
        return self.editor.call(op, *inputs, at=node, hint=f"{node.output.name}_part")

    def part(self, value: Value, box: Box, at: Node) -> Value:
        """A part of a value, made once; of a part that is computed where that holds it."""
        if not any(box):
            return value
        if (value.name, box) not in self.parts:
            whole, own = value, self.boxes.get(value.name)
            rest = box
            if own is not None and own != box:
                whole = self.part(value, own, at)
                rest = tuple(None if p == q else p for p, q in zip(box, own, strict=True))
            self.parts[value.name, box] = self.cut(whole, rest, at)
        return self.parts[value.name, box]

    def cut(self, value: Value, box: Box, at: Node) -> Value:
        """A slice of a value that is computed as a whole."""
        starts = as_sizes(ZERO if part is None else part[0] for part in box)
        op = Slice(starts=starts, sizes=_sizes(value.type.shape, box))
        name = self.editor.fresh(f"{value.name}_part")
        source = self.sources.get(value.name, at.source)
        return self.editor.add(call(op, value, name=name, source=source), at=at).output


def _narrow(op: Op, box: Box) -> Op:
    """The operator with the sizes of a part, where it names any."""
    return replace(op, shape=_sizes(op.shape, box)) if isinstance(op, Reshape) else op


def _sizes(shape: Shape, box: Box) -> tuple[Expr, ...]:
    return as_sizes(n if part is None else part[1] for n, part in zip(shape, box, strict=True))
