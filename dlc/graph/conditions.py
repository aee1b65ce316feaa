"""The conditions on sizes that a graph relies on, for the host program to check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce

from dlc.core.errors import UserError
from dlc.core.types import LARGEST_INDEX
from dlc.graph.assume import collect_assumptions
from dlc.graph.graph import Graph, Node
from dlc.graph.ops.control import If
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.sizes import attribute_exprs, bodies, names_in
from dlc.te.expr import ONE, ZERO, Binary, BinOp, Const, Expr, Var
from dlc.te.simplify import Bounds, simplify
from dlc.te.transform import free_vars, substitute

_UNBOUNDED = Const(LARGEST_INDEX, ZERO.dtype)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on size variables, and who needs it."""

    cond: Expr
    message: str


def conditions(graph: Graph) -> list[Condition]:
    """What must hold for the sizes so that no operator reads outside of its operands.

    - What the operators assume of sizes they could not compare (`dlc.graph.assume`).
    - No size of a value is negative.

    What the branches of an `If` rely on is left to them.

    What follows from the bounds of the sizes is left out, and each condition comes once.
    """
    bounds: Bounds = {
        name: (Const(low, ZERO.dtype), _UNBOUNDED if high is None else Const(high, ZERO.dtype))
        for name, (low, high) in graph.size_ranges.items()
    }
    found: dict[Expr, Condition] = {}
    for cond, node in _assumed(graph):
        left = simplify(cond, bounds)
        if not (isinstance(left, Const) and left.value) and left not in found:
            found[left] = _condition(left, node, graph.operators)
    return list(found.values())


def late_counts(graph: Graph, given: frozenset[str]) -> list[Condition]:
    """That numbers of elements fit into 64 bits which read sizes other than those `given`.

    Where a tensor has memory, whoever allocates it finds out. This is for tensors within groups,
    and for sizes that kernels compute. What the branches of an `If` compute is left to them.
    """
    found: dict[Expr, Condition] = {}
    for count, node in _counts(graph):
        if not isinstance(count, Const | Var) and names_in((count,)) - given:
            reason = "a number of elements does not fit into 64 bits"
            condition = Condition(
                Binary(BinOp.LE, count, _UNBOUNDED), f"{where(node, graph.operators)}: {reason}"
            )
            found.setdefault(count, condition)
    return list(found.values())


def where(node: Node, operators: Mapping[str, str]) -> str:
    """What a message calls a node: the name and the operator that it has in the model."""
    operator = operators.get(node.source, node.op.onnx)
    return f"node '{node.source or node.outputs[0].name}'" + (f" ({operator})" if operator else "")


def check_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Refuse values of the size variables as the host program does; those not given are left out.

    Raises:
        UserError: a condition does not hold.
    """
    _check(conditions(graph), sizes)


def check_node(node: Node, sizes: Mapping[str, int]) -> None:
    """Refuse values of the size variables that one operator cannot work with.

    Raises:
        UserError: a condition does not hold.
    """
    _check((_condition(cond, node, {}) for cond in _assumed_by(node)), sizes)


def _check(all_conditions: Iterable[Condition], sizes: Mapping[str, int]) -> None:
    env: dict[str, Expr] = {name: Const(n, ZERO.dtype) for name, n in sizes.items()}
    for condition in all_conditions:
        left = simplify(substitute(condition.cond, env), {})
        if isinstance(left, Const) and not left.value:
            raise UserError(detail=condition.message)


def _condition(cond: Expr, node: Node, operators: Mapping[str, str]) -> Condition:
    return Condition(cond, f"{where(node, operators)}: the sizes do not fit: {cond} must hold")


def _assumed_by(node: Node) -> list[Expr]:
    with collect_assumptions() as found:
        node.op.infer(*(v.type for v in node.inputs))
    return list(found)


def _assumed(graph: Graph) -> Iterator[tuple[Expr, Node]]:
    for node in graph.nodes:
        yield from ((cond, node) for cond in _assumed_by(node))
        for body in () if isinstance(node.op, If) else bodies(node.op):  # one of two runs
            yield from _assumed(body)
        for value in node.outputs:
            for size in value.type.shape:
                if free_vars(size):
                    yield size >= 0, node


def _counts(graph: Graph) -> Iterator[tuple[Expr, Node]]:
    """The sizes that groups read, and the numbers of elements, not multiplied out, within them."""
    for node in graph.nodes:
        for body in () if isinstance(node.op, If) else bodies(node.op):
            yield from _counts(body)
            if isinstance(node.op, FusedGroup):
                yield from _counts_within(body)


def _counts_within(body: Graph) -> Iterator[tuple[Expr, Node]]:
    for node in body.nodes:
        yield from ((size, node) for size in attribute_exprs(node.op))
        for value in node.outputs:
            if value not in body.outputs:
                sizes = [size for size in value.type.shape if size != ONE]
                yield reduce(partial(Binary, BinOp.MUL), sizes or [ONE]), node
