"""The optional cost model: a recurrent network over the tree of loops. Needs the extra `torch`.

A node is a loop or a store, with numbers of its own; its state is a gated unit over those numbers
and the sum of its children's states. The state of the root gives the prediction.

Source: Chen et al., Learning to Optimize Tensor Programs (NeurIPS 2018), section 3.1 and the
supplement: TreeGRU on the low-level loop program.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from dlc.autotune.cost_model import MIN_SAMPLES, Description, Sample
from dlc.autotune.loop_tree import WIDTH, Node, parse_tree
from dlc.core.errors import UserError

_STATE = 48
_EPOCHS = 150
_RATE = 1e-2


class TreeGRU:
    """Learns scores of nests from their trees of loops; see `CostModel`."""

    reads_trees = True

    def __init__(self, *, seed: int = 0) -> None:
        try:
            import torch
        except ImportError as error:
            hint = "pip install 'dlc[torch]'"
            raise UserError(detail="this cost model needs torch", hint=hint) from error
        self.seed = seed
        self._torch: Any = torch
        self._cell: Any = None
        self._head: Any = None

    @property
    def is_ready(self) -> bool:
        """Whether it learned enough to be asked."""
        return self._cell is not None

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn; with too few samples it stays as it is."""
        trees = [(parse_tree(s.seen.tree), s.score) for s in samples if isfinite(s.score)]
        good = [(root, score) for root, score in trees if root is not None]
        if len(good) < MIN_SAMPLES or len({score for _, score in good}) < 2:
            return
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)  # the matrices are small, and workers need the other cores
        try:
            self._train([root for root, _ in good], [score for _, score in good])
        finally:
            self._torch.set_num_threads(threads)

    def predict(self, seen: Sequence[Description]) -> list[float]:
        """See `CostModel`; 0 for what has no tree, and for all where the model is not ready."""
        roots = [parse_tree(d.tree) for d in seen]
        known = [root for root in roots if root is not None]
        if not self.is_ready or not known:
            return [0.0] * len(seen)
        with self._torch.no_grad():
            scores = iter(self._forward(_Levels(known, self._torch)).tolist())
        return [0.0 if root is None else next(scores) for root in roots]

    def _train(self, roots: list[Node], scores: list[float]) -> None:
        torch = self._torch
        with torch.random.fork_rng(devices=[]):  # the numbers of others stay as they are
            torch.manual_seed(self.seed)
            self._cell, self._head = torch.nn.GRUCell(WIDTH, _STATE), torch.nn.Linear(_STATE, 1)
        parameters = [*self._cell.parameters(), *self._head.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=_RATE)
        wanted = torch.tensor(scores, dtype=torch.float32)
        levels = _Levels(roots, torch)
        for _ in range(_EPOCHS):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(self._forward(levels), wanted).backward()
            optimizer.step()

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
