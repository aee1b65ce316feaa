"""Where blocked and planar tensors meet: which side an operator is on, and what a transform costs.

As a rule an operator works on blocked tensors as soon as an operand is one, and a convolution
always. Where that takes a transform of an operand, or of the result, it is a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dlc.core.types import DType
from dlc.graph.blocking import BLOCKED_READERS, LOOK_AHEAD, Blocking
from dlc.graph.estimate import (
    CALL,
    FAR_BYTES,
    FMA_SHARE,
    bytes_of,
    elements,
    node_cycles,
    size_of,
)
from dlc.graph.forks import decide
from dlc.graph.graph import Node, Value
from dlc.graph.integers import is_kept_whole
from dlc.graph.op import Array, Fuse
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.pointwise import MARGIN, product_rate, reads_one_pixel
from dlc.te.types import const_size, is_const

BLOCKED, PLANAR = "blocked", "planar"  # the ways
WINOGRAD = 0.75  # the time of a transformed convolution of one block, over that of a direct one
ROUNDED = 0.75  # the rate of narrow products for one block, which pays alone for rounded rows
ONE_RESULT = 0.4  # the share of the peak that a convolution of pixels reaches for one result
NEXT_RESULT = 0.13  # and more of it for each other result
SHALLOW_SHARE = 0.85  # of the peak, that products of weights and pixels reach
DEEP_SHARE = 0.5  # the same from so many channels on: each is a line of pixels of its own
DEEP = 256
SLOW_CONV = 4.0  # times as long as a blocked convolution one of planar tensors takes, about


def at_border(blocking: Blocking, node: Node) -> bool:
    """Whether an operator, written in blocked form, has a transform in front of it or behind."""
    return bool(_to_pack(blocking, node)) or any(_leaves(blocking, v) for v in node.outputs)


def stays_blocked(blocking: Blocking, node: Node) -> bool:
    """Whether an operator at a border works on blocked tensors, as it does by default."""
    target = blocking.context.target
    known = [v for v in node.inputs if blocking.find_blocked(v) is not None]
    packed = [v for v in node.inputs if _is_image(blocking, v) and v not in known]

    def cycles() -> tuple[float, float]:
        time = node_cycles([node], target)
        slow = SLOW_CONV if isinstance(node.op, Conv | ConvTranspose) else 1.0
        unpacked = [v for v in node.outputs if _leaves(blocking, v)]
        return time + _transforms([*packed, *unpacked]), time * slow + _transforms(known)

    way = decide(
        blocking.context, blocking.graph, [node], kind="layout", version=1,
        options=(BLOCKED, PLANAR), default=BLOCKED, cycles=cycles,
    )  # fmt: skip
    return way == BLOCKED


def reads_planar(blocking: Blocking, node: Node, channels: int) -> bool:
    """Whether a convolution of an image that is not blocked reads it as it is: if it has few
    channels, as blocks would be mostly idle.
    """
    few, block = channels * 2 < blocking.block, blocking.block
    options = (BLOCKED, PLANAR) if channels < block else (BLOCKED,)

    def cycles() -> tuple[float, float]:
        time = node_cycles([node], blocking.context.target)
        filled = -(-channels // block) * block / max(1, channels)
        return time * filled + _transforms(node.inputs[:1]), time

    way = decide(
        blocking.context, blocking.graph, [node], kind="source", version=1, options=options,
        default=PLANAR if few else BLOCKED, cycles=cycles,
    )  # fmt: skip
    return way == PLANAR


def makes_planar(blocking: Blocking, node: Node) -> bool:
    """Whether a convolution computes planar results of a planar image: where there are so few
    results that most lanes of a block would be idle, pixels of a line fill vectors better.

    Source: rates measured on 16 layers, see ADR 52.
    """
    context, (x, w) = blocking.context, node.inputs
    op, target = node.op, context.target
    assert isinstance(op, Conv)
    few, _, *kernel = (const_size(n) for n in w.type.shape)
    width = size_of(node.output.type.shape[-1])
    if target.gpu is not None or x.type.dtype is not DType.F32 or op.stride[-1] != 1:
        return False
    if prod(kernel) == 1 or few * 2 > blocking.block or width < target.lanes(4):
        return False
    blocked, planar = _few_cycles(blocking, node)
    way = decide(
        context, blocking.graph, [node], kind="results", version=1, options=(BLOCKED, PLANAR),
        default=PLANAR if planar < MARGIN * blocked else BLOCKED, cycles=lambda: (blocked, planar),
    )  # fmt: skip
    return way == PLANAR


def _few_cycles(blocking: Blocking, node: Node) -> tuple[float, float]:
    """The time of a convolution of few results, with its transforms: blocked, and planar."""
    context, (x, w), op = blocking.context, node.inputs, node.op
    assert isinstance(op, Conv)
    few, channels, *kernel = (const_size(n) for n in w.type.shape)
    width, lanes = size_of(node.output.type.shape[-1]), context.target.lanes(4)
    products = elements(node.output) // few * channels * prod(kernel) / context.target.multiply_adds
    is_packed = blocking.find_blocked(x) is not None
    reads_blocks = is_packed or channels * 2 >= blocking.block
    rate = ROUNDED * product_rate(context) if context.precision == "medium" else 1.0
    is_small = kernel == [3] * len(kernel) and len(kernel) > 1
    is_dense = is_small and {*op.stride, *op.dilation} == {1}
    shorter = WINOGRAD if is_dense and reads_blocks else 1.0
    blocked = products * shorter / rate / FMA_SHARE * -(-blocking.block // lanes)
    packs = [x] if reads_blocks and not is_packed else []
    leaves = [v for v in node.outputs if _leaves(blocking, v)]
    lines = -(-width // lanes) * lanes / width
    share = min(FMA_SHARE, ONE_RESULT + NEXT_RESULT * (few - 1))
    planar = products * few / lanes * lines / share
    unpacks = [x] if is_packed else []
    entering = [v for v in node.outputs if enters(blocking, v)]
    return blocked + _transforms([*packs, *leaves]), planar + _transforms([*unpacks, *entering])


def multiplies_pixels(blocking: Blocking, node: Node, weights: Array) -> bool:
    """Whether a convolution of single pixels multiplies those of a planar image as they are: where
    nobody would read its results in blocks, so that two transforms are saved.

    Source: measured on 21 layers of Zen 5, see ADR 87.
    """
    context, (x, w) = blocking.context, node.inputs
    op = node.op
    assert isinstance(op, Conv)
    if context.target.gpu is not None or x.type.dtype is not DType.F32:
        return False
    if not reads_one_pixel(op, w) or is_const(w.type.shape[0], op.groups):
        return False
    if blocking.find_blocked(x) is not None or _is_wanted(blocking, node.output):
        return False
    if is_kept_whole(context, weights):  # bytes are multiplied faster in blocks
        return False
    blocked, planar = _pixel_cycles(blocking, node)
    way = decide(
        context, blocking.graph, [node], kind="pixels", version=1, options=(BLOCKED, PLANAR),
        default=PLANAR if planar < blocked else BLOCKED, cycles=lambda: (blocked, planar),
    )  # fmt: skip
    return way == PLANAR


def _pixel_cycles(blocking: Blocking, node: Node) -> tuple[float, float]:
    """The time of a convolution of single pixels, with its transforms: blocked, and planar.

    Groups of few channels take longer in blocks than is estimated: lanes of these are idle.
    """
    context, (x, w), op = blocking.context, node.inputs, node.op
    assert isinstance(op, Conv)
    results, channels = (const_size(n) for n in w.type.shape[:2])
    lanes, block, groups = context.target.lanes(4), blocking.block, op.groups
    images, pixels = size_of(x.type.shape[0]), prod(map(size_of, x.type.shape[2:]))
    products = images * pixels * channels / (context.target.multiply_adds * lanes)
    rate = product_rate(context) * (ROUNDED if context.precision == "medium" else 1.0)
    filled = -(-results // groups // block) * block * groups
    blocked = products * filled / FMA_SHARE / rate
    packs = [x] if groups > 1 or channels * 2 >= block else []
    vectors = -(-pixels // lanes) * lanes / max(1, pixels)
    share = DEEP_SHARE if channels >= DEEP else SHALLOW_SHARE
    return blocked + _transforms([*packs, node.output]), products * results * vectors / share


def _is_wanted(blocking: Blocking, value: Value, depth: int = 0) -> bool:
    """Whether somebody behind it might read a value in blocks who is not elementwise."""
    for user in blocking.graph.users.get(value, ()):
        if type(user.op) in BLOCKED_READERS:
            return True
        if user.op.fuse is Fuse.ELEMENTWISE and (
            depth == LOOK_AHEAD
            or any(blocking.find_blocked(v) is not None for v in user.inputs)
            or any(_is_wanted(blocking, v, depth + 1) for v in user.outputs)
        ):
            return True
    return False


def enters(blocking: Blocking, value: Value, depth: int = 0) -> bool:
    """Whether somebody behind it reads a value in blocks: a convolution of many channels, or of
    each by itself, or what joins it with a blocked tensor as large.
    """
    for user in blocking.graph.users.get(value, ()):
        if isinstance(user.op, Conv):
            many = size_of(value.type.shape[1]) * 2 >= blocking.block
            if user.op.groups > 1 or many:
                return True
        elif (
            isinstance(user.op, ConvTranspose)
            or any(
                v.type.shape == value.type.shape and blocking.find_blocked(v) is not None
                for v in user.inputs
            )
            or (depth < LOOK_AHEAD and any(enters(blocking, v, depth + 1) for v in user.outputs))
        ):
            return True
    return False


def _to_pack(blocking: Blocking, node: Node) -> list[Value]:
    return [v for v in node.inputs if _is_image(blocking, v) and blocking.find_blocked(v) is None]


def _is_image(blocking: Blocking, value: Value) -> bool:
    """Whether a value is large enough that its layout matters, and no constant."""
    return value.type.rank > 2 and blocking.array(value) is None and elements(value) > 1


def _leaves(blocking: Blocking, value: Value) -> bool:
    """Whether somebody reads a value who cannot read its blocked form."""
    users = blocking.graph.users.get(value, ())
    stays = all(u.op.fuse is Fuse.ELEMENTWISE or type(u.op) in BLOCKED_READERS for u in users)
    return value in blocking.graph.outputs or not stays


def _transforms(values: Sequence[Value]) -> float:
    """The time to read tensors in one layout and write them in another."""
    return sum(2 * bytes_of([v]) / FAR_BYTES + CALL for v in values)
