"""What a convolution between two transforms takes, and the plan that takes least.

See `transform`, the rule that makes plans come true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product

from dlc.core.target import Target

MAX_GROUP = 6  # vectors of columns whose sums are computed together
MAX_STRIP = 64  # rows of tiles
MAX_IMAGES = 64  # of a volume in one strip
MAX_OPERAND = 4  # times the second cache, that the operand of several images may have
OPEN_STRIP = 8  # tiles of a line of which a run tells how many there are
OPEN_HIGH = 4  # rows of tiles of an image, likewise: more are read again less often
OPEN_GROUP = 4  # vectors of columns that single tiles left of such a row need, to feed adders
OPEN_TILE = 2  # vectors of columns of one tile of registers, where rows are open
MANY_WEIGHTS = 4  # times the second cache, beyond which what a layer takes is mostly their reading
LONELY = 0.1  # how much longer products take for each vector less; measured
OPEN_ROWS = 32  # of tiles, and tiles of a row, assumed where a run tells
OPEN_IMAGES = 16  # of a volume, likewise
FMA_SHARE = 0.8  # of the peak, that the products reach
KERNEL = 3  # along each axis
RATES = {4: 1.0, 2: 1.5}  # products of floats, and of pairs of i16, for each multiply-add; measured
TRANSFORM = 2.2  # cycles to transform a vector at one position, in or out, for each axis; measured
TRANSFORM_WEIGHTS = 0.7  # and a vector of i16 made of bytes that are weights; measured
FAR_BYTES = 8.0  # bytes in a cycle from beyond the second cache
WRITTEN = 2  # times that a byte is moved which is written there: its line is read first
NEAR_SHARE = 0.75  # of the second cache, up to which what is read again is still there


@dataclass(frozen=True, slots=True)
class Volume:
    """Images one behind the other. An image is a volume of one."""

    images: int | None = 1  # of the result
    taps: int = 1  # images whose products a result adds up
    stride: int = 1  # from the first image of one result to that of the next
    reach: int = 1  # images from the first that a result needs to the last

    def needed(self, images: int) -> int:
        """How many images some results in a row are made of."""
        return (images - 1) * self.stride + self.reach


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the products. A number of tiles is None where a run tells it."""

    lead: int | None  # images, or volumes
    high: int | None  # rows of tiles
    wide: int | None  # tiles of a row
    positions: int  # products of one tile for one pair of channels
    depth: int  # summands
    blocks: int  # vectors of columns
    volume: Volume = Volume()
    axes: int = 2  # of a tile
    strip: int = 1  # rows of tiles, where a run tells of how many such strips there are
    element_bytes: int = 4  # of operands

    @property
    def are_bytes(self) -> bool:
        """Whether operands are made of bytes, weights as well."""
        return self.element_bytes == 2

    @property
    def channels(self) -> int:
        """Those of an image, while summands are of all taps."""
        return self.depth // self.volume.taps


@dataclass(frozen=True, slots=True)
class Plan:
    """What a strip has, vectors of columns of a group, and whether columns are outside."""

    strip: int  # rows of tiles; 0 is all of them
    group: int
    columns_outside: bool
    images: int = 1


def choose_plan(shape: Shape, target: Target, knobs: Mapping[str, int]) -> Plan:
    """The cheapest plan; knobs other than 0 and -1 decide."""
    strips = [shape.strip] if shape.high is None else _divisors(shape.high, MAX_STRIP)
    groups = _divisors(shape.blocks, MAX_GROUP)
    images = _divisors(shape.volume.images, MAX_IMAGES)
    each = product(strips, groups, (False, True), images)
    options = [Plan(*values) for values in each]
    options = [p for p in options if p.images == 1 or _fits(shape, p, target)]
    wanted = (knobs.get(name, -1) for name in ("strip", "group", "columns_outer", "images"))
    for field, value in zip(fields(Plan), wanted, strict=True):
        options = [p for p in options if getattr(p, field.name) == value] or options
    options = [p for p in options if _asks_in_time(shape, p, target)] or options
    options = [_of_all_tiles(shape, p) for p in options]
    return min(options, key=lambda plan: cycles(shape, plan, target))


def _asks_in_time(shape: Shape, plan: Plan, target: Target) -> bool:
    """Whether tiles of an image of an open size ask for weights before they read them.

    They ask for those of the next position. If weights are many, columns have to be outside, and a
    group one tile: else others are read next.
    """
    many = _weight_bytes(shape, target) > MANY_WEIGHTS * target.l2_bytes
    in_time = plan.columns_outside and plan.group <= OPEN_TILE
    return in_time or not (many and _is_open_image(shape))


def _is_open_image(shape: Shape) -> bool:
    """Whether a run tells height and width of an image, which is no volume."""
    return shape.high is None and shape.wide is None and shape.volume == Volume()


def _weight_bytes(shape: Shape, target: Target) -> int:
    """What transformed weights take."""
    columns = shape.blocks * target.lanes(4)
    return shape.positions * shape.depth * columns * shape.element_bytes


def _of_all_tiles(shape: Shape, plan: Plan) -> Plan:
    """A plan whose products have the tiles of all rows one behind the other.

    Rows of tiles of which a run tells how many there are, and how long, are short where there are
    many weights: by themselves they feed few multiply-adds for each weight.
    """
    is_whole = _is_open_image(shape) and plan.columns_outside
    return replace(plan, strip=0) if is_whole else plan


def _fits(shape: Shape, plan: Plan, target: Target) -> bool:
    """Whether the operand of a strip, of which each thread has one, takes little memory."""
    return _operand_bytes(shape, plan) <= MAX_OPERAND * target.l2_bytes


def _strip_rows(shape: Shape, plan: Plan) -> int:
    """Rows of tiles of a strip: no more than there are."""
    high = shape.high or OPEN_ROWS
    return min(plan.strip or high, high)


def _operand_bytes(shape: Shape, plan: Plan) -> int:
    """What the images that a strip needs take, transformed."""
    tiles = shape.volume.needed(plan.images) * _strip_rows(shape, plan) * (shape.wide or OPEN_ROWS)
    return tiles * shape.positions * shape.channels * shape.element_bytes


def _divisors(extent: int | None, most: int) -> list[int]:
    if extent is None:
        return [1]
    return [d for d in range(1, min(extent, most) + 1) if extent % d == 0] or [1]


def cycles(shape: Shape, plan: Plan, target: Target) -> float:
    """An estimate of the time of all threads together."""
    lanes, volume = target.lanes(4), shape.volume
    lead, high, wide = shape.lead or 1, shape.high or OPEN_ROWS, shape.wide or OPEN_ROWS
    images = volume.images or OPEN_IMAGES
    tiles = lead * high * wide  # of one image
    columns = shape.blocks * lanes
    fmas = target.multiply_adds * FMA_SHARE * RATES[shape.element_bytes]
    products = tiles * images * shape.positions * shape.depth * shape.blocks / fmas
    narrow = 1.15 if plan.group == 1 and target.multiply_adds > 1 else 1.0  # a vector a broadcast
    if shape.wide is None:
        narrow *= 1 + LONELY * max(0, OPEN_GROUP - plan.group)
    strip_rows = _strip_rows(shape, plan)
    rows = plan.images * strip_rows * wide
    few = max(1.0, 12 / rows)  # rows feed too few multiply-adds for each load
    total = products * narrow * math.sqrt(math.sqrt(few))
    strips = lead * (images // plan.images) * -(-high // strip_rows)
    needed = volume.needed(plan.images)
    made = volume.needed(images) if plan.columns_outside else needed * (images // plan.images)
    transformed = made * math.ceil(shape.channels / lanes) + images * shape.blocks
    total += tiles * shape.positions * shape.axes * TRANSFORM * transformed
    weights = _weight_bytes(shape, target)
    given = weights
    if shape.are_bytes:  # weights are transformed in a run,
        given = KERNEL**shape.axes * shape.depth * columns
        vectors = shape.depth // 2 * shape.blocks * (lead if plan.columns_outside else 1)
        total += vectors * shape.positions * shape.axes * TRANSFORM_WEIGHTS
    strip = _operand_bytes(shape, plan)
    sums = rows * shape.positions * plan.group * lanes * 4
    near = NEAR_SHARE * target.l2_bytes
    groups = shape.blocks // plan.group
    if plan.columns_outside:
        tasks, whole = groups, made * tiles * shape.positions * shape.channels * shape.element_bytes
        far = given + (strip * strips * groups + whole * WRITTEN if whole + sums > near else 0)
        if weights / groups + sums > near:
            if shape.are_bytes:
                far += lead * weights * (1 + WRITTEN)
            elif shape.axes == 2:  # each strip reads those of a group again
                far += weights * (strips - lead)
    else:
        tasks = strips
        is_near = weights + strip + sums <= near
        far = given if is_near else weights * strips
        far += weights * WRITTEN if shape.are_bytes and not is_near else 0
        far += strip * strips * (groups + WRITTEN if strip + sums > near else 0)
    rounds = -(-tasks // target.cores)
    return (total + far / FAR_BYTES) * rounds * target.cores / max(tasks, 1)
