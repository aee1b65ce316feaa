"""Local graph rewrites: a pattern, a condition that can say no and why, a result.

The engine keeps a list of nodes to look at: all of them first, then those whose surroundings a
rewrite has changed. Every rewrite is counted, so rules that undo each other end in an error and
not in an endless loop.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from dlc.core.errors import InternalError
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array, Op
from dlc.graph.pass_ import PassContext

T = TypeVar("T", bound=Op)
log = logging.getLogger("dlc.rewrite")

STEPS_PER_NODE = 20
"""More rewrites than this for each node of the graph mean that rules undo each other."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Matches a constant, and names it."""

    name: str


@dataclass(frozen=True, slots=True)
class Scalar:
    """Matches a constant of one element with this value (to the precision of its type)."""

    value: float


@dataclass(frozen=True, slots=True)
class Pattern:
    """Matches a value made by `op` from matching operands; a name matches any value.

    A name that occurs twice must be the same value in both places; `name` gives one to the result.
    `operands` of None match any operands; with `either_order` two operands match in both orders.
    An inner value that a node outside of the match reads does not match, unless it is `shared`.
    """

    op: type[Op] | tuple[type[Op], ...]
    operands: tuple[Operand, ...] | None = None
    either_order: bool = False
    name: str = ""
    shared: bool = False


Operand = Pattern | Weight | Scalar | str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a rule whose pattern matched did not fire; logged under the topic `rewrite`."""

    reason: str


@dataclass(slots=True)
class Match:
    """The nodes and values a pattern found, and the means to build what replaces them."""

    editor: GraphEditor
    context: PassContext
    root: Node
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def op(self, kind: type[T]) -> T:
        """The attributes of the one matched node of this kind."""
        (found,) = [n.op for n in self.nodes if isinstance(n.op, kind)]
        return found

    def maker(self, name: str) -> Op:
        """The operator that makes a named value."""
        node = self.editor.producer(self.values[name])
        assert node is not None, f"'{name}' is made by no node"
        return node.op

    def stored(self, name: str) -> Array:
        """The elements of a matched constant as they are, without a copy."""
        array = self.editor.array(self.values[name])
        assert array is not None, f"'{name}' is no constant"
        return array

    def array(self, name: str) -> Array:
        """The elements of a matched constant; floats in float64."""
        array = self.stored(name)
        return array.astype(np.float64) if self.values[name].type.dtype.is_float else array

    def call(self, op: Op, *inputs: Value, hint: str = "") -> Value:
        """A new node in the place of the matched one; its result."""
        return self.editor.call(op, *inputs, at=self.root, hint=hint)

    def constant(self, array: Array, like: Value, hint: str = "") -> Value:
        """A new constant of the element type of `like`."""
        return self.editor.constant(array, like.type.dtype, hint or f"{like.name}_folded")


Build = Callable[[Match], Value | Refusal]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite. `build` gets the match and returns the value that replaces it, or a refusal."""

    name: str
    pattern: Pattern
    build: Build

    @property
    def roots(self) -> tuple[type[Op], ...]:
        """The operators of the nodes the rule looks at."""
        return self.pattern.op if isinstance(self.pattern.op, tuple) else (self.pattern.op,)


def rule(pattern: Pattern) -> Callable[[Build], Rule]:
    """Declare a rewrite rule. Its name is the function's name."""
    return lambda fn: Rule(fn.__name__, pattern, fn)


def rewrite_graph(
    graph: Graph,
    rules: Sequence[Rule],
    context: PassContext,
    on_refusal: Callable[[str, str, str], None] | None = None,
) -> Graph:
    """Apply rules until none fires.

    Args:
        graph: The graph.
        rules: Tried in this order at each node.
        context: What rules may know besides the graph.
        on_refusal: Called with (rule, result of the node, reason); by default logged.

    Raises:
        InternalError: the rules do not come to an end.
    """
    by_root: dict[type[Op], list[Rule]] = {}
    for each in rules:
        for kind in each.roots:
            by_root.setdefault(kind, []).append(each)
    editor = GraphEditor(graph)
    refuse = on_refusal or _log_refusal
    budget = STEPS_PER_NODE * (len(graph.nodes) + 10)
    pending = dict.fromkeys(n.outputs[0].name for n in graph.nodes)
    by_name = {n.outputs[0].name: n for n in graph.nodes}
    while pending:
        name = next(iter(pending))
        del pending[name]
        node = editor.current(by_name[name])
        fired = node and _fire(editor, context, node, by_root.get(type(node.op), ()), refuse)
        if fired:
            budget -= 1
            if budget < 0:
                raise InternalError(detail=f"rewriting does not end; the last rule was '{fired}'")
        for near in itertools.chain.from_iterable(_around(editor, n) for n in editor.touched):
            by_name[near.outputs[0].name] = near
            pending[near.outputs[0].name] = None
        editor.touched.clear()
    return editor.finish()


def _fire(
    editor: GraphEditor,
    context: PassContext,
    node: Node,
    rules: Sequence[Rule],
    refuse: Callable[[str, str, str], None],
) -> str:
    """Apply the first rule that can be applied at a node; its name, or ""."""
    for each in rules:
        for match in _matches(editor, context, each.pattern, node):
            result = each.build(match)
            if isinstance(result, Refusal):
                refuse(each.name, node.outputs[0].name, result.reason)
                continue
            if not editor.can_replace(node.output, result):
                editor.discard([result])
                refuse(each.name, node.outputs[0].name, "a result of the graph keeps its name")
                continue
            made = editor.producer(result)
            new = made is not None and made in editor.touched
            editor.replace(node.output, result, keep_name=new)
            return each.name
    return ""


def _around(editor: GraphEditor, node: Node) -> Iterator[Node]:
    """A node and the two levels of readers a pattern with it inside may start from."""
    current = editor.current(node)
    if current is None:
        return
    yield current
    for value in current.outputs:
        for user in editor.users(value):
            yield user
            for result in user.outputs:
                yield from editor.users(result)


def _matches(
    editor: GraphEditor, context: PassContext, pattern: Pattern, root: Node
) -> Iterator[Match]:
    """Every way in which a pattern fits at a node; inner values have no users but matched ones."""
    if len(root.outputs) != 1:
        return
    for values, found in _fit_node(editor, pattern, root, {}, ((root, True),)):
        nodes = list(dict.fromkeys(n.outputs[0].name for n, _ in found))
        private = [n.output for n, shared in found if not shared]
        if all(_only_read_by(editor, value, nodes) for value in private):
            yield Match(editor, context, root, values, [n for n, _ in found])


def _only_read_by(editor: GraphEditor, value: Value, names: list[str]) -> bool:
    return not editor.is_output(value) and all(
        u.outputs[0].name in names for u in editor.users(value)
    )


Found = tuple[tuple[Node, bool], ...]  # the matched nodes, and whether others may read them
State = tuple[dict[str, Value], Found]


def _fit_node(
    editor: GraphEditor,
    pattern: Pattern,
    node: Node,
    values: dict[str, Value],
    nodes: Found,
) -> Iterator[State]:
    if pattern.name:
        if values.get(pattern.name, node.output) != node.output:
            return
        values = {**values, pattern.name: node.output}
    if pattern.operands is None:
        yield values, nodes
        return
    if len(pattern.operands) != len(node.inputs):
        return
    orders = [node.inputs]
    if pattern.either_order and len(node.inputs) == 2 and node.inputs[0] != node.inputs[1]:
        orders.append(node.inputs[::-1])
    for order in orders:
        yield from _fit_all(editor, pattern.operands, order, values, nodes)


def _fit_all(
    editor: GraphEditor,
    patterns: tuple[Operand, ...],
    operands: tuple[Value, ...],
    values: dict[str, Value],
    nodes: Found,
) -> Iterator[State]:
    if not patterns:
        yield values, nodes
        return
    for found, more in _fit(editor, patterns[0], operands[0], values, nodes):
        yield from _fit_all(editor, patterns[1:], operands[1:], found, more)


def _fit(
    editor: GraphEditor,
    pattern: Operand,
    value: Value,
    values: dict[str, Value],
    nodes: Found,
) -> Iterator[State]:
    match pattern:
        case str():
            if values.get(pattern, value) == value:
                yield {**values, pattern: value}, nodes
        case Weight(name):
            if editor.array(value) is not None and values.get(name, value) == value:
                yield {**values, name: value}, nodes
        case Scalar(number):
            if _is_scalar(editor.array(value), value.type.dtype, number):
                yield values, nodes
        case Pattern():
            node = editor.producer(value)
            if node is None or len(node.outputs) != 1 or not isinstance(node.op, pattern.op):
                return
            yield from _fit_node(editor, pattern, node, values, (*nodes, (node, pattern.shared)))


def _is_scalar(array: Array | None, dtype: DType, number: float) -> bool:
    """Whether a constant has one element and it is `number`, to the precision of the type.

    Models spell constants such as sqrt(2) with float32 digits, so 4 units in the last place of
    float32 are granted in float64 too.
    """
    if array is None or array.size != 1 or not dtype.is_float:
        return False
    element: Any = array.reshape(-1)[0]
    wanted = float(round_to(np.asarray(number), dtype))
    tolerance = {DType.F16: 1e-3, DType.BF16: 8e-3}.get(dtype, 5e-7)
    return bool(abs(float(element) - wanted) <= tolerance * abs(wanted))


def _log_refusal(name: str, result: str, reason: str) -> None:
    log.debug("%s does not apply at '%s': %s", name, result, reason)
