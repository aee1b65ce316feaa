"""What convolutions of three by three take where they are transformed, and where that is possible.

Larger tiles round more than direct sums do unless these are long; at precision "highest", short
sums are left to smaller tiles.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dlc.core.types import DType
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node
from dlc.graph.integers import integer_range
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.winograd import KERNEL, Out, positions
from dlc.graph.pass_ import PassContext
from dlc.graph.pointwise import PAIR_RATE
from dlc.schedule.rules.transform import is_accurate
from dlc.schedule.rules.transform_plan import FAR_BYTES, Shape, Volume, choose_plan, cycles
from dlc.te.expr import Const, Expr
from dlc.te.types import const_size

MARGIN = 0.9  # of the time of direct sums, that transformed ones may take
DIRECT_SHARE = 0.85  # of the peak, that kernels without transforms reach
AXES = (2, 3)  # of images, and of volumes
OPEN_SIZE = 64  # assumed where a size is known at run time only
TILES: tuple[Out, ...] = ((2, 2), (2, 4), (4, 4))


def is_exact(editor: GraphEditor, node: Node) -> bool:
    """Whether products are of whole numbers, whose sums transforms would round."""
    return all(integer_range(editor, value) is not None for value in node.inputs)


def transformed_cycles(node: Node, context: PassContext) -> dict[Out, float]:
    """Estimates of the time of a convolution by each tile it may have, of all threads together.

    Empty for other operators, and for what has no transformed form.
    """
    if not isinstance(node.op, ConvBlocked) or not _fits(node.op, node, context):
        return {}
    target = context.target
    ob, cb, *_, c, _ = (const_size(n) for n in node.inputs[1].type.shape)
    n, _, *sizes, _ = node.output.type.shape
    volumes, *outer, high, wide = (_constant(size) for size in (n, *sizes))
    volume = _volume(node, outer[0]) if outer else Volume()
    found = {}
    for out in _tiles(node, context):
        count = -(-(high or OPEN_SIZE) // out[0]), -(-(wide or OPEN_SIZE) // out[1])
        depth = cb * volume.taps * c
        shape = Shape(volumes, *count, prod(positions(out)), depth, ob, volume)
        known = replace(shape, high=high and count[0], wide=wide and count[1])
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
    ob, cb, *kernel, c, _ = (const_size(n) for n in w.type.shape)
    n, _, *sizes, _ = node.output.type.shape
    volumes, *outer, high, wide = (_constant(size) for size in (n, *sizes))
    results = (volumes or 1) * prod(size or OPEN_SIZE for size in (*outer, high, wide))
    rate = PAIR_RATE if context.multiplies_pairs else 1.0
    direct = results * prod(kernel) * cb * c * ob / (target.multiply_adds * DIRECT_SHARE)
    direct += prod(const_size(size) for size in w.type.shape) * 4 / FAR_BYTES
    return direct / rate


def _fits(op: ConvBlocked, node: Node, context: PassContext) -> bool:
    """Whether a convolution has a transformed form."""
    x, w = node.inputs
    if w.type.dtype is not DType.F32 or x.type.dtype is not DType.F32 or not w.type.is_static:
        return False
    ob, cb, *kernel, _, oc = (const_size(n) for n in w.type.shape)
    if oc != context.target.lanes(4) or op.sparse or op.groups != 1:
        return False
    if len(kernel) not in AXES or kernel[-2:] != [KERNEL, KERNEL]:
        return False
    if (op.stride[-2:], op.dilation[-2:]) != ((1, 1), (1, 1)):
        return False
    n, _, *sizes, _ = node.output.type.shape
    return 0 not in (_constant(n), *map(_constant, sizes), ob, cb)


def _volume(node: Node, images: int | None) -> Volume:
    """Which images of a volume its results need."""
    assert isinstance(node.op, ConvBlocked)
    taps = const_size(node.inputs[1].type.shape[2])
    return Volume(images, taps, node.op.stride[0], (taps - 1) * node.op.dilation[0] + 1)


def _tiles(node: Node, context: PassContext) -> list[Out]:
    """The tiles that are accurate enough, and smaller than the image."""
    _, cb, *outer, _, _, c, _ = (const_size(n) for n in node.inputs[1].type.shape)
    sizes = [_constant(size) for size in node.output.type.shape[-3:-1]]
    return [
        out
        for out in TILES
        if all(size is None or size > each for size, each in zip(sizes, out, strict=True))
        and (context.precision != "highest" or is_accurate(out, cb * prod(outer) * c))
    ]


def _constant(size: Expr) -> int | None:
    """A size, or None where a run tells it."""
    return int(size.value) if isinstance(size, Const) else None
