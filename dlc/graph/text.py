"""Graph text: a subset of Python's syntax, with every type written down.

A graph inside an operator (a fused group, the body of a scan) is a nested `def` before the node
that holds it; a fused group is then called by its name. Constants of a few elements are spelled
out; the data of others travels beside the text.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import NoReturn

import numpy as np

from dlc.core.errors import DlcError, UserError
from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import OPS, Array, Op
from dlc.graph.ops.fused import FusedGroup
from dlc.te.expr import Binary, Cast, Const, Expr, Load, Select, Unary, Var
from dlc.te.text import ExprParser, parse_type, print_expr
from dlc.te.types import TensorType

_INLINE_ELEMS = 8
_EXPR = (Const, Var, Binary, Unary, Cast, Select, Load)


def print_graph(graph: Graph) -> str:
    """Write a graph; `parse_graph` reads it back, except for the data of larger constants."""
    return "\n".join(_lines(graph, "")) + "\n"


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    params = [f"{name}: {_print_range(graph, name)}" for name in graph.sizes]
    params += [f"{v.name}: {v.type}" for v in graph.inputs]
    yield f"{indent}def {graph.name}({', '.join(params)}):"
    inner = indent + "    "
    for value, array in graph.constants.items():
        yield f"{inner}{value.name}: {value.type} = const({_print_elements(array)})"
    for node in graph.nodes:
        for body in _bodies(node.op):
            yield from _lines(body, inner)
        yield from _print_node(node, inner)
    names = ", ".join(v.name for v in graph.outputs)
    yield f"{inner}return {names or '()'}"


def _print_range(graph: Graph, name: str) -> str:
    if name not in graph.size_ranges:
        return "size"
    low, high = graph.size_ranges[name]
    return f"size[{low}, {high}]"


def _print_elements(array: Array) -> str:
    if not 0 < array.size <= _INLINE_ELEMS:
        return ""
    flat = array.reshape(-1)
    values = flat.astype(np.float64) if array.dtype.kind in "fV" else flat
    return ", ".join(map(repr, values.tolist()))


def _print_node(node: Node, indent: str) -> Iterator[str]:
    operands = [v.name for v in node.inputs]
    if isinstance(node.op, FusedGroup) and node.op.body.name not in OPS:
        call = f"{node.op.body.name}({', '.join(operands)})"
    else:
        call = f"{node.op.name}({', '.join(operands + _print_attributes(node.op))})"
    if len(node.outputs) == 1:
        yield f"{indent}{node.outputs[0].name}: {node.outputs[0].type} = {call}"
        return
    for value in node.outputs:
        yield f"{indent}{value.name}: {value.type}"
    yield f"{indent}{', '.join(v.name for v in node.outputs)} = {call}"


def _bodies(op: Op) -> list[Graph]:
    return [value for _, value in _attributes(op) if isinstance(value, Graph)]


def _attributes(op: Op) -> list[tuple[str, object]]:
    """The attributes that differ from their defaults."""
    declared = fields(op)  # type: ignore[arg-type]  # every operator is a dataclass
    pairs = [(f, getattr(op, f.name)) for f in declared]
    return [
        (f.name, v)
        for f, v in pairs
        if f.default is MISSING or type(v) is not type(f.default) or v != f.default
    ]


def _print_attributes(op: Op) -> list[str]:
    return [f"{name}={_print_attribute(value)}" for name, value in _attributes(op)]


def _print_attribute(value: object) -> str:
    match value:
        case DType():
            return str(value)
        case Graph():
            return value.name
        case tuple():
            inner = ", ".join(map(_print_attribute, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case _ if isinstance(value, _EXPR):
            return print_expr(value)
    return repr(value)


def parse_graph(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """Read one graph.

    Args:
        text: What `print_graph` writes.
        constants: The data of constants, by name; those of which neither the text nor this holds
            the data are zeros.

    Raises:
        UserError: The text does not parse; the message names the line.
    """
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise UserError(detail=f"graph text, line {error.lineno}: {error.msg}") from error
    match body:
        case [ast.FunctionDef() as function]:
            return _GraphParser(function, constants or {}).parse()
    raise UserError(detail="graph text must hold exactly one 'def'")


class _GraphParser:
    """Reads one `def`."""

    def __init__(self, function: ast.FunctionDef, data: Mapping[str, Array]) -> None:
        self.function = function
        self.data = data
        self.sizes: list[str] = []
        self.bound = _bound_in(function)
        self.elements: dict[str, DType] = {}  # of the operands of a node that binds sizes
        self.ranges: dict[str, tuple[int, int | None]] = {}
        self.values: dict[str, Value] = {}
        self.declared: dict[str, Value] = {}  # `name: type` lines before a call with many results
        self.bodies: dict[str, Graph] = {}
        self.constants: dict[Value, Array] = {}
        self.nodes: list[Node] = []
        self.outputs: tuple[Value, ...] = ()

    def parse(self) -> Graph:
        inputs = [v for arg in self.function.args.args if (v := self.parameter(arg)) is not None]
        for stmt in self.function.body:
            self.statement(stmt)
        return Graph(
            self.function.name,
            tuple(self.sizes),
            tuple(inputs),
            tuple(self.nodes),
            self.outputs,
            self.constants,
            self.ranges,
        )

    def parameter(self, arg: ast.arg) -> Value | None:
        """One parameter: a size variable gives None."""
        match arg.annotation:
            case ast.Name(id="size"):
                self.sizes.append(arg.arg)
                return None
            case ast.Subscript(value=ast.Name(id="size"), slice=ast.Tuple(elts=[low, high])):
                self.sizes.append(arg.arg)
                self.ranges[arg.arg] = (ast.literal_eval(low), ast.literal_eval(high))
                return None
            case None:
                _fail(arg, "a parameter without a type")
        return self.define(arg.arg, self.type(arg.annotation))

    def statement(self, stmt: ast.stmt) -> None:
        match stmt:
            case ast.FunctionDef():
                self.bodies[stmt.name] = _GraphParser(stmt, self.data).parse()
            case ast.AnnAssign(target=ast.Name(name), value=None):
                self.declared[name] = Value(name, self.type(stmt.annotation))
            case ast.AnnAssign(target=ast.Name(name), value=ast.Call(func=ast.Name(id="const"))):
                self.constant(stmt, name)
            case ast.AnnAssign(target=ast.Name(name), value=ast.Call() as call):
                type_ = self.type(stmt.annotation)
                self.node(call, (Value(name, type_),))
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call() as call):
                self.node(call, tuple(self.look_up(t, self.declared) for t in targets))
            case ast.Return(value=ast.Tuple(elts=elts)):
                self.outputs = tuple(self.look_up(e, self.values) for e in elts)
            case ast.Return(value=ast.Name() as name):
                self.outputs = (self.look_up(name, self.values),)
            case _:
                _fail(stmt, "not a graph statement")

    def constant(self, stmt: ast.AnnAssign, name: str) -> None:
        assert isinstance(stmt.value, ast.Call)
        value = self.define(name, self.type(stmt.annotation))
        if not value.type.is_static:
            _fail(stmt, "a constant of unknown size")
        dtype = NUMPY_DTYPES[value.type.dtype]
        shape = value.type.static_shape
        if name in self.data:
            array = np.asarray(self.data[name])
        elif stmt.value.args:
            elements = np.array([_literal(a) for a in stmt.value.args]).astype(dtype)
            array = np.full(shape, elements[0]) if elements.size == 1 else elements
        else:
            array = np.broadcast_to(np.zeros((), dtype), shape)
        if array.size != math.prod(shape) or array.dtype != dtype:
            _fail(stmt, "the data does not fit the type")
        self.constants[value] = array.reshape(shape)

    def node(self, call: ast.Call, outputs: tuple[Value, ...]) -> None:
        operands = tuple(self.look_up(a, self.values) for a in call.args)
        self.elements = {f"in{i}": v.type.dtype for i, v in enumerate(operands)}
        op = self.op(call)
        self.nodes.append(Node(op, operands, outputs))
        for value in outputs:
            self.values[value.name] = value

    def op(self, call: ast.Call) -> Op:
        if not isinstance(call.func, ast.Name):
            _fail(call, "not an operator")
        name = call.func.id
        if name in self.bodies and name not in OPS:
            return FusedGroup(body=self.bodies[name])
        if name not in OPS:
            _fail(call, f"there is no operator '{name}'")
        attributes = {str(k.arg): self.attribute(k.value) for k in call.keywords}
        known = {f.name for f in fields(OPS[name])}  # type: ignore[arg-type]  # a dataclass
        if unknown := attributes.keys() - known:
            _fail(call, f"'{name}' has no attribute {', '.join(sorted(unknown))}")
        try:
            return OPS[name](**attributes)
        except (TypeError, DlcError) as error:  # an attribute is missing or of the wrong type
            _fail(call, str(error))

    def attribute(self, node: ast.expr) -> object:
        match node:
            case ast.Tuple(elts=elts):
                return tuple(self.attribute(e) for e in elts)
            case ast.Name(id=name) if name not in self.sizes and name in list(DType):
                return DType(name)
            case ast.Name(id=name) if name not in self.sizes and name in self.bodies:
                return self.bodies[name]
        literal = _literal(node)
        return self.expr_parser().index(node) if literal is _NO_LITERAL else literal

    def type(self, node: ast.expr) -> TensorType:
        return parse_type(node, self.size)

    def expr_parser(self) -> ExprParser:
        return ExprParser(self.elements, self.size)

    def size(self, name: str) -> Expr:
        if name not in self.sizes and name not in self.bound:
            raise UserError(detail=f"graph text: there is no size '{name}'")
        return Var(name)

    def define(self, name: str, type_: TensorType) -> Value:
        value = self.values[name] = Value(name, type_)
        return value

    def look_up(self, node: ast.expr, table: Mapping[str, Value]) -> Value:
        if not isinstance(node, ast.Name) or node.id not in table:
            _fail(node, "there is no such value")
        return table[node.id]


def _bound_in(function: ast.FunctionDef) -> set[str]:
    """The sizes that nodes of a function bind: types before a node's call may read them."""
    words = [k for k in ast.walk(function) if isinstance(k, ast.keyword)]
    tuples = [k.value for k in words if k.arg in ("names", "results")]
    items = [e for t in tuples if isinstance(t, ast.Tuple) for e in t.elts]
    return {e.value for e in items if isinstance(e, ast.Constant) and isinstance(e.value, str)}


_NO_LITERAL = object()


def _literal(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id="inf" | "nan" as word):
            return float(word)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _literal(operand)
            if isinstance(inner, int | float):
                return -inner
    return _NO_LITERAL


def _fail(node: ast.AST, reason: str) -> NoReturn:
    line = getattr(node, "lineno", "?")
    raise UserError(detail=f"graph text, line {line}: {reason}: {ast.unparse(node)}")
