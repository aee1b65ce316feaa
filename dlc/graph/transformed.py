"""What convolutions take where they are transformed, and which can be: of kernels of three or more.

Larger tiles round more than direct sums do unless these are long; at precision "highest", short
sums are left to smaller tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.integers import integer_range
from dlc.graph.live_taps import live_share
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.winograd import Out, count_tiles, parts_of, positions, taps_of
from dlc.graph.pass_ import PassContext
from dlc.graph.pointwise import PAIR_RATE
from dlc.schedule.rules.transform import is_accurate
from dlc.schedule.rules.transform_plan import (
    FAR_BYTES,
    OPEN_STRIP,
    Shape,
    Volume,
    choose_plan,
    cycles,
)
from dlc.te.expr import Const, Expr, index
from dlc.te.types import TensorType, const_size

MARGIN = 0.9  # of the time of direct sums, that transformed ones may take
MOVED_MARGIN = 0.8  # the same, where images have to be moved for it
MOVES = 3  # times that bytes are moved which are written, and read again
DIRECT_SHARE = 0.85  # of the peak, that kernels without transforms reach
OPEN_SIZE = 64  # assumed where a size is known at run time only
TILES: Mapping[int, tuple[Out, ...]] = {  # by the axes that are transformed, the last ones
    2: ((2, 2), (2, 4), (4, 4), (3, 3)),
    1: ((2,), (4,), (3,)),
}
LEAST = 3  # of a kernel, along each of them
MAX_BYTES = 64 << 20  # of the transformed weights of a kernel of several parts
MAX_OUTER = 1  # axes before those: images of a volume, or lines of an image


def probe(op: ConvBlocked, x: TensorType, w: TensorType) -> Node:
    """A convolution of operands of these types, to be estimated."""
    values = (Value("x", x), Value("w", w), Value("y", op.infer(x, w)))
    return Node(op, values[:2], values[2:])


def moving_cycles(*images: TensorType) -> float:
    """The time to write images, and to read them where somebody puts their elements elsewhere.

    An open number of images counts as one.
    """
    elements = sum(prod(_constant(n) or 1 for n in image.shape) for image in images)
    return elements * DType.F32.size_bytes * MOVES / FAR_BYTES


def is_exact(editor: GraphEditor, node: Node) -> bool:
    """Whether products are of whole numbers, whose sums transforms would round."""
    return all(integer_range(editor, value) is not None for value in node.inputs)


def transformed_cycles(node: Node, context: PassContext) -> dict[Out, float]:
    """Estimates of the time of a convolution by each tile it may have, of all threads together.

    Empty for other operators, and for what has no transformed form.
    """
    axes = _axes(node.op, node, context) if isinstance(node.op, ConvBlocked) else 0
    if not axes:
        return {}
    target = context.target
    ob, cb, *kernel, c = _weights(node)
    n, _, *sizes, _ = node.output.type.shape
    outer, of_tile = sizes[:-axes], sizes[-axes:]
    volume = _volume(node, _constant(outer[0]) or OPEN_SIZE) if outer else Volume()
    found = {}
    for out in _tiles(node, axes, context):
        tiles = count_tiles(tuple(index(_constant(n) or OPEN_SIZE) for n in of_tile), out)
        high, *rest = map(const_size, tiles)
        wide = rest[0] if rest else 1
        parts = parts_of(kernel[-axes:], out)
        depth, count = cb * volume.taps * prod(parts) * c, prod(positions(out))
        if parts and count * depth * ob * target.lanes(4) * 4 > MAX_BYTES:
            continue
        shape = Shape(_constant(n), high, wide, count, depth, ob, volume, axes)
        is_open = [_constant(size) is None for size in of_tile]
        known = replace(
            shape,
            high=None if is_open[0] else high,
            wide=None if rest and is_open[1] else wide,
            strip=1 if rest else OPEN_STRIP,
            volume=replace(volume, images=_constant(outer[0])) if outer else volume,
        )
        found[out] = cycles(shape, choose_plan(known, target, {}), target)
    return found


def least_cycles(editor: GraphEditor, node: Node, context: PassContext) -> float | None:
    """An estimate of the time of what `use_winograd` transforms; None for what it leaves."""
    cycles = min(transformed_cycles(node, context).values(), default=None)
    if cycles is None or is_exact(editor, node):
        return None
    return cycles if cycles < direct_cycles(node, context) * MARGIN else None


def direct_cycles(node: Node, context: PassContext) -> float:
    """An estimate of the time of a convolution as it is."""
    w, target = node.inputs[1], context.target
    ob, cb, *kernel, c = _weights(node)
    n, _, *sizes, _ = node.output.type.shape
    results = (_constant(n) or 1) * prod(_constant(size) or OPEN_SIZE for size in sizes)
    rate = PAIR_RATE if context.multiplies_pairs else 1.0
    steps = results * prod(kernel) * summand_share(node) * cb * c * ob
    direct = steps / (target.multiply_adds * DIRECT_SHARE)
    direct += prod(const_size(size) for size in w.type.shape) * 4 / FAR_BYTES
    return direct / rate


def summand_share(node: Node) -> float:
    """Of the taps of a kernel, those that are summands."""
    op, (x, w) = node.op, node.inputs
    assert isinstance(op, ConvBlocked)
    if not op.zeros:
        return 1.0
    sizes = [const_size(n) for n in x.type.shape[2:-1]]
    rank = len(sizes)
    pixels = [n - op.zeros[d] - op.zeros[d + rank] for d, n in enumerate(sizes)]
    kernel = [const_size(n) for n in w.type.shape[2:-2]]
    return live_share(pixels, kernel, op.stride, op.dilation, op.zeros)


def _weights(node: Node) -> tuple[int, ...]:
    """Blocks of results and of channels, the kernel, and the summands of a block."""
    assert isinstance(node.op, ConvBlocked)
    *sizes, c, _ = (const_size(n) for n in node.inputs[1].type.shape)
    return (*sizes, node.op.used or c)


def _axes(op: ConvBlocked, node: Node, context: PassContext) -> int:
    """How many axes of a convolution, the last ones, have a transformed form."""
    x, w = node.inputs
    if w.type.dtype is not DType.F32 or x.type.dtype is not DType.F32 or not w.type.is_static:
        return 0
    ob, cb, *kernel, _, oc = (const_size(n) for n in w.type.shape)
    if oc != context.target.lanes(4) or op.sparse or op.groups != 1:
        return 0
    n, _, *sizes, _ = node.output.type.shape
    if 0 in (_constant(n), *map(_constant, sizes), ob, cb):
        return 0
    steps = zip(kernel, op.stride, op.dilation, strict=True)
    fits = [k >= LEAST and (s, d) == (1, 1) for k, s, d in steps]
    for axes in TILES:
        if all(fits[-axes:]) and 0 <= len(fits) - axes <= MAX_OUTER:
            return axes
    return 0


def _volume(node: Node, images: int) -> Volume:
    """Which images of a volume its results need."""
    assert isinstance(node.op, ConvBlocked)
    taps = const_size(node.inputs[1].type.shape[2])
    return Volume(images, taps, node.op.stride[0], (taps - 1) * node.op.dilation[0] + 1)


def _tiles(node: Node, axes: int, context: PassContext) -> list[Out]:
    """The tiles that are accurate enough, and smaller than the image."""
    _, cb, *kernel, c = _weights(node)
    sizes = [_constant(size) for size in node.output.type.shape[-1 - axes : -1]]
    return [
        out
        for out in TILES[axes]
        if all(size is None or size > each for size, each in zip(sizes, out, strict=True))
        and _saves(kernel[-axes:], out)
        and (
            context.precision != "highest"
            or is_accurate(out, cb * c * prod(kernel) / prod(taps_of(out)))
        )
    ]


def _saves(kernel: Sequence[int], out: Out) -> bool:
    """Whether fewer zeros fill up a kernel than where a tile has four results."""
    return out[0] != 3 or all(-k % 4 < -k % 3 for k in kernel)


def _constant(size: Expr) -> int | None:
    """A size, or None where a run tells it."""
    return int(size.value) if isinstance(size, Const) else None
