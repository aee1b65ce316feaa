"""Which values are activations that may lie in memory as bf16: see `store_narrow`.

The gain is counted in cycles for a vector of 16 elements: what the kernels that write and read it
wait less for memory, less their conversions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod

import numpy as np

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.copied import reads_widened, repeats_rows
from dlc.graph.edit import GraphEditor
from dlc.graph.estimate import elements
from dlc.graph.fusion import is_free
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.integers import integer_range
from dlc.graph.op import Fuse
from dlc.graph.ops.activation import Shrink, ThresholdedRelu
from dlc.graph.ops.binary import Mod
from dlc.graph.ops.channels import PackChannels, UnpackChannels
from dlc.graph.ops.conv_blocked import DepthwiseBlocked
from dlc.graph.ops.elementwise import Ceil, Floor, Round, Sign
from dlc.graph.ops.layout import (
    ChannelShuffle,
    DepthToSpace,
    Interleave,
    MoveChannels,
    SpaceToDepth,
)
from dlc.graph.ops.pairs import ConvPairs, MatMulPairs
from dlc.graph.ops.pairs_planar import PlanarPairs
from dlc.graph.ops.phases import JoinPhases, SplitPhases
from dlc.graph.ops.planes import DEPTH, ROWS
from dlc.graph.ops.planes_conv import ConvPlanes
from dlc.graph.ops.planes_matmul import MatMulPlanes
from dlc.graph.ops.planes_pair import MatMulPair
from dlc.graph.ops.planes_planar import ConvPlanarPlanes
from dlc.graph.ops.pool import Pool
from dlc.graph.ops.sample import GridSample, GridSamplePixels
from dlc.graph.ops.shape import Concat, Empty, Expand, Insert, Pad, Reshape, Slice, Transpose
from dlc.te.types import const_size

LEAST = 2048  # elements of a value that is worth looking at
NEAR = 1.0  # cycles saved for each vector that is written or read, in the second cache
FAR = 4.0  # and beyond it
NEAR_SHARE = 0.5  # of the second cache, up to which a value is still there when it is read
WIDEN = 1.0  # cycles to widen a vector, or to narrow it
SPLIT = 2.5  # cycles that a product needs less for a vector that it has not to round itself
PAIR_OF_VECTORS = (
    1.2  # cycles of an instruction that multiplies pairs in 16 lanes; measured on Zen 4
)
TILES = 23.0  # cycles of a product of tiles
WORTH = 0.05  # of the time of products around a value: the least gain for one more rounding
PASSES = 2  # of a reduction over what it reads

_MOVES = (
    Concat,
    Expand,
    Insert,
    Reshape,
    Slice,
    Transpose,
    PackChannels,
    UnpackChannels,
    MoveChannels,
    ChannelShuffle,
    Interleave,
    DepthToSpace,
    SpaceToDepth,
    SplitPhases,
    JoinPhases,
)
JUMPS = (Ceil, Floor, GridSample, GridSamplePixels, Mod, Round, Shrink, Sign, ThresholdedRelu)
_PAIRS = (ConvPairs, MatMulPairs, PlanarPairs)
_PRODUCTS = (ConvPlanes, ConvPlanarPlanes, MatMulPlanes, *_PAIRS)


def is_move(node: Node) -> bool:
    """Whether a node puts elements elsewhere, whatever their type."""
    if isinstance(node.op, Pad):
        fill = node.op.value
        return node.op.mode == "constant" and float(round_to(np.array(fill), DType.BF16)) == fill
    return isinstance(node.op, (*_MOVES, Empty)) or repeats_rows(node)


class Activations:
    """The values of float32 that are better kept as bf16, given the nodes of each kernel.

    Values that moves make of one another share their type: all of them are kept so, or none.
    """

    def __init__(self, graph: Graph, kernels: Iterable[tuple[Node, ...]], target: Target) -> None:
        self.graph, self.target = graph, target
        self.editor = GraphEditor(graph)
        self.kernels: dict[str, list[tuple[Node, ...]]] = {}  # by the names of what they make
        for members in kernels:
            for node in members:
                for value in node.outputs:
                    self.kernels.setdefault(value.name, []).append(members)

    def find(self) -> set[Value]:
        """The values to keep as bf16."""
        return {v for members in self._classes() if self._is_chosen(members) for v in members}

    def _classes(self) -> Iterator[list[Value]]:
        """Values of float32 that moves make of one another."""
        parent: dict[Value, Value] = {}

        def root(value: Value) -> Value:
            while (above := parent.setdefault(value, value)) is not value:
                value = above
            return value

        for node in self.graph.nodes:
            found = list(node.outputs)
            if is_move(node):
                found += node.inputs
            found = [v for v in found if v.type.dtype is DType.F32]
            for value in found:
                parent[root(value)] = root(found[0])
        classes: dict[Value, list[Value]] = {}
        for value in parent:
            classes.setdefault(root(value), []).append(value)
        yield from classes.values()

    def _is_chosen(self, members: list[Value]) -> bool:
        """Whether values that share elements are activations, and gain by it."""
        if max(map(elements, members)) < LEAST or not any(map(self._leaves, members)):
            return False
        readers = [(v, u) for v in members for u in self._readers(v)]
        if not all(map(self._may_narrow, members)) or not all(map(self._may_widen, readers)):
            return False
        made = [v for v in members if not self._is_memory(v)]
        if any(integer_range(self.editor, v) is not None for v in made):
            return False
        gain = self._gain(members, readers)
        if all(isinstance(u.op, _PRODUCTS) for _, u in readers):
            return gain > 0.0
        is_between = all(v in self.rounded for v in made) and self.wanted.intersection(made)
        return bool(is_between) and gain > max(0.0, WORTH * self._work(made, readers))

    def _leaves(self, value: Value) -> bool:
        """Whether a kernel reads a value that another one makes."""
        own = self.kernels.get(value.name, ())
        return any(
            all(kernel not in own for kernel in self._kernels_of(u))
            for u in self.graph.users.get(value, ())
        )

    def _may_narrow(self, value: Value) -> bool:
        """Whether the kernel that makes a value can round it; that of an input is its reader's."""
        maker = self.graph.producers.get(value)
        if value in self.graph.outputs or value in self.graph.constants:
            return False
        if maker is None:
            return len(self.graph.users.get(value, ())) == 1
        if is_move(maker):
            return True
        return len(maker.outputs) == 1 and maker.op.fuse is not Fuse.OPAQUE and not is_free(maker)

    def _is_memory(self, value: Value) -> bool:
        maker = self.graph.producers.get(value)
        return maker is not None and isinstance(maker.op, Empty)

    def _readers(self, value: Value) -> list[Node]:
        """The nodes that compute with a value."""
        return [u for u in self.graph.users.get(value, ()) if not is_move(u)]

    def _may_widen(self, reader: tuple[Value, Node]) -> bool:
        """Whether a kernel can read bf16, and its results change little with what it reads."""
        node = reader[1]
        if isinstance(node.op, _PRODUCTS):
            return True
        if self._is_attention(node) or not reads_widened(node.op):
            return False
        return all(_is_smooth(n) for members in self._kernels_of(node) for n in members)

    def _kernels_of(self, node: Node) -> list[tuple[Node, ...]]:
        """The kernels that a node is part of: a view may be in several."""
        return self.kernels.get(node.outputs[0].name, [])

    def _is_attention(self, node: Node) -> bool:
        """Whether a node is part of an attention on the engine, which rounds what it reads."""
        return any(isinstance(n.op, MatMulPair) for part in self._kernels_of(node) for n in part)

    def _gain(self, members: list[Value], readers: list[tuple[Value, Node]]) -> float:
        """Cycles that a run needs less, beyond the second cache many more than in it."""
        total = 0.0  # in elements
        for value in members:
            maker = self.graph.producers.get(value)
            if maker is not None and not is_move(maker):
                total += elements(value) * (self._saved(value) - WIDEN)
        for value, reader in readers:
            is_product = isinstance(reader.op, _PRODUCTS)
            gain = SPLIT if is_product else -WIDEN * _looks(reader)
            total += elements(value) * (self._saved(value) + gain)
        return total / ROWS

    def _work(self, made: list[Value], readers: list[tuple[Value, Node]]) -> float:
        """Cycles of the products that read values; of those that make them, where norms do."""
        nodes = [u for _, u in readers]
        if any(u.op.fuse is Fuse.REDUCTION for u in nodes):
            nodes += [n for v in made for part in self.kernels.get(v.name, ()) for n in part]
        return sum(elements(n.output) * _cycles(n) for n in nodes if isinstance(n.op, _PRODUCTS))

    def _saved(self, value: Value) -> float:
        """Cycles for a vector of which half the bytes are moved."""
        size = elements(value) * DType.F32.size_bytes
        return NEAR if size <= NEAR_SHARE * self.target.l2_bytes else FAR

    @cached_property
    def rounded(self) -> set[Value]:
        """What a product of bf16 has a part in."""
        found: set[Value] = set()
        for node in self.graph.nodes:
            inexact = isinstance(node.op, _PRODUCTS) and not getattr(node.op, "is_finite", False)
            if inexact or self._is_attention(node) or not found.isdisjoint(node.inputs):
                found.update(v for v in node.outputs if v.type.dtype is DType.F32)
        return found

    @cached_property
    def wanted(self) -> set[Value]:
        """What a product of bf16 is going to read, in one form or another."""
        found: set[Value] = set()
        for node in reversed(self.graph.nodes):
            reads = isinstance(node.op, _PRODUCTS) or self._is_attention(node)
            if reads or not found.isdisjoint(node.outputs):
                found.update(v for v in node.inputs if v.type.dtype is DType.F32)
        return found


def _cycles(node: Node) -> float:
    """Cycles for each result of a product."""
    shape = node.inputs[1].type.shape
    if isinstance(node.op, _PAIRS):
        _, *summands, _, _ = shape
        return prod(map(const_size, summands)) * PAIR_OF_VECTORS / ROWS
    _, blocks, *kernel = shape[:-4]
    return prod(map(const_size, (blocks, *kernel))) * DEPTH * TILES / (DEPTH * ROWS * ROWS)


def _looks(node: Node) -> float:
    """How often a kernel loads an element that a node reads; along a line it keeps them."""
    if isinstance(node.op, DepthwiseBlocked):
        kernel, stride = [const_size(k) for k in node.inputs[1].type.shape[1:-1]], node.op.stride
    elif isinstance(node.op, Pool):
        kernel, stride = list(node.op.kernel), node.op.stride
    else:
        return PASSES if node.op.fuse is Fuse.REDUCTION else 1
    return max(1.0, prod(kernel[:-1]) / prod(stride[:-1]))


def _is_smooth(node: Node) -> bool:
    """Whether a small change of a float never makes a large one of the result."""
    floats = any(v.type.dtype is DType.F32 for v in node.inputs)
    jumps = isinstance(node.op, JUMPS) or not all(v.type.dtype.is_float for v in node.outputs)
    return not (floats and jumps)
