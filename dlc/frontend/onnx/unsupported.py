"""What to tell of nodes that cannot be compiled: where, of which shapes, how much of the work.

An unsupported node's results are taken to be what the model declares of them. That is never
trusted for a build: it lets the walk go on, so that the nodes behind are judged and shown, too.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx

from dlc.core.count import show_count
from dlc.core.errors import InternalError, UnsupportedModel, UnsupportedOperator
from dlc.core.types import INDEX
from dlc.frontend.onnx.fallback import is_standard
from dlc.frontend.onnx.model import OnnxNode, OnnxValue, Unreadable
from dlc.graph.graph import Node
from dlc.graph.ops.bodies import HOLDERS
from dlc.te.expr import Const, Expr, Var
from dlc.te.simplify import simplify
from dlc.te.tensor import Reduce, Tensor, placeholder
from dlc.te.transform import free_vars, substitute
from dlc.te.types import TensorType

_OPEN = 16
"""What an open size counts as in shares of work."""
_MOST_LINES = 30


@dataclass(frozen=True, slots=True)
class Issue:
    """A node that cannot be compiled, why, and what it reads."""

    node: OnnxNode
    error: UnsupportedOperator
    operands: tuple[TensorType | None, ...]
    results: tuple[TensorType | None, ...]

    @property
    def work(self) -> float:
        """An operation for each element it reads or makes: what it computes nobody knows."""
        return sum(_elems(t) for t in (*self.operands, *self.results) if t is not None)


def declared(
    value: OnnxValue | None, sizes: dict[str, str], fresh: Callable[[str], str]
) -> TensorType | None:
    """The type that a model declares for a value; None where it says too little.

    `sizes` are the size variables of dimensions by name; those it does not have are added.
    """
    if value is None or value.dims is None or isinstance(value.dtype, Unreadable):
        return None
    if value.sequence or value.optional:
        return None

    def size(dim: int | str | None) -> Expr:
        if isinstance(dim, int):
            return Const(max(dim, 0), INDEX)
        if dim is None:
            return Var(fresh("d"))
        if dim not in sizes:
            sizes[dim] = fresh(dim)
        return Var(sizes[dim])

    return TensorType(tuple(size(dim) for dim in value.dims), value.dtype)


def unsupported(
    label: str, issues: Sequence[Issue], nodes: Sequence[Node], total: int
) -> UnsupportedModel:
    """The error that lists all issues of a model of `total` nodes.

    `nodes` are those that could be converted.
    """
    whole = sum(map(_work, nodes)) + sum(issue.work for issue in issues)
    lines = [_line(issue, whole) for issue in issues[:_MOST_LINES]]
    rest = len(issues) - len(lines)
    return UnsupportedModel(
        count=len(issues),
        nodes=show_count(total, "node"),
        share=_share(sum(issue.work for issue in issues), whole),
        model=label,
        listing="\n".join([*lines, *([f"  and {rest} more"] if rest > 0 else [])]),
        issues=tuple(issue.error for issue in issues),
    )


def _line(issue: Issue, whole: float) -> str:
    node, error = issue.node, issue.error
    made = _types(issue.results)
    signature = f"{node.operator}({_types(issue.operands)})" + (f" -> {made}" if made else "")
    lines = [f"  {node.label}: {signature}, {_share(issue.work, whole)} of the work"]
    lines.append(f"    {error.fields['reason']}")
    return "\n".join([*lines, *([f"    {error.hint}"] if error.hint else [])])


def _types(types: Iterable[TensorType | None]) -> str:
    return ", ".join("?" if t is None else str(t) for t in types)


def _share(part: float, whole: float) -> str:
    percent = 100 * part / whole if whole else 0.0
    return f"about {percent:.0f} %" if percent >= 1 else "less than 1 %"


def _work(node: Node) -> float:
    """Elements that a node computes, each as often as it adds something to it."""
    if isinstance(node.op, HOLDERS):
        bodies = [getattr(node.op, f) for f in ("body", "then", "other") if hasattr(node.op, f)]
        return float(sum(_work(inner) for body in bodies for inner in body.nodes))
    parameters = [placeholder(f"in{i}", v.type) for i, v in enumerate(node.inputs)]
    try:
        made = node.op.compute(*parameters)
    except InternalError:  # the host runs it
        return sum(_elems(v.type) for v in node.outputs)
    seen: dict[int, float] = {}
    waiting = list(made if isinstance(made, tuple) else (made,))
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen[id(tensor)] = _steps(tensor)
            waiting += tensor.inputs
    return sum(seen.values())


def _steps(tensor: Tensor) -> float:
    """The iterations of a tensor's loops."""
    if tensor.body is None:
        return 0
    inner = tensor.body.axes if isinstance(tensor.body, Reduce) else ()
    return math.prod(_number(axis.extent) for axis in (*tensor.axes, *inner))


def _elems(type_: TensorType) -> float:
    return math.prod(map(_number, type_.shape))


def _number(size: Expr) -> float:
    env: dict[str, Expr] = {name: Const(_OPEN, INDEX) for name in free_vars(size)}
    known = simplify(substitute(size, env))
    return float(known.value) if isinstance(known, Const) else float(_OPEN)


def advice(node: OnnxNode) -> str:
    """What to do about an operator that has no converter."""
    if is_standard(node):
        return "this operator of ONNX is not supported yet; export the model without it"
    if node.domain in (onnx.defs.ONNX_DOMAIN, onnx.defs.ONNX_ML_DOMAIN):
        return _unknown(node)
    if node.domain == "com.microsoft.nchwc":
        return (
            "onnxruntime laid the model out for one kind of CPU, which it does not name;"
            " take the model before that, or save it with ORT_ENABLE_EXTENDED"
        )
    if node.domain == "com.microsoft":
        return (
            "this operator of onnxruntime is not supported yet;"
            " take the model before onnxruntime optimized it, or export it without the operator"
        )
    return "this is a custom operator; export the model with operators of ONNX alone"


def _unknown(node: OnnxNode) -> str:
    """That ONNX has no such operator, and what may be meant."""
    since: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == node.domain:
            first = since.get(schema.name, schema.since_version)
            since[schema.name] = min(first, schema.since_version)
    domain = f" of {node.domain}" if node.domain else ""
    told = f"ONNX has no operator {node.op_type} at opset {node.opset}{domain}"
    if node.op_type in since:
        return f"{told}, only from {since[node.op_type]} on; export the model for that opset"
    names = [name for name, first in since.items() if first <= node.opset]
    close = difflib.get_close_matches(node.op_type, names, 1, 0.7)
    return f"{told}; did you mean {close[0]}?" if close else told
