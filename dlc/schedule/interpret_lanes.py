"""Loops of the oracle that run at once, on NumPy arrays: those whose iterations share no element.

One iteration after another costs Python's time for every element. All may run together where each
buffer that the loop stores to is indexed along one dimension by the loop's own variable, in one
and the same way: then no iteration touches what another does, and every order gives the same bits,
but for the signs of NaN.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
_FEWEST = 8  # iterations; fewer are faster one by one: an array costs as much as some elements
_ARITHMETIC = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift,
)  # fmt: skip


def loops_at_once(tree: ast.AST, same: Mapping[str, str]) -> frozenset[ast.AST]:
    """The loops all of whose iterations may run together: no loop inside of one is another.

    `same` has the outputs that are stored in the memory of an input.
    """
    found = set[ast.AST]()

    def visit(node: ast.AST) -> bool:
        inside = [visit(child) for child in ast.iter_child_nodes(node)]
        if any(inside) or not (isinstance(node, ast.For) and _is_at_once(node, same)):
            return any(inside)
        found.add(node)
        return True

    visit(tree)
    return frozenset(found)


def _is_at_once(loop: ast.For, same: Mapping[str, str]) -> bool:
    match _extent(loop):
        case ast.Constant(int(count)) if count < _FEWEST:
            return False
    lane = loop_variable(loop)
    if not all(_is_of_arrays(statement, lane) for statement in loop.body):
        return False
    changing = {loop_variable(node) for node in ast.walk(loop) if isinstance(node, ast.For)}
    return all(_apart(indices, lane, changing) for indices in _touched(loop, same))


def loop_variable(loop: ast.For) -> str:
    """The name of a loop's variable."""
    assert isinstance(loop.target, ast.Name)
    return loop.target.id


def mentions(node: ast.AST, name: str) -> bool:
    """Whether a name occurs in a tree."""
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


def lanes(extent: int, **notes: int) -> list[Lanes]:
    """What such a loop runs through: one array of all its iterations."""
    return [np.arange(extent)] if extent > 0 else []


def kept(of: Lanes, condition: Lanes) -> list[Lanes]:
    """The iterations in which a condition holds, for a loop in the place of an `if`."""
    condition = np.broadcast_to(condition, of.shape)  # one for all where all chose alike before
    return [of[condition]] if condition.any() else []


def choose(
    condition: Lanes, then: Callable[[Lanes], Any], other: Callable[[Lanes], Any], of: Lanes
) -> Any:
    """`then if condition else other`, each computed in its own iterations alone."""
    condition = np.broadcast_to(condition, of.shape)
    if condition.all():
        return then(of)
    if not condition.any():
        return other(of)
    yes, no = then(of[condition]), other(of[~condition])
    result = np.empty(of.shape, yes.dtype if hasattr(yes, "dtype") else np.asarray(no).dtype)
    result[condition], result[~condition] = yes, no
    return result


def _extent(loop: ast.For) -> ast.expr:
    assert isinstance(loop.iter, ast.Call)
    return loop.iter.args[0]


def _is_of_arrays(statement: ast.stmt, lane: str) -> bool:
    """Whether a statement means the same where the variable stands for many iterations."""
    match statement:
        case ast.Assign([ast.Subscript() as target], value) | ast.AugAssign(
            ast.Subscript() as target, _, value
        ):
            return _is_elementwise(target, lane) and _is_elementwise(value, lane)
        case ast.If(test, body):
            return _is_elementwise(test, lane) and all(_is_of_arrays(s, lane) for s in body)
        case ast.For(_, _, body):
            return not mentions(_extent(statement), lane) and all(
                _is_of_arrays(s, lane) for s in body
            )
        case ast.Pass():
            return True
        case _:
            return False


def _is_elementwise(expr: ast.expr, lane: str) -> bool:
    for node in ast.walk(expr):
        match node:
            case ast.UnaryOp(ast.Not(), inner) if mentions(inner, lane):
                return False
            case ast.BinOp(left, op, right) if not isinstance(op, _ARITHMETIC):
                if mentions(left, lane) or mentions(right, lane):
                    return False
            case _:
                pass
    return True


def _touched(loop: ast.For, same: Mapping[str, str]) -> Iterator[list[list[ast.expr]]]:
    """All indices, loaded from and stored to, of each buffer that a loop stores to."""
    indices: dict[str, list[list[ast.expr]]] = {}
    stored: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript):
            assert isinstance(node.value, ast.Name)
            name = same.get(node.value.id, node.value.id)
            at = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            indices.setdefault(name, []).append(at)
            if isinstance(node.ctx, ast.Store):
                stored.add(name)
    return (indices[name] for name in stored)


def _apart(indices: list[list[ast.expr]], lane: str, changing: set[str]) -> bool:
    """Whether, along some dimension, different iterations always have different indices."""
    return any(
        _moves(along[0], lane, changing) and len({ast.dump(index) for index in along}) == 1
        for along in zip(*indices, strict=False)
    )


def _moves(index: ast.expr, lane: str, changing: set[str]) -> bool:
    """Whether an index is the variable, or that added to what stays as it is meanwhile."""
    match index:
        case ast.Name(name):
            return name == lane
        case ast.BinOp(rest, ast.Add(), ast.Name(name)) if name == lane:
            return _stays(rest, changing)
        case ast.BinOp(ast.Name(name), ast.Add(), rest) if name == lane:
            return _stays(rest, changing)
        case _:
            return False


def _stays(expr: ast.expr, changing: set[str]) -> bool:
    # What it loads stays, too: an element that the loop stores to is of one iteration alone.
    return not any(mentions(expr, name) for name in changing)
