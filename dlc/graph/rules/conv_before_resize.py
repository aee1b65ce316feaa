"""conv(concat(a, resize(b), ...), w) -> conv(a, w_a) + resize(conv(b, w_b)) + ..., for kernels of
one pixel: a resize mixes pixels of a channel and such a convolution channels of a pixel, each in
proportion to what it reads, so they may change places. The small image has fewer pixels to
multiply.

Necks of detectors and heads of segmentation networks enlarge coarse maps, stack them on finer ones
and mix all channels.

Source: linear maps that act on different axes commute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

import numpy as np

from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Node, Value
from dlc.graph.ops.binary import Add
from dlc.graph.ops.conv import Conv
from dlc.graph.ops.resize import Resize, simple_fraction
from dlc.graph.ops.shape import Concat
from dlc.graph.pass_ import PassContext
from dlc.graph.pointwise import MARGIN, is_pointwise, product_rate
from dlc.graph.rewrite import Match, Pattern, Refusal, Weight, rule
from dlc.te.expr import Const
from dlc.te.types import const_size

SAMPLE = {"nearest": 6.0, "linear": 24.0, "cubic": 60.0}
"""Cycles to make a vector of a result, by the mode; measured, see ADR 51."""
ADD = 4.0  # cycles to read a vector once more, and to add it; likewise


@dataclass(frozen=True, slots=True)
class _Part:
    """Channels that a convolution reads: of which image, and how it is resized for that."""

    channels: slice
    image: Value
    resize: Resize | None = None

    @property
    def count(self) -> int:
        return int(self.channels.stop - self.channels.start)


@rule(Pattern(Conv, ("x", Weight("w"))))
def conv_before_resize(match: Match) -> Value | Refusal:
    """Multiply the small image, and resize its results."""
    if match.context.target.gpu is not None:
        return Refusal("what it gains on a GPU has not been measured")
    if not is_pointwise(match.op(Conv), match["w"]):
        return Refusal("the kernel has more than a pixel, or moves by more")
    if not match["x"].type.dtype.is_float:
        return Refusal("whole numbers would be rounded elsewhere")
    parts = _parts(match)
    if isinstance(parts, Refusal):
        return parts
    plain = [part for part in parts if part.resize is None]
    alike: dict[object, list[_Part]] = {}
    for part in parts:
        if part.resize is not None:
            key = (part.image.type.shape[2:], replace(part.resize, sizes=()))
            alike.setdefault(key, []).append(part)
    together = list(alike.values())
    if not together:
        return Refusal("nothing is resized from fewer pixels")
    for user in match.editor.users(match["x"]):
        results = const_size(user.inputs[1].type.shape[0])
        if not _pays(match.context, results, together, has_rest=bool(plain)):
            return Refusal("multiplying fewer pixels gains less than adding up takes")
    terms = _terms(match, plain, together)
    return reduce(lambda a, b: match.call(Add(), a, b), terms)


def _terms(match: Match, plain: list[_Part], together: list[list[_Part]]) -> Iterator[Value]:
    """What to add up, each made when the sum of those before it is."""
    if plain:
        yield _product(match, plain)
    for alike in together:
        small, resize = _product(match, alike), alike[0].resize
        assert resize is not None, "only those that are resized are together"
        sizes = (*small.type.shape[:2], *resize.sizes[2:])
        yield match.call(replace(resize, sizes=sizes), small)


def _parts(match: Match) -> list[_Part] | Refusal:
    """What the operand of the convolution is made of."""
    editor, x = match.editor, match["x"]
    node = editor.producer(x)
    values: tuple[Value, ...] = (x,)
    if node is not None and isinstance(node.op, Concat) and node.op.axis % x.type.rank == 1:
        values = node.inputs
        if editor.is_output(x) or not all(_mixes_channels(editor, u, x) for u in editor.users(x)):
            return Refusal("something else reads the whole image")
    found: list[_Part] = []
    stop = 0
    for value in values:
        batch, channels, *sizes = value.type.shape
        if not isinstance(channels, Const):
            return Refusal("the number of channels is not known")
        if (batch, *sizes) != (x.type.shape[0], *x.type.shape[2:]):
            return Refusal("the images may be of several sizes")
        start, stop = stop, stop + const_size(channels)
        if start < stop:
            found.append(_part(editor, value, slice(start, stop)))
    return found


def _mixes_channels(editor: GraphEditor, node: Node, x: Value) -> bool:
    """Whether a node is such a convolution of an image itself, by weights that can be cut."""
    is_conv = isinstance(node.op, Conv) and is_pointwise(node.op, node.inputs[1])
    return is_conv and node.inputs[0] == x and editor.array(node.inputs[1]) is not None


def _part(editor: GraphEditor, value: Value, channels: slice) -> _Part:
    """Where channels come from that nobody else reads as they are resized."""
    node = editor.producer(value)
    if node is None or not isinstance(node.op, Resize) or editor.sole_user(value) is None:
        return _Part(channels, value)
    resize, (small,) = node.op, node.inputs
    is_copied = small.type.shape[:2] == resize.sizes[:2] and set(resize.scales[:2]) <= {1.0}
    share = _share(resize, small)
    is_smaller = share is not None and share < 1.0
    return _Part(channels, small, resize) if is_copied and is_smaller else _Part(channels, value)


def _share(resize: Resize, small: Value) -> float | None:
    """The pixels of an image for each one that it is resized to, None where a run tells."""
    given, wanted = small.type.shape[2:], resize.sizes[2:]
    if all(isinstance(n, Const) for n in (*given, *wanted)):
        return prod(map(const_size, given)) / max(1, prod(map(const_size, wanted)))
    scales = [s for s in resize.scales[2:] if isinstance(s, int | float)]
    if len(scales) < len(given):
        return None
    return 1.0 / float(prod(map(simple_fraction, scales)))


def _pays(
    context: PassContext, results: int, together: list[list[_Part]], *, has_rest: bool
) -> bool:
    """Whether the products that are left out take longer than what is resized and added more."""
    rate = product_rate(context)
    before = after = 0.0  # cycles for a vector of pixels
    for number, alike in enumerate(together):
        first, channels = alike[0], sum(part.count for part in alike)
        assert first.resize is not None, "only those that are resized are together"
        sample = SAMPLE[first.resize.mode]
        before += channels * (results / rate + sample)
        after += channels * results / rate * (_share(first.resize, first.image) or 1.0)
        after += results * (sample + (ADD if number or has_rest else 0.0))
    return after < MARGIN * before


def _product(match: Match, parts: list[_Part]) -> Value:
    """The convolution of some channels, of images of one size."""
    conv, w = match.op(Conv), match.stored("w")
    images = [part.image for part in parts]
    image = match.call(Concat(axis=1), *images) if len(images) > 1 else images[0]
    rows = np.concatenate([w[:, part.channels] for part in parts], axis=1)
    if rows.shape == w.shape and len(parts) == 1:
        return match.call(conv, image, match["w"])
    return match.call(conv, image, match.constant(rows, match["w"], f"{match['w'].name}_part"))
