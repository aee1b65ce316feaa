"""The optional cost model: a recurrent network over the tree of loops. Needs the extra `torch`.

A node is a loop or a store, with numbers of its own; its state is a gated unit over those numbers
and the sum of its children's states. The state of the root gives the prediction.

Source: Chen et al., Learning to Optimize Tensor Programs (NeurIPS 2018), section 3.1 and the
supplement: TreeGRU on the low-level loop program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from dlc.autotune.features import operations
from dlc.core.errors import UserError
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import Alloc, Block, For, Func, If, Invoke, LoopKind, Scope, Stmt, Store

_KINDS = tuple(LoopKind)
_OPERATIONS = ("add", "mul", "div", "minmax", "special", "integer", "select")
WIDTH = 2 + len(_KINDS) + len(_OPERATIONS) + 3
_STATE = 48
_EPOCHS = 150
_RATE = 1e-2


@dataclass(frozen=True, slots=True)
class Node:
    """A loop, an allocation, a condition or a store."""

    numbers: tuple[float, ...]
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeSample:
    """A nest, and log2 of its speed-up over the default."""

    root: Node
    score: float


def tree_of(func: Func, sizes: dict[str, int]) -> Node:
    """The tree of a scheduled function."""
    registers: set[str] = set()
    return Node(_numbers(), tuple(_nodes(func.body, sizes, registers)))


class TreeGRU:
    """Learns a score for trees; the interface of `CostModel`, on trees instead of features."""

    def __init__(self, *, seed: int = 0) -> None:
        try:
            import torch
        except ImportError as error:
            hint = "pip install 'dlc[torch]'"
            raise UserError(detail="this cost model needs torch", hint=hint) from error
        torch.manual_seed(seed)
        self._torch: Any = torch
        self._cell: Any = torch.nn.GRUCell(WIDTH, _STATE)
        self._head: Any = torch.nn.Linear(_STATE, 1)
        self._ready = False

    @property
    def is_ready(self) -> bool:
        """Whether it learned anything."""
        return self._ready

    def fit(self, samples: Sequence[TreeSample]) -> None:
        """Learn to order samples and to tell their scores."""
        if len(samples) < 2:
            return
        torch = self._torch
        parameters = [*self._cell.parameters(), *self._head.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=_RATE)
        wanted = torch.tensor([s.score for s in samples], dtype=torch.float32)
        levels = _Levels([s.root for s in samples], torch)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the matrices are small, and workers need the other cores
        try:
            for _ in range(_EPOCHS):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(self._forward(levels), wanted)
                loss.backward()
                optimizer.step()
        finally:
            torch.set_num_threads(threads)
        self._ready = True

    def predict(self, roots: Sequence[Node]) -> list[float]:
        """A number for each tree; a larger one is a faster nest."""
        if not self._ready or not roots:
            return [0.0] * len(roots)
        with self._torch.no_grad():
            return [float(x) for x in self._forward(_Levels(list(roots), self._torch))]

    def _forward(self, levels: _Levels) -> Any:
        """All trees at once, from the leaves up: nodes of one height make one batch."""
        torch = self._torch
        states = torch.zeros(0, _STATE)
        for numbers, children, parents in levels.batches:
            below = torch.zeros(len(numbers), _STATE)
            if len(children):
                below = below.index_add(0, parents, states[children])
            states = torch.cat([states, self._cell(numbers, below)])
        return self._head(states[levels.roots]).squeeze(-1)


class _Levels:
    """Nodes of some trees by height: their numbers, and which states they are made from."""

    def __init__(self, roots: Sequence[Node], torch: Any) -> None:
        heights: dict[int, int] = {}
        by_height: list[list[Node]] = []
        for root in roots:
            self._sort(root, heights, by_height)
        place = {id(n): i for i, n in enumerate(n for level in by_height for n in level)}
        self.batches = []
        for level in by_height:
            pairs = [(place[id(c)], at) for at, n in enumerate(level) for c in n.children]
            numbers = torch.tensor([n.numbers for n in level], dtype=torch.float32)
            children = torch.tensor([c for c, _ in pairs], dtype=torch.int64)
            parents = torch.tensor([p for _, p in pairs], dtype=torch.int64)
            self.batches.append((numbers, children, parents))
        self.roots = torch.tensor([place[id(r)] for r in roots], dtype=torch.int64)

    def _sort(self, node: Node, heights: dict[int, int], by_height: list[list[Node]]) -> int:
        if id(node) in heights:  # a tree that stands for several samples
            return heights[id(node)]
        below = [self._sort(c, heights, by_height) for c in node.children]
        height = heights[id(node)] = 1 + max(below, default=-1)
        while len(by_height) <= height:
            by_height.append([])
        by_height[height].append(node)
        return height


def _nodes(stmt: Stmt, sizes: dict[str, int], registers: set[str]) -> list[Node]:
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
