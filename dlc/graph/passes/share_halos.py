"""Make tensors with the zeros around them that convolutions read, once for all readers.

Before:
    def main(x: f32[1, 2, 7, 9, 8]):
        a: f32[1, 2, 7, 9, 8] = relu(x)
        p: f32[1, 2, 9, 11, 8] = pad(a, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))
        q: f32[1, 2, 11, 13, 8] = pad(a, before=(0, 0, 2, 2, 0), after=(0, 0, 2, 2, 0))
        b: f32[1, 2, 9, 11, 8] = exp(p)
        c: f32[1, 2, 11, 13, 8] = exp(q)
        d: f32[1, 2, 7, 9, 8] = exp(a)
        return b, c, d

After:
    def main(x: f32[1, 2, 7, 9, 8]):
        a: f32[1, 2, 7, 9, 8] = relu(x)
        a_halo: f32[1, 2, 11, 13, 8] = pad(a, before=(0, 0, 2, 2, 0), after=(0, 0, 2, 2, 0))
        a_view: f32[1, 2, 9, 11, 8] = slice(a_halo, starts=(0, 0, 1, 1, 0), sizes=(1, 2, 9, 11, 8))
        b: f32[1, 2, 9, 11, 8] = exp(a_view)
        c: f32[1, 2, 11, 13, 8] = exp(a_halo)
        a_view_2: f32[1, 2, 7, 9, 8] = slice(a_halo, starts=(0, 0, 2, 2, 0), sizes=(1, 2, 7, 9, 8))
        d: f32[1, 2, 7, 9, 8] = exp(a_view_2)
        return b, c, d

Position: after choose_layouts, which puts a pad before each convolution that needs one; before
concat_by_offset and fuse_groups, which join the pad to the kernel that makes the tensor.

Where the blocks of a tensor would begin in few sets of the second cache, as those of 32 x 32 pixels
do, it gets one more line: a convolution reads a pixel of all blocks, one after the other.

The largest halo wins; who needs less, or none, reads a view. A concatenation is made of parts that
have its halo already, so that each part's kernel writes it; where a pad makes a part, the halo of
the part lies around that of its operand. Inputs of the model, and what is handed out or reshaped,
keep a plain tensor besides the padded copy.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Op
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.conv_gathered import ConvGathered
from dlc.graph.ops.shape import Concat, Pad, Slice
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.sizes import known_sizes
from dlc.graph.strips import passes_in_strips
from dlc.graph.views import reads_views, writes_boxes, zero_pad_amounts
from dlc.te.expr import Const

WAYS = 16  # lines in a set of the second cache
MAX_SHARE = WAYS // 2  # of them, that one pixel of all blocks may take

Halo = tuple[tuple[int, int], ...]  # for each axis the zeros before and after


@graph_pass(after=("choose_layouts",), bodies=True)
def share_halos(graph: Graph, context: PassContext) -> Graph:
    """Give each tensor the largest halo anybody reads."""
    halos = _halos(graph, context.target.l2_bytes // WAYS)
    return _Writer(graph, halos).run() if halos else graph


def _halos(graph: Graph, period: int) -> dict[str, Halo]:
    """The halo of each value that is made with one.

    Bytes that are multiples of `period` apart share a set of the second cache.
    """
    halos: dict[str, Halo] = {}
    for node in graph.nodes:
        amounts = zero_pad_amounts(node)
        if amounts is not None and _can_grow(graph, node.inputs[0]):
            name = node.inputs[0].name
            halos[name] = _larger(halos.get(name, amounts), amounts)
    for node in graph.nodes:
        for value in node.outputs:
            halo = halos.get(value.name, ((0, 0),) * value.type.rank)
            if _reads_all_blocks(graph, value) and _crowds(value, halo, period):
                halos[value.name] = (*halo[:2], (halo[2][0], halo[2][1] + 1), *halo[3:])
    changed = True
    while changed:  # a halo spreads between a concatenation and its parts, and on to others
        changed = False
        for node in graph.nodes:
            if isinstance(node.op, Concat):
                changed |= _spread(graph, node, node.op.axis % node.output.type.rank, halos)
            elif isinstance(node.op, Pad):
                changed |= _deepen(node, halos)
    return halos


def _reads_all_blocks(graph: Graph, value: Value) -> bool:
    """Whether a value can have one more line, and a convolution reads pixels of all its blocks.

    Those of a strip lie elsewhere.
    """
    if passes_in_strips(graph, value):
        return False
    padded = [u.output for u in graph.users.get(value, ()) if zero_pad_amounts(u) is not None]
    readers = [u for v in (value, *padded) for u in graph.users.get(v, ()) if v == u.inputs[0]]
    return any(isinstance(u.op, ConvBlocked | ConvGathered) for u in readers) and _can_grow(
        graph, value
    )


def _crowds(value: Value, halo: Halo, period: int) -> bool:
    """Whether more blocks begin in one set of the second cache than it may hold at a time."""
    _, *sizes = value.type.shape
    known = [int(n.value) for n in sizes if isinstance(n, Const)]
    if len(known) < len(sizes) or len(sizes) < 4 or period < 1:
        return False
    blocks, *image = (n + sum(h) for n, h in zip(known, halo[1:], strict=True))
    plane = prod(image) * value.type.dtype.size_bytes
    return blocks * gcd(plane, period) > MAX_SHARE * period


def _spread(graph: Graph, node: Node, axis: int, halos: dict[str, Halo]) -> bool:
    """Give a concatenation and its parts one halo; whether that changed any."""
    if not _can_grow(graph, node.output):
        return False
    members = [node.output, *(v for v in node.inputs if _is_own_part(graph, v, node))]
    wanted = [halos[v.name] for v in members if v.name in halos]
    if not wanted:
        return False
    common = wanted[0]
    for halo in wanted[1:]:
        common = _larger(common, halo)
    if common[axis] != (0, 0) or all(halos.get(v.name) == common for v in members):
        return False
    halos.update({v.name: common for v in members})
    return True


def _deepen(node: Node, halos: dict[str, Halo]) -> bool:
    """Give what is made with the zeros of a pad the halo of its result; whether that changed it."""
    amounts, halo = zero_pad_amounts(node), halos.get(node.output.name)
    before = halos.get(node.inputs[0].name)
    if amounts is None or halo is None or before is None:
        return False
    deep = _larger(before, _sum(amounts, halo))
    halos[node.inputs[0].name] = deep
    return deep != before


def _is_own_part(graph: Graph, value: Value, concat: Node) -> bool:
    """Whether a value is made right inside this concatenation: its first one."""
    users = (u for u in graph.users[value] if isinstance(u.op, Concat))
    return _can_grow(graph, value) and next(users) is concat


def _can_grow(graph: Graph, value: Value) -> bool:
    """Whether a value can be made inside a larger tensor that all its readers read."""
    if value in graph.outputs or not writes_boxes(graph.producers.get(value)):
        return False
    return all(reads_views(u) for u in graph.users.get(value, ()))


def _larger(a: Halo, b: Halo) -> Halo:
    pairs = zip(a, b, strict=True)
    return tuple((max(p[0], q[0]), max(p[1], q[1])) for p, q in pairs)


def _sum(a: Halo, b: Halo) -> Halo:
    pairs = zip(a, b, strict=True)
    return tuple((p[0] + q[0], p[1] + q[1]) for p, q in pairs)


class _Writer:
    """Writes the new graph; `padded` holds the values that are made with a halo."""

    def __init__(self, graph: Graph, halos: dict[str, Halo]) -> None:
        self.graph = graph
        self.halos = halos
        self.nodes: list[Node] = []
        self.padded: dict[str, Value] = {}
        self.views: dict[tuple[str, Halo], Value] = {}
        self.renamed: dict[str, Value] = {}
        self.names = {v.name for v in (*graph.inputs, *graph.constants)} | set(known_sizes(graph))
        self.names |= {v.name for n in graph.nodes for v in n.outputs}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            amounts = zero_pad_amounts(node)
            if amounts is not None and node.inputs[0].name in self.padded:
                if node.output in self.graph.outputs:
                    inner = self.read(node.inputs[0], node)
                    self.nodes.append(replace(node, inputs=(inner,)))
                elif halo := self.halos.get(node.output.name):
                    deep = self.view(node.inputs[0], _sum(amounts, halo), node)
                    self.padded[node.output.name] = deep
                else:
                    self.renamed[node.output.name] = self.view(node.inputs[0], amounts, node)
                continue
            if self.is_made_of_parts(node):
                self.concat(node, self.halos[node.output.name])
                continue
            inputs = tuple(self.read(v, node) for v in node.inputs)
            self.nodes.append(replace(node, inputs=inputs))
            if node.outputs[0].name in self.halos:
                halo = self.halos[node.output.name]
                self.padded[node.output.name] = self.pad(node.output, halo, node)
        return replace(self.graph, nodes=tuple(self.nodes))

    def is_made_of_parts(self, node: Node) -> bool:
        """Whether a concatenation's halo is that of its parts: there is none between them."""
        halo = self.halos.get(node.outputs[0].name)
        if halo is None or not isinstance(node.op, Concat):
            return False
        return halo[node.op.axis % node.output.type.rank] == (0, 0)

    def concat(self, node: Node, halo: Halo) -> None:
        """A concatenation of parts that have its halo."""
        parts = [
            self.padded[v.name]
            if self.halos.get(v.name) == halo
            else self.pad(self.read(v, node), halo, node)
            for v in node.inputs
        ]
        self.padded[node.output.name] = self.call(
            node.op, *parts, hint=f"{node.output.name}_halo", at=node
        )

    def read(self, value: Value, reader: Node) -> Value:
        """A value as it was, for a reader that needs no halo."""
        if value.name in self.padded:
            return self.view(value, ((0, 0),) * value.type.rank, reader)
        return self.renamed.get(value.name, value)

    def view(self, value: Value, halo: Halo, reader: Node) -> Value:
        """A value with a halo no larger than the one it is made with."""
        whole = self.padded[value.name]
        own = self.halos[value.name]
        if own == halo:
            return whole
        key = (value.name, halo)
        if key not in self.views:
            op = Slice(
                starts=as_sizes(o[0] - h[0] for o, h in zip(own, halo, strict=True)),
                sizes=tuple(n + h[0] + h[1] for n, h in zip(value.type.shape, halo, strict=True)),
            )
            self.views[key] = self.call(op, whole, hint=f"{value.name}_view", at=reader)
        return self.views[key]

    def pad(self, value: Value, halo: Halo, at: Node) -> Value:
        """A value with zeros around it."""
        op = Pad(before=as_sizes(h[0] for h in halo), after=as_sizes(h[1] for h in halo))
        return self.call(op, value, hint=f"{value.name}_halo", at=at)

    def call(self, op: Op, *inputs: Value, hint: str, at: Node) -> Value:
        """Add a node of one result."""
        name, count = hint, 1
        while name in self.names:
            count += 1
            name = f"{hint}_{count}"
        self.names.add(name)
        self.nodes.append(call(op, *inputs, name=name, source=at.source))
        return self.nodes[-1].output
