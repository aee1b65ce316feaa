"""Convolutions, pools and resampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlc.testing.draft import DiscardError, Draft, Known
from dlc.testing.recipes.recipe import Recipe

CHANNELS = (1, 2, 3, 4, 8, 15, 16, 17, 32, 33)


def _image(draft: Draft, spatial: int) -> Known:
    """An image that is at least 3 wide: mostly one the model computed."""
    fits = [v for v in draft.values if v.array.dtype.name == "float32" and v.rank == spatial + 2]
    fits = [v for v in fits if min(v.shape) >= 1]
    if fits and draft.rng.random() < 0.75:
        return draft.rng.choice(fits[-4:])
    sizes = [draft.rng.choice((1, 3, 4, 5, 7, 8, 9, 14)) for _ in range(spatial)]
    return draft.make(
        "float32", (draft.rng.choice((1, 1, 2, 3)), draft.rng.choice(CHANNELS), *sizes)
    )


def _window(draft: Draft, image: Known, spatial: int) -> dict[str, Any]:
    kernel = [draft.rng.choice((1, 1, 2, 3, 3, 5)) for _ in range(spatial)]
    if draft.rng.random() < 0.1:  # as large as the image
        kernel = [min(n, 9) for n in image.shape[2:]]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if draft.rng.random() < 0.4:
        found["strides"] = [draft.rng.choice((1, 2, 3)) for _ in range(spatial)]
    if draft.rng.random() < 0.25:
        found["auto_pad"] = draft.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        found["pads"] = [draft.rng.randint(0, max(0, k - 1)) for k in (*kernel, *kernel)]
        if draft.rng.random() < 0.25:
            found["dilations"] = [draft.rng.choice((1, 2)) for _ in range(spatial)]
    return found


def _conv(draft: Draft, op: str) -> None:
    spatial = draft.rng.choice((1, 2, 2, 2, 2, 3))
    image = _image(draft, spatial)
    window = _window(draft, image, spatial)
    channels = image.shape[1]
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    group = draft.rng.choice((1, 1, 1, channels, draft.rng.choice(divisors)))
    kernel = window.get("kernel_shape")
    assert isinstance(kernel, list)
    out = group * draft.rng.choice((1, 1, 2, 3) if group > 1 else CHANNELS)
    if op == "Conv":
        w = draft.make("float32", (out, channels // group, *kernel), -1, 1, _constant(draft))
    else:
        w = draft.make("float32", (channels, out // group, *kernel), -1, 1, _constant(draft))
        if draft.rng.random() < 0.3:
            steps = window.get("strides", [1] * spatial)
            assert isinstance(steps, list)
            window["output_padding"] = [draft.rng.randrange(step) for step in steps]
    bias = [draft.make("float32", (out,), constant=True)] if draft.rng.random() < 0.6 else []
    made = draft.add(op, [image, w, *bias], group=group, **window)[0]
    _decorate(draft, made, out, spatial)


def _constant(draft: Draft) -> bool:
    return draft.rng.random() < 0.85


def _decorate(draft: Draft, value: Known, channels: int, spatial: int) -> None:
    """What follows a convolution in most models: normalisation, activation, residual."""
    if draft.rng.random() < 0.4:
        shape = (channels,)
        scale, bias, mean = (draft.make("float32", shape, constant=True) for _ in range(3))
        variance = draft.make("float32", shape, 0.25, 2, constant=True)
        value = draft.add("BatchNormalization", [value, scale, bias, mean, variance])[0]
    if draft.rng.random() < 0.3:
        other = draft.make("float32", (channels, *([1] * spatial)))
        value = draft.add(draft.rng.choice(("Add", "Mul")), [value, other])[0]
    if draft.rng.random() < 0.3:
        value = draft.add("Add", [value, draft.like(value)])[0]
    if draft.rng.random() < 0.5:
        value = draft.add(draft.rng.choice(("Relu", "Sigmoid", "HardSwish", "LeakyRelu")), [value])[
            0
        ]
    if draft.rng.random() < 0.15:
        gate = draft.add("Sigmoid", [value])[0]
        draft.add("Mul", [value, gate])


def _pool(draft: Draft, op: str) -> None:
    spatial = draft.rng.choice((1, 2, 2, 2, 3))
    image = _image(draft, spatial)
    window = _window(draft, image, spatial)
    if op == "AveragePool":
        window["count_include_pad"] = draft.rng.randint(0, 1)
        if draft.opset < 19:
            window.pop("dilations", None)
    if op == "LpPool":
        window["p"] = draft.rng.choice((1, 2, 3))
        window.pop("dilations", None)
    if "auto_pad" not in window and op != "LpPool" and draft.rng.random() < 0.3:
        window["ceil_mode"] = 1
    draft.add(op, [image], exact=op == "MaxPool", **window)


def _global(draft: Draft, op: str) -> None:
    draft.add(op, [_image(draft, draft.rng.choice((1, 2, 2, 3)))], exact=op == "GlobalMaxPool")


def _resize(draft: Draft, op: str) -> None:
    image = _image(draft, 2)
    if draft.special:
        raise DiscardError("engines differ on whether a weight of 0 hides a NaN")
    mode = draft.rng.choice(("nearest", "linear", "cubic"))
    place = draft.rng.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    near = draft.rng.choice(("floor", "ceil", "round_prefer_floor")) if mode == "nearest" else None
    if draft.rng.random() < 0.5:
        scale = draft.rng.choice((0.5, 2.0, 1.0))
        extra = [None, draft.data(np.asarray([1, 1, scale, 2.0], np.float32))]
    else:
        sizes = [*image.shape[:2], *(draft.rng.randint(1, 9) for _ in range(2))]
        extra = [None, None, draft.data(np.asarray(sizes, np.int64))]
    draft.add(
        op,
        [image, *extra],
        mode=mode,
        coordinate_transformation_mode=place,
        nearest_mode=near,
        exact=mode == "nearest",
    )


def _grid(draft: Draft, op: str) -> None:
    image = _image(draft, 2)
    grid = draft.make("float32", (image.shape[0], 3, 4, 2), -1, 1)
    mode = draft.rng.choice(("linear", "cubic")) if draft.opset >= 20 else "bilinear"
    padding = draft.rng.choice(("zeros", "border", "reflection"))
    corners = draft.rng.randint(0, 1)
    draft.add(op, [image, grid], mode=mode, padding_mode=padding, align_corners=corners)


WINDOWS = (
    Recipe(("Conv",), _conv, 7),
    Recipe(("ConvTranspose",), _conv, 1),
    Recipe(("MaxPool", "AveragePool", "LpPool"), _pool, 2.5),
    Recipe(("GlobalAveragePool", "GlobalMaxPool"), _global),
    Recipe(("Resize",), _resize, 1.5),
    Recipe(("GridSample",), _grid, 0.5),
)
