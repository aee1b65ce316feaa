"""What convolutions take where they are transformed, and which can be: of kernels of two or more.

Larger tiles round more than direct sums do unless these are long; at precision "highest", short
sums are left to smaller tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.integers import integer_range, magnitude
from dlc.graph.live_taps import live_share
from dlc.graph.ops.byte_products import ConvBytes
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.filters import (
    WHOLE_TAPS,
    Out,
    Tile,
    growth,
    inverse_of,
    scale_of,
)
from dlc.graph.ops.winograd import count_tiles
from dlc.graph.pass_ import PassContext
from dlc.graph.pointwise import PAIR_RATE
from dlc.graph.sizes import names_in
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.rules.transform_accuracy import is_accurate
from dlc.schedule.rules.transform_plan import (
    FAR_BYTES,
    OPEN_HIGH,
    OPEN_STRIP,
    RATES,
    Shape,
    Volume,
    choose_plan,
    cycles,
)
from dlc.te.expr import Expr, index
from dlc.te.types import TensorType, const_or_none, const_size, is_const

MARGIN = 0.9  # of the time of direct sums, that transformed ones may take
MOVED_MARGIN = 0.8  # the same, where images have to be moved for it
HIDDEN = 0.5  # of reading transformed weights or of the rest, whichever is less; measured
MOVES = 3  # times that bytes are moved which are written, and read again
DIRECT_SHARE = 0.85  # of the peak, that kernels without transforms reach
LEAST_LOSS = {1: 50_000, 2: 200_000}  # by axes: cycles, for whose sake a kernel is compiled twice
SMALL = {1: 64, 2: 16}  # by axes: results along each, of an image that may be too small to gain
OPEN_SIZE = 64  # of a line, assumed where a run tells it
OPEN_INPUT = 224  # of the images that a model takes, likewise: those of its layers follow
TILES: Mapping[int, tuple[Out, ...]] = {  # by the axes that are transformed, the last ones
    2: ((2, 2), (2, 4), (4, 4), (3, 3), (2, 3), (3, 2), (3, 4), (4, 3)),
    1: ((2,), (4,), (3,)),
}
LEAST = 2  # of a kernel, along each of them
MOST_PRODUCTS = 0.7  # of those of direct sums, in steps; lines of 0.78 took 1.02 on Zen 5
STRIDED = {(3, 2): 3, (4, 2): 3, (5, 2): 2}  # results, by kernel and step
MAX_BYTES = 64 << 20  # of the transformed weights of a kernel of several parts, or in steps
MAX_OUTER = 1  # axes before those: images of a volume, or lines of an image


def probe(op: ConvBlocked, x: TensorType, w: TensorType) -> Node:
    """A convolution of operands of these types, to be estimated."""
    values = (Value("x", x), Value("w", w), Value("y", op.infer(x, w)))
    return Node(op, values[:2], values[2:])


def moving_cycles(*images: TensorType) -> float:
    """The time to write images, and to read them where somebody puts their elements elsewhere.

    An open number of images counts as one.
    """
    elements = sum(prod(const_or_none(n) or 1 for n in image.shape) for image in images)
    return elements * DType.F32.size_bytes * MOVES / FAR_BYTES


def is_exact(editor: GraphEditor, node: Node) -> bool:
    """Whether products are of whole numbers, whose sums transforms would round."""
    return all(integer_range(editor, value) is not None for value in node.inputs)


def surely_fits(editor: GraphEditor, node: Node, out: Out) -> bool:
    """Whether tiles of `out` results of widened bytes are surely exact: see `ConvWinogradBytes`."""
    x, w = node.inputs
    limits, array = integer_range(editor, x), editor.array(w)
    if limits is None or array is None or magnitude(limits) * growth(out) >= 2**15:
        return False
    low, high = limits
    summands = (*range(1, array.ndim - 2), array.ndim - 1)
    up, down = (np.maximum(s * array, 0).sum(axis=summands, dtype=np.int64) for s in (1, -1))
    most = max((up * high - down * low).max(), (down * high - up * low).max())
    return int(most) << inverse_of(scale_of(out))[1] < 2**31


def transformed_cycles(node: Node, context: PassContext) -> dict[Out, float]:
    """Estimates of the time of a convolution by each tile it may have, of all threads together.

    Empty for other operators, and for what has no transformed form.
    """
    found: dict[Out, float] = {}
    for axes in _axes(node, context):
        n, _, *sizes, _ = node.output.type.shape
        found |= _cycles(node, axes, const_or_none(n), _assumed(sizes, context), context)
    return found


def _cycles(
    node: Node, axes: int, lead: int | None, assumed: Sequence[int], context: PassContext
) -> dict[Out, float]:
    """The same of the tiles of some axes, the last ones, for so many results of assumed sizes."""
    target = context.target
    ob, cb, *_, c = _weights(node)
    sizes = node.output.type.shape[2:-1]
    outer, of_tile = sizes[:-axes], sizes[-axes:]
    volume = _volume(node, assumed[0]) if outer else Volume()
    element_bytes = node.inputs[0].type.dtype.size_bytes
    found: dict[Out, float] = {}
    for out in _tiles(node, axes, context):
        high, *rest = _tiles_along(assumed[-axes:], out)
        wide = rest[0] if rest else 1
        tile = tile_of(node, out)
        depth, count = cb * volume.taps * prod(tile.parts) * c, prod(tile.positions)
        if (tile.parts or tile.steps) and weight_bytes(node, out) > MAX_BYTES:
            continue
        shape = Shape(lead, high, wide, count, depth, ob, volume, axes, element_bytes=element_bytes)
        is_open = [const_or_none(size) is None for size in of_tile]
        known = replace(
            shape,
            high=None if is_open[0] else high,
            wide=None if rest and is_open[1] else wide,
            strip=OPEN_HIGH if rest else OPEN_STRIP,
            volume=replace(volume, images=const_or_none(outer[0])) if outer else volume,
        )
        found[out] = cycles(shape, choose_plan(known, target, {}), target)
    return found


def least_cycles(editor: GraphEditor, node: Node, context: PassContext) -> float | None:
    """An estimate of the time of what `use_winograd` transforms; None for what it leaves.

    None, too, where a run tells how large images are: others assume other sizes.
    """
    transformed = transformed_cycles(node, context)
    if not transformed or _is_open(node) or is_exact(editor, node):
        return None
    out = fastest(node, transformed, context)
    return None if out is None else transformed[out]


def fastest(node: Node, transformed: Mapping[Out, float], context: PassContext) -> Out | None:
    """The tile that takes least of some that take so long, None where direct sums take less.

    Weights come while others are multiplied. Of images that may be larger than assumed, larger
    tiles are taken for it; of known ones, they need more weights for a gain that is small.
    """
    if not transformed:
        return None
    is_bytes, is_open = isinstance(node.op, ConvBytes), _is_open(node)
    waited = dict(transformed)
    for out, whole in transformed.items():
        read = 0.0 if is_bytes else weight_bytes(node, out) / FAR_BYTES
        waited[out] -= HIDDEN * min(read, whole - read)
    out = min(transformed, key=(waited if is_open else transformed).__getitem__)
    margin = 1.0 if is_open else MARGIN  # images may be larger than assumed, and gain more
    return out if waited[out] < direct_cycles(node, context) * margin else None


def weight_bytes(node: Node, out: Out) -> int:
    """What the weights of a convolution of floats take, transformed for tiles of `out` results."""
    *others, c, oc = (const_size(n) for n in node.inputs[1].type.shape)
    outer, tile = others[: -len(out)], tile_of(node, out)
    elements = prod(outer) * prod(tile.positions) * prod(tile.parts) * c * oc
    return elements * DType.F32.size_bytes


def run_cycles(node: Node, out: Out, context: PassContext) -> tuple[int, ...]:
    """What a run compares where it tells how large images are: see `ConvWinograd.cycles`.

    Nothing where they are known, however many there are, or where the smallest lose little. Tiles
    of `out` results are estimated in an image that is small, as the choice is about such, on one
    core: how cores share an image depends on its size, and direct sums are taken for shared evenly.
    """
    if not _is_open(node):
        return ()
    axes = len(out)
    sizes = _assumed(node.output.type.shape[2:-1], context)
    assumed = [min(size, SMALL[axes]) for size in sizes]
    alone = replace(context, target=replace(context.target, cores=1))
    cycles = _cycles(node, axes, 1, assumed, alone)[out]
    images = prod(assumed[:-axes])
    read = weight_bytes(node, out) / FAR_BYTES
    result = _multiply_cycles(node, 1, assumed, context) / prod(assumed)
    tile = (cycles - read) / (images * prod(_tiles_along(assumed[-axes:], out)))
    more = read - _read_cycles(node)
    fewest = OPEN_STRIP if axes == 1 else 1
    if fewest * tile + more < LEAST_LOSS[axes]:
        return ()
    return tuple(max(1, round(each)) for each in (result, tile, more))


def direct_cycles(node: Node, context: PassContext) -> float:
    """An estimate of the time of a convolution as it is."""
    dtype = node.inputs[0].type.dtype
    rate = PAIR_RATE if dtype.is_float and context.multiplies_pairs else RATES[dtype.size_bytes]
    n, _, *sizes, _ = node.output.type.shape
    products = _multiply_cycles(node, const_or_none(n) or 1, _assumed(sizes, context), context)
    return (products + _read_cycles(node)) / rate


def _multiply_cycles(node: Node, lead: int, assumed: Sequence[int], context: PassContext) -> float:
    """The time of multiply-adds of vectors, of direct sums for so many results of assumed sizes."""
    ob, cb, *kernel, c = _weights(node)
    results = lead * prod(assumed)
    steps = results * prod(kernel) * summand_share(node) * cb * c * ob
    return multiply_cycles(steps, context.target)


def multiply_cycles(steps: float, target: Target) -> float:
    """The time of some multiply-adds of vectors of floats, of direct sums."""
    return steps / (target.multiply_adds * DIRECT_SHARE)


def _read_cycles(node: Node) -> float:
    """The time to read the weights of a convolution, as they are."""
    type_ = node.inputs[1].type
    return prod(map(const_size, type_.shape)) * type_.dtype.size_bytes / FAR_BYTES


def summand_share(node: Node) -> float:
    """Of the taps of a kernel, those that are summands."""
    op, (x, w) = node.op, node.inputs
    if not isinstance(op, ConvBlocked) or not op.zeros:
        return 1.0
    sizes = [const_size(n) for n in x.type.shape[2:-1]]
    rank = len(sizes)
    pixels = [n - op.zeros[d] - op.zeros[d + rank] for d, n in enumerate(sizes)]
    kernel = [const_size(n) for n in w.type.shape[2:-2]]
    return live_share(pixels, kernel, op.stride, op.dilation, op.zeros)


def _weights(node: Node) -> tuple[int, ...]:
    """Blocks of results and of channels, the kernel, and the summands of a block."""
    sizes = [const_size(n) for n in node.inputs[1].type.shape]
    if isinstance(node.op, ConvBytes):
        *sizes, groups, _, each = sizes
        return (*sizes, groups * each)
    assert isinstance(node.op, ConvBlocked)
    *sizes, c, _ = sizes
    return (*sizes, node.op.used or c)


def _axes(node: Node, context: PassContext) -> list[int]:
    """How many axes of a convolution, the last ones, may be transformed.

    Lines alone are asked about where columns of a tile have steps, or two taps: these may round
    more, need many weights, or an image may have too few of them.
    """
    op = node.op
    if not isinstance(op, ConvBlocked | ConvBytes) or not _is_plain(op, *node.inputs):
        return []
    ob, cb, *kernel, _ = _weights(node)
    n, _, *sizes, oc = node.output.type.shape
    if not is_const(oc, context.target.lanes(4)):
        return []
    if 0 in (const_or_none(n), *map(const_or_none, sizes), ob, cb):
        return []
    found = [
        axes
        for axes in TILES
        if 0 <= len(kernel) - axes <= MAX_OUTER
        and all(d == 1 for d in op.dilation[-axes:])
        and any(_saves(tile_of(node, out)) for out in TILES[axes])
    ]
    has_plain_columns = len(kernel) > 1 and kernel[-2] > LEAST and op.stride[-2] == 1
    return found[:1] if has_plain_columns else found


def tile_of(node: Node, out: Out) -> Tile:
    """The tiles of a convolution, of some results."""
    op, kernel = node.op, _weights(node)[2:-1]
    assert isinstance(op, ConvBlocked | ConvBytes)
    steps = op.stride[-len(out) :]
    is_plain = all(step == 1 for step in steps)
    return Tile(out, kernel[-len(out) :], () if is_plain else steps, isinstance(op, ConvBytes))


def _is_plain(op: ConvBlocked | ConvBytes, x: Value, w: Value) -> bool:
    """Whether all of a kernel meets all channels, in elements that have transforms."""
    if not w.type.is_static or op.groups != 1:
        return False
    if isinstance(op, ConvBytes):
        return x.type.dtype is DType.I16
    is_float = x.type.dtype is DType.F32 and w.type.dtype is DType.F32
    return is_float and not op.sparse


def _volume(node: Node, images: int) -> Volume:
    """Which images of a volume its results need."""
    assert isinstance(node.op, ConvBlocked | ConvBytes)
    taps = const_size(node.inputs[1].type.shape[2])
    return Volume(images, taps, node.op.stride[0], (taps - 1) * node.op.dilation[0] + 1)


def _tiles(node: Node, axes: int, context: PassContext) -> list[Out]:
    """The tiles that are accurate enough, and smaller than the image."""
    _, cb, *kernel, c = _weights(node)
    is_whole = isinstance(node.op, ConvBytes)
    sizes = [const_or_none(size) for size in node.output.type.shape[-1 - axes : -1]]
    return [
        out
        for out in TILES[axes]
        if all(size is None or size > each for size, each in zip(sizes, out, strict=True))
        and _saves(tile := tile_of(node, out))
        and (
            is_whole
            or context.precision != "highest"
            or is_accurate(out, tile.positions, cb * c * prod(kernel) / prod(tile.taps))
        )
    ]


def _tiles_along(sizes: Sequence[int], out: Out) -> list[int]:
    """How many tiles cover some results along each axis."""
    return [const_size(count) for count in count_tiles(tuple(map(index, sizes)), out)]


def _saves(tile: Tile) -> bool:
    """Whether products are saved, and fewer zeros fill up a kernel than by tiles of others."""
    if tile.is_whole:
        return set(tile.kernel) == {WHOLE_TAPS} and tile.has_filters
    axes = zip(tile.kernel, tile.out, tile.strides, strict=True)
    if not tile.has_filters or not all(_fits(*each) for each in axes):
        return False
    products = prod(tile.positions) * prod(tile.parts) / prod(tile.out)
    return not tile.steps or products <= MOST_PRODUCTS * prod(tile.kernel)


def _fits(kernel: int, results: int, step: int) -> bool:
    """The same along one axis: of three results where a kernel has two taps, or about four."""
    if step > 1:
        return STRIDED.get((kernel, step)) == results
    if kernel <= LEAST:
        return kernel == LEAST and results == 3
    return results != 3 or -kernel % 4 < -kernel % 3


def _is_open(node: Node) -> bool:
    """Whether only a run tells how large the images of a blocked result are."""
    return None in map(const_or_none, node.output.type.shape[2:-1])


def _assumed(sizes: Sequence[Expr], context: PassContext) -> list[int]:
    """The sizes of a layer, where a run tells some of them."""
    if len(sizes) == 1:
        return [const_or_none(size) or OPEN_SIZE for size in sizes]
    of_input = {}
    for name in names_in(sizes):
        low, high = context.size_ranges.get(name, (0, None))
        of_input[name] = max(low, OPEN_INPUT if high is None else min(high, OPEN_INPUT))
    found = [evaluate_size(size, of_input) for size in sizes]
    return [size if size > 0 else OPEN_SIZE for size in found]
