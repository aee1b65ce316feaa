"""A graph run by its operators' references: floats in float64, one array for each value.

The oracle of `dlc verify` and of the passes' tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dlc.core.count import show_count
from dlc.core.errors import InputError, InternalError
from dlc.graph.conditions import check_node
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Array, Fuse, as_f64
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.sizes import Sizes, bind_op, bind_shape, bound_sizes
from dlc.te.affine import coefficients
from dlc.te.expr import Const, Expr, Var
from dlc.te.types import const_or_none


def evaluate(
    graph: Graph,
    arrays: Mapping[str, Array],
    sizes: Sizes | None = None,
    *,
    round_factor: Callable[[Array], Array] | None = None,
) -> dict[str, Array]:
    """The outputs of a graph by name.

    Args:
        graph: What to run.
        arrays: The inputs by name.
        sizes: Values of size variables that the inputs' shapes do not give.
        round_factor: Applied to the float operands of contractions: what products of few bits
            make of the graph.

    Raises:
        InputError: An input is missing, or its shape does not fit.
    """
    known = bind_sizes(graph, arrays) | dict(sizes or {})
    alive = {v.name: np.asarray(arrays[v.name]) for v in graph.inputs}
    alive |= {v.name: a for v, a in graph.constants.items()}
    alive = {name: as_f64(a)[0] for name, a in alive.items()}
    wanted = {v.name for v in graph.outputs}
    last = {v.name: i for i, n in enumerate(graph.nodes) for v in n.inputs}
    for position, node in enumerate(graph.nodes):
        operands = [alive[v.name] for v in node.inputs]
        if round_factor is not None and node.op.fuse is Fuse.ANCHOR:
            operands = [round_factor(a) if a.dtype.kind == "f" else a for a in operands]
        alive |= _results(node, operands, known)
        for value in node.inputs:
            if last[value.name] == position and value.name not in wanted:
                alive.pop(value.name, None)
    return {v.name: alive[v.name] for v in graph.outputs}


def _results(node: Node, operands: list[Array], sizes: dict[str, int]) -> dict[str, Array]:
    """The results of one node by name; the sizes that it binds are known then."""
    if isinstance(node.op, BindSizes):
        sizes |= node.op.evaluate(tuple(operands), sizes)
        return {node.output.name: np.zeros(0, np.int64)}
    results = run_node(node, operands, sizes)
    late = set(bound_sizes((node,)))
    for value in node.outputs if late else ():
        named = zip(value.type.shape, np.shape(results[value.name]), strict=True)
        sizes |= {d.name: n for d, n in named if isinstance(d, Var) and d.name in late}
    return results


def run_node(node: Node, operands: list[Array], sizes: Sizes) -> dict[str, Array]:
    """The results of one node by name; their shapes are checked against the declared ones.

    Raises:
        UserError: the sizes are none that the operator can work with.
    """
    try:
        made = bind_op(node.op, sizes).reference(*operands)
    except ValueError:  # NumPy's, of shapes that do not fit
        check_node(node, sizes)
        raise
    results = made if isinstance(made, tuple) else (made,)
    for value, array in zip(node.outputs, results, strict=True):
        shape = bind_shape(value.type.shape, sizes)
        declared = [const_or_none(n) for n in shape]
        actual = np.shape(array)
        fits = len(declared) == len(actual) and all(
            n is None or n == m for n, m in zip(declared, actual, strict=True)
        )
        if not fits:
            check_node(node, sizes)
            detail = f"'{value.name}' ({node.op.name}) has shape {actual}, not {declared}"
            raise InternalError(detail=detail)
    return {v.name: np.asarray(a) for v, a in zip(node.outputs, results, strict=True)}


def bind_sizes(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The values of the size variables that follow from the shapes of the inputs."""
    sizes: dict[str, int] = {}
    pending: list[tuple[Value, Expr, int]] = []
    for value in graph.inputs:
        if value.name not in arrays:
            raise InputError(name=value.name, reason="is missing")
        shape = np.shape(arrays[value.name])
        if len(shape) != value.type.rank:
            reason = f"has {show_count(len(shape), 'dimension')}, not {value.type.rank}"
            raise InputError(name=value.name, reason=reason)
        pending += [(value, e, n) for e, n in zip(value.type.shape, shape, strict=True)]
    # Plain variables first: they may be part of other sizes.
    for _, expr, actual in sorted(pending, key=lambda p: not isinstance(p[1], Const | Var)):
        left = bind_shape((expr,), sizes)[0]
        if not isinstance(left, Const):
            sizes |= _solve(left, actual)
    for value, expr, actual in pending:
        left = bind_shape((expr,), sizes)[0]
        if isinstance(left, Const) and left.value != actual:
            raise InputError(name=value.name, reason=f"has size {actual} where {expr} is due")
    return sizes


def _solve(expr: Expr, actual: int) -> dict[str, int]:
    """The variable of `factor * name + offset == actual`; nothing where that is not the form."""
    factors = coefficients(expr)
    if factors is None or len(factors) != 1:
        return {}
    ((name, factor),) = factors.items()
    zero = bind_shape((expr,), {name: 0})[0]
    assert isinstance(zero, Const), "one variable, and that is bound"
    return {name: (actual - int(zero.value)) // factor}
