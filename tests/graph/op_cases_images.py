"""Calls of operators on images and their patches, and of random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlc.core.types import DType
from dlc.graph.ops import cache, columns, random, roi, unpool
from dlc.te.expr import index
from tests.graph.op_case import LOOSE, Case, N, Onnx, case


def _pools() -> list[Case]:
    def largest(x: str, **attributes: Any) -> Case:
        return case(unpool.MaxPoolIndices(**attributes), x)

    cases = [
        largest("f32[2, 3, 5, 6]", kernel=(3, 2)),
        largest("f32[n, 1, 5, 6]", kernel=(3, 3), stride=(2, 1), pads=(1, 1, 1, 1)),
        largest("f32[1, 2, 7, 8]", kernel=(2, 3), dilation=(2, 2), column_major=True),
        largest("f32[1, 2, 6, 7]", kernel=(3, 3), stride=(2, 2), pads=(0, 1, 0, 1), ceil_mode=True),
        largest("i8[2, 2, 7]", kernel=(3,), stride=(2,), pads=(0, 0), dilation=(1,)),
        case(unpool.MaxPoolIndices(kernel=(2, 2)), "f32[1, 1, 4, 5]", data="special"),
    ]
    back = unpool.MaxUnpool(kernel=(2, 2), stride=(2, 2), pads=(0, 0, 0, 0), image=(4, 6))
    cases += [
        case(back, "f32[1, 1, 2, 3]", "i64[1, 1, 2, 3]", data="positive",
             values=(None, [1, 8, 5, 12, 20, 999])),
        case(unpool.MaxUnpool(kernel=(3,), stride=(2,), pads=(1, 0), image=(6,)), "f32[n, 2, 3]",
             "i64[n, 2, 3]", data="positive", values=(None, [0, 2, 2, 6, 8, -1])),
    ]  # fmt: skip
    return cases


def _columns() -> list[Case]:
    def laid(x: str, image: tuple[Any, ...], kernel: tuple[int, ...], **k: Any) -> Case:
        rank = len(kernel)
        op = columns.Col2Im(
            image=image, kernel=kernel, stride=k.get("stride", (1,) * rank),
            pads=k.get("pads", (0,) * 2 * rank), dilation=k.get("dilation", (1,) * rank),
        )  # fmt: skip
        theirs = {"strides": op.stride, "pads": op.pads, "dilations": op.dilation}
        sizes = tuple(np.array(s, np.int64) for s in (image, kernel)) if "n" not in x else ()
        onnx = Onnx("Col2Im", theirs, sizes) if sizes else None
        return case(op, x, onnx=onnx)

    deform, phases = columns.DeformColumns, columns.Col2ImPhases
    return [
        laid("f32[2, 12, 9]", (4, 5), (2, 3)),
        laid("f32[1, 6, 12]", (7, 6), (3, 2), stride=(2, 1), pads=(1, 0, 0, 0), dilation=(1, 2)),
        laid("i32[n, 2, 4]", (5,), (2,)),
        laid("f32[1, 3, n]", (N + 2,), (3,)),
        case(columns.Col2Im(image=(4, 4), kernel=(2, 2), stride=(1, 1), pads=(0,) * 4,
             dilation=(1, 1)), "f16[1, 4, 9]"),
        case(phases(counts=(3, 2), kernel=(3, 2), stride=(2, 3)), "f32[n, 12, 6]"),
        case(phases(counts=(N,), kernel=(5,), stride=(2,)), "f32[2, 5, n]"),
        case(phases(counts=(2, 1, 3), kernel=(1, 2, 4), stride=(1, 1, 3)), "i32[1, 16, 6]"),
        case(deform(kernel=(2, 2), pads=(1, 0, 0, 1)), "f32[n, 4, 3, 4]", "f32[n, 8, 3, 4]",
             "f32[n, 4, 3, 4]", data="unit", rtol=1e-5),
        case(deform(kernel=(2, 1), stride=(2, 1), dilation=(2, 1), groups=2), "f32[1, 4, 5, 3]",
             "f32[1, 8, 2, 3]", data="unit", rtol=1e-5),
        case(deform(kernel=(1, 1)), "f32[1, 1, 2, 2]", "f32[1, 2, 2, 2]", rtol=1e-5,
             values=(None, [math.inf, -math.inf, 1e30, -1e30, 0, 0.5, 1, -1])),
    ]  # fmt: skip


def _regions() -> list[Case]:
    sides = [0, 0, 3.5, 4, -2, 1, 9, 3, 2, 2, 2, 2]
    cases = []
    for half_pixel in (True, False):
        for adaptive in (True, False):
            op = roi.RoiPoints(
                out=(2, 3), samples=index(3), scale=0.75, half_pixel=half_pixel, adaptive=adaptive
            )
            cases.append(case(op, "f32[3, 4]", values=(sides,), rtol=1e-6))
            cases.append(case(op, "f16[n, 4]", values=(sides,), rtol=1e-6))
    far = [math.nan, 0, 1, 1, -1e30, 0, 1e30, 2]
    boxes = [0, 0, 0, 3, 3, 1, 1, 2, 9, 4, -1, -5, -3, -2, -2, 0, 2, 2, 1, 1]
    inside = [0, 1.5, -0.75, 4.25, 3, 5, -1, -1.5, 9, 0.5, 2, 2]
    some = [2, 1, 3, 0, -1, 2]
    for mode in ("avg", "max"):
        for adaptive in (True, False):
            align = roi.RoiAlign(out=(2, 1), mode=mode, adaptive=adaptive)
            cases.append(
                case(
                    align,
                    "f32[2, 5, 4, 3]",
                    "f32[3, 2]",
                    "f32[3, 2, 2, 3]",
                    "i64[3]",
                    data="unit",
                    rtol=1e-5,
                    values=(None, some if adaptive else [3], inside, [0, 1, 1]),
                )
            )
    wide = roi.RoiAlign(out=(1, 2))
    return [
        *cases,
        case(roi.RoiPoints(out=(1, 1), samples=index(1)), "f32[2, 4]", values=(far,)),
        case(roi.RoiAlign(out=(1, 1)), "f32[1, 2, 2, 1]", "f32[2, 2]", "f32[2, 2, 1, 1]", "i64[2]",
             data="unit", values=(None, [1], far[:4], [7, -9]), rtol=1e-5),
        case(wide, "f32[1, 3, 2, n + 16]", "f32[n, 2]", "f32[n, 2, 2, 1]", "i64[n]",
             data="positive", values=(None, [1], inside, [0]), rtol=1e-5),
        case(wide, "f16[1, 3, 2, 17]", "f32[2, 2]", "f32[2, 2, 2, 2]", "i64[2]",
             data="unit", values=(None, [2], inside, [0]), rtol=2e-3),
        case(roi.MaxRoiPool(out=(2, 2)), "f32[2, 3, 4, 5]", "f32[4, 5]", data="unit",
             values=(None, boxes)),
        case(roi.MaxRoiPool(out=(1, 2), scale=0.5), "f32[2, 1, 4, 5]", "f32[4, 5]", data="unit",
             values=(None, boxes)),
    ]  # fmt: skip


def _caches() -> list[Case]:
    cases = []
    for mode in ("linear", "circular"):
        op = cache.TensorScatter(mode=mode)
        onnx = Onnx("TensorScatter", {"mode": mode}, opset=24)
        at = [1, 2, 0] if mode == "linear" else [3, 1, 2]
        cases += [
            case(op, "f32[3, 2, 4, 5]", "f32[3, 2, 2, 5]", "i64[3]", values=(None, None, at),
                 onnx=onnx),
            case(op, "i8[2, n, 3]", "i8[2, n, 3]", "i64[2]", values=(None, None, [-1, 900])),
        ]  # fmt: skip
    cases.append(case(cache.TensorScatter(axis=1), "f32[n, 4]", "f32[n, 2]"))
    longer, shorter = cache.AppendToCache(size=N + 2), cache.AppendToCache(size=3)
    return [
        *cases,
        case(
            longer, "f32[3, 2, n, 5]", "f32[3, 2, 2, 5]", "i64[3]", values=(None, None, [1, 2, 0])
        ),
        case(shorter, "i8[3, 1, 6, 8]", "i8[3, 1, 2, 8]", "i64[3]", values=(None, None, [1, 2, 9])),
        case(shorter, "f32[2, n, 0, 3]", "f32[2, n, 3, 3]", "i64[2]", values=(None, None, [0, -1])),
        case(shorter, "f32[3, 1, 4, 5]", "f32[3, 1, n, 5]", "i64[3]", "i64[3]",
             values=(None, None, [2, 4, 0], [1, 5, 900])),
        case(cache.AppendToCache(size=2, window=2), "i8[3, 1, 4, 8]", "i8[3, 1, 3, 8]", "i64[3]",
             "i64[3]", values=(None, None, [4, 9, 1], [3, -2, 0])),
    ]  # fmt: skip


def _random() -> list[Case]:
    return [
        case(random.RandomUniform(shape=(3, N, 5), seed=7), rtol=LOOSE),
        case(random.RandomUniform(shape=(), seed=1, low=-2.0, high=5.0), rtol=LOOSE),
        case(random.RandomUniform(shape=(40,), seed=-1, dtype=DType.F64)),
        case(random.RandomUniform(shape=(40,), seed=3, dtype=DType.F16), rtol=1e-3),
        case(random.RandomNormal(shape=(N, 41), seed=9, mean=1.0, scale=3.0), rtol=1e-4),
        case(random.RandomNormal(shape=(7,), seed=9, dtype=DType.F64), rtol=1e-12),
    ]


IMAGES: list[Case] = [*_pools(), *_columns(), *_regions(), *_caches(), *_random()]
