"""The graph that choose_layouts writes: which form each value has, and the transforms between.

Every value of the old graph has a planar form, a blocked form or both; the one that is missing is
made when somebody asks for it, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.layout import Channels, group_layout, split_axis, spread
from dlc.graph.op import Array, Fuse, Op
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Sub, Where
from dlc.graph.ops.channels import PackChannels, UnpackChannels
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.layout import ChannelShuffle, MoveChannels
from dlc.graph.ops.norm import InstanceNorm
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Concat, Pad, Reshape, Slice
from dlc.graph.pass_ import PassContext
from dlc.graph.signs import is_nonnegative
from dlc.te.expr import Const, index
from dlc.te.types import TensorType, const_size, is_const

BLOCKED_READERS = (
    *(Conv, ConvTranspose, MaxPool, AveragePool, InstanceNorm),
    *(Resize, Concat, Slice, Pad, Reduce, ChannelShuffle),
)
"""Operators that choose_layouts can write in blocked form, besides elementwise ones."""


LOOK_AHEAD = 4
"""How many elementwise operators stand between a convolution and what its result is joined with."""
_WIDE_FLOATS = (DType.F32, DType.F64, DType.BF16)
"""Floats that hold every integer as a finite number, if not exactly."""
_FAR = 2.0**100
"""Constants of smaller magnitudes keep their sums with integers finite in these."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The blocked form of a value.

    `idle` is what every lane without a channel holds; None where that differs from lane to lane
    but is finite, as far as the data is.
    """

    value: Value
    channels: Channels
    idle: float | None = 0.0


class Blocking:
    """Writes the new graph, node by node in the order of the old one."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph = graph
        self.context = context
        self.block = context.channel_block
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = dict(graph.constants)
        self._arrays = {v.name: a for v, a in graph.constants.items()}
        self._planar: dict[str, Value] = {v.name: v for v in (*graph.inputs, *graph.constants)}
        self._blocked: dict[str, Blocked] = {}
        self._names = {v.name for n in graph.nodes for v in n.outputs}
        self._names |= {v.name for v in self._planar.values()} | set(graph.sizes)
        self._source = ""
        self._hint = ""

    def array(self, value: Value) -> Array | None:
        """The elements of a constant of the old graph."""
        return self._arrays.get(value.name)

    def is_nonnegative(self, value: Value) -> bool:
        """Whether every element of an old value is surely at least 0, or NaN."""
        return is_nonnegative(self.graph, value)

    def wants_blocked(self, value: Value) -> bool:
        """Whether anybody who reads an old value might read its blocked form."""
        users = self.graph.users.get(value, ())
        return any(u.op.fuse is Fuse.ELEMENTWISE or type(u.op) in BLOCKED_READERS for u in users)

    def find_blocked(self, value: Value) -> Blocked | None:
        """The blocked form of an old value, if it has one."""
        return self._blocked.get(value.name)

    def blocked(self, value: Value) -> Blocked:
        """The blocked form of an old value; packed here if need be."""
        found = self._blocked.get(value.name)
        if found is None:
            channels = Channels.of(self.block, const_size(value.type.shape[1]))
            found = Blocked(self._pack(self.planar(value), channels), channels)
            self._blocked[value.name] = found
        return found

    def blocked_at(self, value: Value, channels: Channels) -> Value:
        """The blocked form of an old value with its channels at these lanes."""
        form = self._blocked.get(value.name)
        if form is None:
            form = self._blocked[value.name] = Blocked(self.repacked(value, channels), channels)
        return form.value if form.channels == channels else self.repacked(value, channels)

    def planar(self, value: Value) -> Value:
        """The planar form of an old value; unpacked here if need be."""
        found = self._planar.get(value.name)
        if found is None:
            found = self._planar[value.name] = self._unpack(value, self._blocked[value.name])
        return found

    def repacked(self, value: Value, channels: Channels) -> Value:
        """An old value with its channels at other lanes than it has them now."""
        form = self._blocked.get(value.name)
        if form is not None:
            moved = self.move(form, form.channels.lanes, channels, f"{value.name}_moved")
            if not channels.has_idle_lanes or moved.idle == 0.0:
                return moved.value
        planar = self.planar(value)
        plain = Channels.of(self.block, channels.count)
        if channels.is_contiguous:
            return self._pack(planar, channels)
        if channels.order:
            form = Blocked(self._pack(planar, plain), plain)
            return self.move(form, plain.lanes, channels, f"{value.name}_moved").value
        parts: list[Value] = []
        start = 0
        n, _, *spatial = planar.type.shape
        for size in channels.segments:
            op = Slice(
                starts=as_sizes((0, start, *(0 for _ in spatial))),
                sizes=as_sizes((n, size, *spatial)),
            )
            part = self.call(op, planar, hint=f"{value.name}_part")
            parts.append(self._pack(part, Channels.of(self.block, size)))
            start += size
        return self.call(Concat(axis=1), *parts, hint=f"{value.name}_blocked")

    def move(self, form: Blocked, lanes: Array, channels: Channels, hint: str) -> Blocked:
        """A blocked tensor whose channel i is what stands in lane `lanes[i]` now.

        A lane that is idle then is a copy of one that is idle now, or of any where none is.
        """
        every = np.arange(form.channels.blocks * self.block)
        unused = np.setdiff1d(every, form.channels.lanes)
        spare = int(unused[0]) if len(unused) else 0
        sources = split_axis(spread(lanes, 0, channels, spare), 0, self.block)
        table = self.table(sources, f"{hint}_lanes")
        moved = self.call(MoveChannels(), form.value, table, hint=hint)
        return Blocked(moved, channels, form.idle if len(unused) else None)

    def finds_channels(self, value: Value, depth: int = 0, *, least: int = 1) -> bool:
        """Whether all that read a value can read its channels in any order, by their weights.

        Convolutions of fewer than `least` results do not count as such.
        """
        users = self.graph.users.get(value, ())
        return bool(users) and all(self._finds(u, value, depth, least) for u in users)

    def _finds(self, user: Node, value: Value, depth: int, least: int) -> bool:
        weights = [self.array(v) for v in user.inputs if v != value]
        if value in self.graph.outputs or any(w is None for w in weights):
            return False
        match user.op:
            case Conv(groups=groups):
                (w, *_) = weights
                if w is None or value != user.inputs[0] or 0 in w.shape:
                    return False
                if groups == 1 or w.shape[1] > 1 or w.shape[0] != groups:
                    return len(w) >= least
            case MaxPool() | AveragePool():
                pass
            case _ if user.op.fuse is not Fuse.ELEMENTWISE or len(user.outputs) != 1:
                return False
        return depth < LOOK_AHEAD and self.finds_channels(user.output, depth + 1, least=least)

    def wanted_channels(self, value: Value, depth: int = 0) -> Channels | None:
        """Where the channels of a value should stand to meet what it is joined with or read by."""
        for user in self.graph.users.get(value, ()):
            found = self._wanted_by(user, value, depth)
            if found is not None and is_const(value.type.shape[1], found.count):
                return found
        return None

    def _wanted_by(self, user: Node, value: Value, depth: int) -> Channels | None:
        if len(user.outputs) != 1 or user.output.type.rank != value.type.rank:
            return None
        result = user.output
        match user.op:
            case Conv(groups=groups) if groups > 1 and value == user.inputs[0]:
                weights = self.array(user.inputs[1])
                if weights is None or weights.shape[1] * groups == 0:
                    return None
                if self.fits_lanes(user):
                    return Channels.of(self.block, len(weights))
                if weights.shape[1] > 1 or weights.shape[0] != groups:
                    oc, per_group = weights.shape[:2]
                    return group_layout(per_group, oc // groups, groups, self.block).inputs
            case Concat(axis=1):
                return self._wanted_part(user, value, depth)
            case MaxPool() | AveragePool():
                pass
            case _ if user.op.fuse is Fuse.ELEMENTWISE:
                others = (self.find_blocked(v) for v in user.inputs if v != value)
                known = [f.channels for f in others if f is not None]
                same = [c for c in known if is_const(value.type.shape[1], c.count)]
                if same:
                    return same[0]
            case _:
                return None
        return self.wanted_channels(result, depth + 1) if depth < LOOK_AHEAD else None

    def _wanted_part(self, user: Node, value: Value, depth: int) -> Channels | None:
        """Where the channels of a part of a concatenation should stand."""
        whole = self.wanted_channels(user.output, depth + 1) if depth < LOOK_AHEAD else None
        before = user.inputs[: user.inputs.index(value)]
        sizes = [v.type.shape[1] for v in (*before, value)]
        if whole is None or not all(isinstance(s, Const) for s in sizes):
            return None
        *starts, size = (const_size(s) for s in sizes)
        found = whole.part(sum(starts), size)
        return found[1] if found is not None else None

    def fits_lanes(self, conv: Node) -> bool:
        """Whether groups of as many results as channels lie within blocks of float32."""
        op, (_, w) = conv.op, conv.inputs
        if not isinstance(op, Conv) or self.context.target.gpu or w.type.dtype is not DType.F32:
            return False
        results, per_group = (const_size(n) for n in w.type.shape[:2])
        within = 1 < per_group < self.block and self.block % per_group == 0
        return within and results == per_group * op.groups

    def keep(self, node: Node) -> None:
        """Copy an old node, on planar operands."""
        self.nodes.append(replace(node, inputs=tuple(map(self.planar, node.inputs))))
        self._planar.update({v.name: v for v in node.outputs})

    def set_blocked(self, old: Value, form: Blocked) -> None:
        """Note the blocked form of an old value."""
        self._blocked[old.name] = form

    def set_planar(self, old: Value, new: Value) -> None:
        """Note the planar form of an old value."""
        assert old.type == new.type, f"'{old.name}': {old.type} became {new.type}"
        self._planar[old.name] = new

    def call(self, op: Op, *inputs: Value, hint: str = "") -> Value:
        """Add a node of one result."""
        node = call(op, *inputs, name=self.fresh(hint or self._hint), source=self._source)
        self.nodes.append(node)
        return node.output

    def call_as(self, op: Op, *inputs: Value, old: Value) -> Value:
        """Add a node whose result has the name and type of an old value."""
        node = call(op, *inputs, name=old.name, source=self._source)
        self.nodes.append(node)
        return node.output

    def constant(self, array: Array, like: Value, hint: str) -> Value:
        """Add a constant of the element type of `like`."""
        contiguous = np.ascontiguousarray(round_to(array, like.type.dtype)).reshape(array.shape)
        value = Value(self.fresh(hint), TensorType(array.shape, like.type.dtype))
        self.constants[value] = contiguous
        return value

    def table(self, lanes: Array, hint: str) -> Value:
        """Add a constant that says where channels stand."""
        value = Value(self.fresh(hint), TensorType(lanes.shape, DType.I32))
        self.constants[value] = lanes.astype(np.int32)
        return value

    def at(self, node: Node) -> None:
        """The nodes to come stand for this old one, and are named after it."""
        self._source = node.source
        self._hint = f"{node.outputs[0].name}_blocked"

    def remember(self) -> Callable[[], None]:
        """What takes back all that is written from now on; `finish` drops unread constants."""
        count, planar, blocked = len(self.nodes), dict(self._planar), dict(self._blocked)

        def take_back() -> None:
            del self.nodes[count:]
            self._planar, self._blocked = planar, blocked

        return take_back

    def finish(self) -> Graph:
        """The new graph."""
        for value in self.graph.outputs:
            self.planar(value)
        read = {v.name for n in self.nodes for v in n.inputs}
        read |= {v.name for v in self.graph.outputs}
        constants = {v: a for v, a in self.constants.items() if v.name in read}
        return replace(self.graph, nodes=tuple(self.nodes), constants=constants)

    def fresh(self, hint: str) -> str:
        """A name nobody has: the hint itself, or the hint and a number."""
        name, count = hint, 1
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        return name

    def _pack(self, value: Value, channels: Channels) -> Value:
        if _is_pixel(value.type) and not channels.has_idle_lanes:
            n, _, *spatial = value.type.shape
            shape = as_sizes((n, channels.blocks, *spatial, channels.block))
            return self.call(Reshape(shape=shape), value, hint=f"{value.name}_blocked")
        return self.call(PackChannels(block=self.block), value, hint=f"{value.name}_blocked")

    def _unpack(self, old: Value, form: Blocked) -> Value:
        channels = form.channels
        if channels.order:
            plain = Channels.of(self.block, channels.count)
            form = self.move(form, channels.lanes, plain, f"{old.name}_moved")
            channels = plain
        if channels.is_contiguous:
            if _is_pixel(old.type) and not channels.has_idle_lanes:
                return self.call_as(Reshape(shape=old.type.shape), form.value, old=old)
            return self.call_as(UnpackChannels(channels=index(channels.count)), form.value, old=old)
        parts: list[Value] = []
        start = 0
        for size in channels.segments:
            segment = Channels.of(self.block, size)
            piece = self.slice_blocks(form.value, start, segment.blocks)
            parts.append(
                self.call(UnpackChannels(channels=index(size)), piece, hint=f"{old.name}_part")
            )
            start += segment.blocks
        return self.call_as(Concat(axis=1), *parts, old=old)

    def without_idle(self, value: Value, channels: Channels) -> Value:
        """A blocked tensor whose idle lanes are finite, whatever the data is: zeros, or integers.

        A sum of products holds infinity times 0 there, or NaN, which the next one must not read.
        Integers have neither, nor what is made of them, and their products with weights of 0 are 0.
        """
        if not channels.has_idle_lanes or self._is_made_of_integers(value):
            return value
        lanes = np.zeros(channels.blocks * self.block, bool)
        lanes[channels.lanes] = True
        ones = (1,) * (value.type.rank - 3)
        mask = lanes.reshape(1, channels.blocks, *ones, self.block)
        used = Value(self.fresh(f"{value.name}_used"), TensorType(mask.shape, DType.BOOL))
        self.constants[used] = mask
        return self.call(Where(), used, value, self.zero(value))

    def _is_made_of_integers(self, value: Value) -> bool:
        """Whether a new value is finite: integers, or these as floats, less some constants."""
        while value.type.dtype in _WIDE_FLOATS:
            maker = next((n for n in reversed(self.nodes) if value in n.outputs), None)
            if maker is None or not isinstance(maker.op, Cast | Add | Sub):
                return False
            value, *others = maker.inputs
            known = [self.constants[v] for v in others if v in self.constants]
            if len(known) < len(others) or not all((np.abs(a) < _FAR).all() for a in known):
                return False
        return value.type.dtype.is_int

    def zero(self, like: Value) -> Value:
        """A constant of one element, 0, of the type of `like`."""
        return self.constant(np.zeros(()), like, f"{like.name}_zero")

    def slice_blocks(self, value: Value, start: int, blocks: int) -> Value:
        """Some blocks of a blocked tensor."""
        shape = value.type.shape
        op = Slice(
            starts=as_sizes((0, start, *(0 for _ in shape[2:]))),
            sizes=as_sizes((shape[0], blocks, *shape[2:])),
        )
        return self.call(op, value, hint=f"{value.name}_blocks")


def _is_pixel(type_: TensorType) -> bool:
    """Whether all spatial sizes are 1, so that blocking moves nothing."""
    return all(is_const(s, 1) for s in type_.shape[2:])
