"""A scheduled nest as a tree of loops and stores with numbers of their own, and as text.

Source: Chen et al., Learning to Optimize Tensor Programs (NeurIPS 2018), section 3.1 and the
supplement: the low-level loop program as a tree.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from dlc.autotune.features import operations
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import Alloc, Block, For, Func, If, Invoke, LoopKind, Scope, Stmt, Store

_KINDS = tuple(LoopKind)
_OPERATIONS = ("add", "mul", "div", "minmax", "special", "integer", "select")
WIDTH = 2 + len(_KINDS) + len(_OPERATIONS) + 3
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Node:
    """A loop, a condition or a store; the root is the function."""

    numbers: tuple[float, ...]
    children: tuple[Node, ...] = ()


def tree_of(func: Func, sizes: Mapping[str, int]) -> Node:
    """The tree of a scheduled function."""
    registers: set[str] = set()
    return Node(_numbers(), tuple(_nodes(func.body, sizes, registers)))


def print_tree(root: Node) -> str:
    """A tree as JSON: of each node the numbers that are not 0, after their places; its children."""
    return json.dumps(_to_json(root), separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def parse_tree(text: str) -> Node | None:
    """Read what `print_tree` wrote; None for anything else. Equal texts give one object."""
    try:
        return _from_json(json.loads(text))
    except (ValueError, TypeError, IndexError):
        return None


def _to_json(node: Node) -> list[Any]:
    numbers = [x for at, n in enumerate(node.numbers) if n for x in (at, round(n, _DIGITS))]
    return [numbers, *map(_to_json, node.children)]


def _from_json(data: list[Any]) -> Node:
    pairs, *children = data
    numbers = [0.0] * WIDTH
    for at, number in zip(pairs[::2], pairs[1::2], strict=True):
        numbers[at] = float(number)
    return Node(tuple(numbers), tuple(_from_json(child) for child in children))


def _nodes(stmt: Stmt, sizes: Mapping[str, int], registers: set[str]) -> list[Node]:
    match stmt:
        case For(_, extent, kind, body, notes):
            count = max(0, evaluate_size(extent, sizes))
            written = max((n for _, n in notes), default=1)
            own = _numbers(extent=log2(1 + count), kind=kind, written=log2(written))
            return [Node(own, tuple(_nodes(body, sizes, registers)))]
        case Store() | Invoke():
            to_register = isinstance(stmt, Store) and stmt.buffer in registers
            return [Node(_numbers(stmt=stmt, to_register=to_register))]
        case If(_, body):
            return [Node(_numbers(guard=True), tuple(_nodes(body, sizes, registers)))]
        case Alloc(buffer, scope, body):
            if scope is Scope.REGISTER:
                registers.add(buffer.name)
            return _nodes(body, sizes, registers)
        case Block(stmts):
            return [node for child in stmts for node in _nodes(child, sizes, registers)]


def _numbers(
    *,
    extent: float = 0.0,
    kind: LoopKind | None = None,
    written: float = 0.0,
    stmt: Store | Invoke | None = None,
    to_register: bool = False,
    guard: bool = False,
) -> tuple[float, ...]:
    ops = operations(stmt) if stmt is not None else dict.fromkeys(_OPERATIONS, 0.0)
    return (
        extent, written, *(float(kind is k) for k in _KINDS), *(ops[name] for name in _OPERATIONS),
        float(stmt is not None), float(to_register), float(guard),
    )  # fmt: skip
