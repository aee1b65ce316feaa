"""The invariants of graph IR, checked after the importer and after every pass."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator

from dlc.core.errors import DlcError, VerifyError
from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.sizes import attribute_exprs, bodies, bound_sizes, graph_reads, inner_sizes, names_in
from dlc.te.expr import Const, Expr
from dlc.te.types import TensorType

_RESERVED = {"size", "const", "inf", "nan", "min", "max", *DType}


def verify_graph(graph: Graph, *, when: str) -> None:
    """Raise `VerifyError` listing every broken invariant.

    - Every name is an identifier, is defined once, and before it is used; size variables too.
    - Every result has the type its operator infers from its operands.
    - Every size in a type or an attribute reads size variables only that are declared, or bound
      by an earlier node; each is bound once.
    - Every output is defined; constants have the declared shape and type.
    - Bounds are of declared sizes, and no bound is negative or above its other bound.
    - Graphs inside operators hold to all of this, and declare no size that is unknown outside.
    """
    if problems := list(_problems(graph)):
        raise VerifyError(unit=f"graph '{graph.name}'", when=when, problems="; ".join(problems))


def _problems(graph: Graph) -> Iterator[str]:
    defined: dict[str, Value] = {}
    sizes = set(graph.sizes)
    yield from _size_problems(graph)
    for value in (*graph.inputs, *graph.constants):
        yield from _definition(value, defined, sizes)
        defined[value.name] = value
    for value, array in graph.constants.items():
        shape = tuple(Const(n, DType.INDEX) for n in array.shape)
        if shape != value.type.shape or array.dtype != NUMPY_DTYPES[value.type.dtype]:
            yield f"'{value.name}: {value.type}' has data {array.dtype}{list(array.shape)}"
    for node in graph.nodes:
        yield from _node_problems(node, defined, sizes)
        bound = bound_sizes((node,))
        for name in (*bound, *inner_sizes(node.op)):
            if name in sizes or name in defined or bound.count(name) > 1:
                yield f"size '{name}' is bound, but there is one"
        sizes.update(bound)
        for value in node.outputs:
            yield from _definition(value, defined, sizes)
            defined[value.name] = value
    for value in graph.outputs:
        if defined.get(value.name) != value:
            yield f"output '{value.name}: {value.type}' is undefined"


def _node_problems(node: Node, defined: dict[str, Value], sizes: set[str]) -> Iterator[str]:
    for value in node.inputs:
        if defined.get(value.name) != value:
            yield f"'{_name(node)}' reads undefined '{value.name}: {value.type}'"
    if _well_typed.get(id(node)) is not node:
        found = list(_type_problems(node))
        yield from found
        if not found:
            _remember(node)
    yield from _attribute_problems(node, sizes)


_well_typed: dict[int, Node] = {}
"""Nodes whose types were found right. A node never changes, and most outlive a pass unchanged."""
_REMEMBERED = 1 << 14


def _remember(node: Node) -> None:
    if len(_well_typed) >= _REMEMBERED:
        _well_typed.clear()
    _well_typed[id(node)] = node  # holding the node keeps its id from being given to another


def _name(node: Node) -> str:
    return node.outputs[0].name if node.outputs else node.op.name


def _size_problems(graph: Graph) -> Iterator[str]:
    for position, name in enumerate(graph.sizes):
        if not name.isidentifier() or keyword.iskeyword(name) or name in _RESERVED:
            yield f"'{name}' cannot be the name of a size"
        if name in graph.sizes[:position]:
            yield f"size '{name}' is declared twice"
    for name, (low, high) in graph.size_ranges.items():
        if name not in graph.sizes:
            yield f"there are bounds of an undeclared size '{name}'"
        if low < 0 or (high is not None and high < low):
            yield f"size '{name}' cannot be between {low} and {high}"


def _definition(value: Value, defined: dict[str, Value], sizes: set[str]) -> Iterator[str]:
    name = value.name
    if name in defined:
        yield f"'{name}' is defined twice"
    if name in sizes:
        yield f"'{name}' is a size, too"
    if not name.isidentifier() or keyword.iskeyword(name) or name in _RESERVED:
        yield f"'{name}' cannot be the name of a value"
    if unknown := _unknown(value.type.shape, sizes):
        yield f"'{name}: {value.type}' reads undeclared size {unknown}"


def _unknown(found: Iterable[Expr], sizes: set[str]) -> str:
    """The names that expressions read and that are no sizes."""
    return ", ".join(f"'{n}'" for n in sorted(names_in(found) - sizes))


def _type_problems(node: Node) -> Iterator[str]:
    declared = tuple(v.type for v in node.outputs)
    try:
        found = node.op.infer(*(v.type for v in node.inputs))
    except DlcError as error:
        yield f"'{_name(node)}': {error}"
        return
    except TypeError:
        yield f"'{_name(node)}': {node.op.name} does not take {len(node.inputs)} operands"
        return
    inferred = (found,) if isinstance(found, TensorType) else found
    if inferred != declared:
        types = [" ".join(map(str, t)) for t in (declared, inferred)]
        yield f"'{_name(node)}' is declared {types[0]} but is {types[1]}"


def _attribute_problems(node: Node, sizes: set[str]) -> Iterator[str]:
    found = list(attribute_exprs(node.op))
    if unknown := _unknown(found, sizes):
        yield f"'{_name(node)}' has an attribute that reads undeclared size {unknown}"
    for body in bodies(node.op):
        yield from (f"in '{body.name}': {problem}" for problem in _problems(body))
        if foreign := sorted(graph_reads(body) - sizes - set(inner_sizes(node.op))):
            yield f"'{body.name}' has sizes that are unknown outside: {', '.join(foreign)}"
