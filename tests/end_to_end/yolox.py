"""YOLOX-nano's architecture with few channels and small images, as a `Network`.

Source: Ge and others, "YOLOX: Exceeding YOLO Series in 2021"; the nano model convolves each channel
alone and then mixes them.
"""

from __future__ import annotations

import numpy as np

from tests.end_to_end.network_text import Text, conv
from tests.end_to_end.networks import Network

CLASSES = 3
WIDTHS = (8, 12, 16)  # of the three scales


def yolox() -> Network:
    """A stem of slices, stages of split blocks, a pyramid up and down, a head for each scale."""
    t = Text()
    x = _silu(t, conv(t, _focus(t, "x"), (12, 8), 3, 1))
    scales = []
    given = 8
    for stage, width in enumerate(WIDTHS):
        x = _separable(t, x, given, width, 2)
        if stage == len(WIDTHS) - 1:
            x = _pools(t, x, width)
        x = _split(t, x, width, width, adds=stage < len(WIDTHS) - 1)
        scales.append(x)
        given = width
    outputs = [_head(t, x, width) for x, width in zip(_pyramid(t, scales), WIDTHS, strict=True)]
    joined = t("Concat<axis=2>", *outputs)
    t.lines.append(f"y = Transpose<perm=[0,2,1]>({joined})")
    count = sum((n // 4 >> s) * (m // 4 >> s) for s in range(3) for n, m in [(32, 48)])
    return t.network("float[1,3,32,48] x", f"float[1,{count},{5 + CLASSES}] y")


def _silu(t: Text, x: str) -> str:
    return t("Mul", x, t("Sigmoid", x))


def _separable(t: Text, x: str, given: int, made: int, stride: int) -> str:
    """A convolution of each channel alone, then one that mixes them."""
    apart = _silu(t, conv(t, x, (given, given), 3, stride, given))
    return _silu(t, conv(t, apart, (given, made), 1, 1))


def _focus(t: Text, x: str) -> str:
    """Each second row and column as a channel of its own."""
    parts = []
    one, two, end = (t.constant("int64", np.array([n])) for n in (1, 2, 1 << 30))
    zero = t.constant("int64", np.array([0]))
    rows, columns = (t.constant("int64", np.array([n])) for n in (2, 3))
    for column in (zero, one):
        for row in (zero, one):
            half = t("Slice", x, row, end, rows, two)
            parts.append(t("Slice", half, column, end, columns, two))
    return t("Concat<axis=1>", *parts)


def _split(t: Text, x: str, given: int, made: int, *, adds: bool) -> str:
    """Half of the channels go through a block, the others beside it."""
    half = made // 2
    first = _silu(t, conv(t, x, (given, half), 1, 1))
    second = _silu(t, conv(t, x, (given, half), 1, 1))
    inner = _separable(t, _silu(t, conv(t, first, (half, half), 1, 1)), half, half, 1)
    first = t("Add", inner, first) if adds else inner
    return _silu(t, conv(t, t("Concat<axis=1>", first, second), (made, made), 1, 1))


def _pools(t: Text, x: str, width: int) -> str:
    """Maxima of windows of three sizes beside each element."""
    x = _silu(t, conv(t, x, (width, width // 2), 1, 1))
    pools = [
        t(f"MaxPool<kernel_shape=[{k},{k}], pads=[{k // 2},{k // 2},{k // 2},{k // 2}]>", x)
        for k in (5, 9, 13)
    ]
    return _silu(t, conv(t, t("Concat<axis=1>", x, *pools), (2 * width, width), 1, 1))


def _pyramid(t: Text, scales: list[str]) -> list[str]:
    """Each scale with what those above it and below it see."""
    doubled = t.constant("float", np.array([1, 1, 2, 2], np.float32))
    found, above, lateral = [], scales[-1], []
    for level in (1, 0):
        given, made = WIDTHS[level + 1], WIDTHS[level]
        narrow = _silu(t, conv(t, above, (given, made), 1, 1))
        lateral.insert(0, narrow)
        how = 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
        up = t(f"Resize<{how}>", narrow, "", doubled)
        both = t("Concat<axis=1>", up, scales[level])
        above = _split(t, both, 2 * made, made, adds=False)
    found.append(above)
    for level in (0, 1):
        width = WIDTHS[level]
        down = _separable(t, found[-1], width, width, 2)
        both = t("Concat<axis=1>", down, lateral[level])
        found.append(_split(t, both, 2 * width, WIDTHS[level + 1], adds=False))
    return found


def _head(t: Text, x: str, width: int) -> str:
    """Boxes, whether there is something, and what: a line of each place."""
    x = _silu(t, conv(t, x, (width, 8), 1, 1))
    classes = _separable(t, x, 8, 8, 1)
    boxes = _separable(t, x, 8, 8, 1)
    parts = [
        conv(t, boxes, (8, 4), 1, 1),
        t("Sigmoid", conv(t, boxes, (8, 1), 1, 1)),
        t("Sigmoid", conv(t, classes, (8, CLASSES), 1, 1)),
    ]
    flat = t.constant("int64", np.array([1, 5 + CLASSES, -1]))
    return t("Reshape", t("Concat<axis=1>", *parts), flat)
