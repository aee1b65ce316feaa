"""Calls of operators that move, pick, place and sample elements."""

from __future__ import annotations

import math

import numpy as np

from dlc.core.types import DType
from dlc.graph.ops import (
    channels,
    first_keys,
    from_sizes,
    gather,
    layout,
    look_up,
    order,
    phases,
    resize,
    row_tiles,
    running,
    sample,
    scatter,
    selection,
    shape,
    smallest,
    sort,
    suppress,
    taps,
    trigonometry,
)
from tests.graph.op_case import Case, N, Onnx, case, same


def _shapes() -> list[Case]:
    cases = [
        case(shape.Reshape(shape=(6, 4)), "f32[2, 3, 4]"),
        case(shape.Reshape(shape=(N, 12)), "f32[n, 3, 4]"),
        case(shape.Reshape(shape=(N * 3, 2, 2)), "f32[n, 3, 4]"),
        case(shape.Reshape(shape=(1, N, 1, 5)), "f32[n, 5, 1]"),
        case(shape.Reshape(shape=()), "f32[1, 1]"),
        case(shape.Reshape(shape=(4, 3, N)), "f32[2, 6, n]"),
        case(shape.Reshape(shape=(0, 5)), "f32[0, 3]"),
        case(shape.Transpose(perm=(2, 0, 1)), "f32[n, 3, 4]",
             onnx=same("Transpose", perm=(2, 0, 1))),
        case(shape.Transpose(perm=()), "i64[()]"),
        case(shape.Concat(axis=1), "f32[2, n]", "f32[2, 3]", "f32[2, 1]",
             onnx=same("Concat", axis=1)),
        case(shape.Concat(axis=-1), "i32[3]", "i32[2]", onnx=same("Concat", axis=-1)),
        case(shape.Concat(axis=0), "f32[2]"),
        case(shape.Concat(axis=0), *(f"i32[{1 + i % 3}]" for i in range(37)),
             onnx=same("Concat", axis=0)),
        case(shape.Empty(shape=(2, N))),
        case(shape.Insert(offset=(0, 2)), "f32[n, 5]", "f32[n, 2]"),
        case(shape.Insert(offset=(N, 1)), "i32[n + 2, 3]", "i32[2, 1]"),
        case(shape.Slice(starts=(1, 0), sizes=(2, N), steps=(1, 2)), "f32[4, n * 2]"),
        case(shape.Slice(starts=(N - 1, 3), sizes=(N, 2), steps=(-1, -2)), "f32[n, 5]"),
        case(shape.Slice(starts=(2,), sizes=(0,)), "f32[4]"),
        case(shape.Pad(before=(1, 0), after=(0, 2), value=-1.5), "f32[n, 3]"),
        case(shape.Pad(before=(0, N), after=(N, 0)), "i32[2, 2]"),
        case(shape.Pad(before=(-1, 1), after=(1, -1), value=7), "i64[3, 4]",
             onnx=Onnx("Pad", {}, (np.array([-1, 1, 1, -1]), np.array(7)), by_runtime=True)),
        case(shape.Pad(before=(0, 1), after=(0, 2), value=True), "bool[2, 3]"),
    ]  # fmt: skip
    for mode in ("reflect", "edge", "wrap"):
        onnx = Onnx("Pad", {"mode": mode}, (np.array([2, 0, 1, 3]),))
        op = shape.Pad(before=(2, 0), after=(1, 3), mode=mode)
        cases.append(case(op, "f32[3, 4]", onnx=onnx))
        op = shape.Pad(before=(3, 5), after=(1, 4), mode=mode)
        cases.append(case(op, "f32[2, 2]"))  # further than once across
        op = shape.Pad(before=(2,), after=(3,), mode=mode, value=-1.0)
        cases.append(case(op, "f32[n]", sizes=({"n": 3}, {"n": 1})))
        op = shape.Pad(before=(0, 2), after=(0, -2), mode=mode)
        cases.append(case(op, "f32[n, 3]"))
    cases += [
        case(shape.Expand(shape=(2, N, 3)), "f32[n, 1]"),
        case(shape.Expand(shape=(3,)), "f32[2, 3]", onnx=Onnx("Expand", {}, (np.array([3]),))),
        case(shape.Expand(shape=(2, 3)), "f32[()]", onnx=Onnx("Expand", {}, (np.array([2, 3]),))),
        case(shape.Tile(repeats=(2, 1, 3)), "f32[n, 2, 2]"),
        case(shape.Tile(repeats=(N,)), "i64[3]"),
        case(channels.PackChannels(block=4), "f32[n, 6, 2, 3]"),
        case(channels.PackChannels(block=2), "f32[2, 4, 3]"),
        case(channels.PackChannels(block=3), "f32[1, n]"),
        case(channels.UnpackChannels(channels=6), "f32[n, 2, 2, 3, 4]"),
        case(channels.UnpackChannels(channels=N), "f32[1, (n + 2) // 3, 3]"),
        case(from_sizes.SizeTensor(values=(N, 3, N * 2), shape=(3,))),
        case(from_sizes.SizeTensor(values=(N,), shape=())),
        case(from_sizes.SizeTensor(values=(1, 2, 3, N), shape=(2, 2), dtype=DType.I32)),
        case(from_sizes.SizeTensor(values=(), shape=(0,))),
        case(from_sizes.SizeTensor(values=(N, N, 7, N + 1, N + 1, N + 1), shape=(3, 2))),
        case(from_sizes.Range(size=N)),
        case(from_sizes.Range(size=4, start=N, delta=-2, dtype=DType.I32)),
        case(from_sizes.Range(size=5, start=0.5, delta=0.25, dtype=DType.F32)),
        case(from_sizes.Range(size=3, start=2, delta=1.5, dtype=DType.F32)),
        case(layout.DepthToSpace(blocksize=2), "f32[n, 8, 2, 3]",
             onnx=same("DepthToSpace", blocksize=2)),
        case(layout.DepthToSpace(blocksize=2, mode="CRD"), "f32[1, 8, 2, 3]",
             onnx=same("DepthToSpace", blocksize=2, mode="CRD")),
        case(layout.SpaceToDepth(blocksize=2), "f32[n, 3, 4, 6]",
             onnx=same("SpaceToDepth", blocksize=2)),
        case(layout.Interleave(stride=(2, 3)), "f32[n, 12, 3, 2, 4]"),
        case(layout.Interleave(stride=(3,)), "f32[2, 6, n, 2]"),
        case(phases.SplitPhases(steps=(2, 3)), "f32[n, 2, 6, 9, 4]"),
        case(phases.SplitPhases(steps=(3, 2)), "f32[1, 2, n + 1, 5, 4]"),
        case(phases.SplitPhases(steps=(3,)), "f32[n, 2, 7, 4]"),
        case(phases.SplitPhases(steps=(2,)), "f32[1, 2, n + 1, 4]"),
        case(phases.JoinPhases(steps=(3,), sizes=(7,)), "f32[n, 2, 3, 3, 4]"),
        case(phases.JoinPhases(steps=(2, 3), sizes=(6, 9)), "f32[n, 2, 6, 3, 3, 4]"),
        case(phases.JoinPhases(steps=(3, 2), sizes=(7, 3)), "f32[1, 1, 6, n + 3, 2, 4]"),
        case(layout.ChannelShuffle(groups=3), "f32[n, 6, 5]"),
        case(layout.ChannelShuffle(groups=1), "f32[2, 5]"),
        case(layout.ChannelShuffle(groups=2), "f32[2, n * 2, 3, 2]"),
        case(layout.MoveChannels(), "f32[n, 3, 5, 2]", "i32[4, 2]",
             values=(None, [0, 5, 2, 2, 4, 1, 3, 0])),
    ]  # fmt: skip
    return cases


def _gathers() -> list[Case]:
    inside, nd = ([0, -1, 2, -3, 1, 0],), ([0, 1, -1, -2, 1, 0],)
    return [
        case(gather.Gather(axis=1), "f32[n, 3, 2]", "i64[2, 3]", values=(None, *inside),
             onnx=same("Gather", axis=1)),
        case(gather.Gather(), "f32[3, 2]", "i32[()]", values=(None, [-1]), onnx=same("Gather")),
        case(gather.Gather(axis=-1), "bool[2, 3]", "i64[n]", values=(None, [2])),
        case(look_up.LookUp(), "i8[n, 3]", "u8[256]"),
        case(look_up.LookUp(), "u8[70]", "i8[256]", values=(range(100, 170), None)),
        case(look_up.LookUp(), "i8[4]", "f32[256]", values=([-128, -1, 0, 127], None)),
        case(gather.Gather(), "f32[n, 2]", "i64[n]", values=(None, [0, -1])),
        case(gather.Gather(), "f32[3, 2]", "i64[4]", values=(None, [7, -9, 3, -4])),
        case(gather.GatherElements(axis=1), "f32[2, 3]", "i64[2, 3]", values=(None, *inside),
             onnx=same("GatherElements", axis=1)),
        case(gather.GatherElements(), "f32[3, 3]", "i64[n, 2]", values=(None, *inside)),
        case(gather.GatherND(), "f32[2, 2, 3]", "i64[3, 2]", values=(None, *nd),
             onnx=same("GatherND")),
        case(gather.Gather(), "f32[n, 2]", "i64[2]", values=(None, [0, -1])),
        case(gather.GatherElements(axis=1), "f32[2, n]", "i64[2, 2]", values=(None, [0, -1])),
        case(gather.GatherND(), "f32[n, 2]", "i64[3, 1]", values=(None, [0, -1])),
        case(gather.GatherND(), "f32[2, 2, 3]", "i64[n, 1]", values=(None, *nd)),
        case(gather.GatherND(batch_dims=1), "f32[2, 3, 2]", "i64[2, 4, 1]", values=(None, *nd),
             onnx=same("GatherND", batch_dims=1)),
        case(gather.OneHot(depth=4), "i64[n, 2]", "f32[2]", values=([0, 3, -1, -4, 4, -5], [2, 5])),
        case(gather.OneHot(depth=3, axis=0), "i32[4]", "i64[2]", values=([0, 2, -1, 3], [0, 1]),
             onnx=Onnx("OneHot", {"axis": 0}, (np.array(3),), order=(0, -1, 1))),
        case(gather.OneHot(depth=N, axis=1), "i64[2, 2]", "f32[2]", values=([0, 2, -1, 3], [0, 1])),
        case(gather.Trilu(), "f32[n, 3, 4]", onnx=same("Trilu")),
        case(gather.Trilu(upper=False, k=1), "i64[4, 3]", onnx=Onnx(
            "Trilu", {"upper": 0}, (np.array(1),))),
        case(gather.Trilu(k=-1), "f32[n, n]"),
    ]  # fmt: skip


def _resizes() -> list[Case]:
    cases = []
    for mode in resize.MODES:
        for coordinates in resize.COORDINATES:
            theirs = {"mode": mode, "coordinate_transformation_mode": coordinates}
            op = resize.Resize(sizes=(1, 1, 7, 5), mode=mode, coordinates=coordinates)
            older = coordinates == "tf_half_pixel_for_nn"  # until Resize-18; not by the evaluator
            onnx = Onnx(
                "Resize", theirs, (None, None, np.array([1, 1, 7, 5])),
                opset=13 if older else 22, by_runtime=older,
            )  # fmt: skip
            settings = {"data": "unit", "rtol": 0 if mode == "nearest" else 1e-5}
            cases.append(case(op, "f32[1, 1, 3, 4]", onnx=onnx, **settings))
            op = resize.Resize(sizes=(N, 2, 3), mode=mode, coordinates=coordinates)
            cases.append(case(op, "f32[n, 5, 3]", **settings))
    for rounding in resize.ROUNDINGS:
        theirs = {"nearest_mode": rounding, "coordinate_transformation_mode": "asymmetric"}
        scales = (1.0, 1.0, 2.0, 0.6)
        op = resize.Resize(
            sizes=(1, 1, 6, 3), coordinates="asymmetric", rounding=rounding, scales=scales
        )
        onnx = Onnx("Resize", theirs, (None, np.array(scales, np.float32)))
        cases.append(case(op, "f32[1, 1, 3, 5]", onnx=onnx))
    for mode, scales in (
        ("linear", (1.0, 1.0, 2.0, 0.7)),
        ("linear", (1.0, 1.0, 2.5, 0.3)),
        ("cubic", (1.0, 1.0, 2.5, 0.7)),
        ("nearest", (1.0, 1.0, 2.5, 0.7)),
    ):  # of 5 columns 3 or 1 are left: corners lie on corners, or the first one on the first
        theirs = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
        sizes = (1, 1, int(3 * scales[2]), int(5 * scales[3]))
        op = resize.Resize(sizes=sizes, mode=mode, coordinates="align_corners", scales=scales)
        onnx = Onnx("Resize", theirs, (None, np.array(scales, np.float32)), by_runtime=True)
        cases.append(case(op, "f32[1, 1, 3, 5]", onnx=onnx, data="unit", rtol=1e-5))
    cubic = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    op = resize.Resize(
        sizes=(1, 1, 6, 3), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=True,
        scales=(1.0, 1.0, 2.0, 0.75),
    )  # fmt: skip
    onnx = Onnx("Resize", cubic, (None, np.array((1, 1, 2, 0.75), np.float32)))
    unit = resize.SCALE_UNIT
    cases += [
        case(resize.Resize(sizes=(2, 6), scales=(1.0, N * unit)), "f32[2, 3]", sizes=({"n": 2},)),
        case(
            resize.Resize(sizes=(2, 5), scales=(1.0, N), mode="linear"),
            "f32[2, 3]",
            sizes=({"n": unit * 5 // 3},),
            data="unit",
            rtol=1e-5,
        ),
        case(op, "f32[1, 1, 3, 4]", data="unit", rtol=1e-5, onnx=onnx),
        case(resize.Resize(sizes=(2, N * 2)), "f32[2, n]"),
        case(resize.Resize(sizes=(1, N * 2), mode="linear", scales=(1.0, 2.0)), "f32[1, n]",
             data="unit", rtol=1e-5),
        case(resize.Resize(sizes=(1, 2, 6, 8, 4), scales=(1.0, 1.0, 2.0, 2.0, 1.0),
             coordinates="asymmetric", rounding="floor"), "f32[1, 2, 3, 4, 4]"),
        case(resize.Resize(sizes=(4, 2), scales=(2.0, 1.0)), "i8[2, 2]"),
        case(resize.Resize(sizes=(1, N), coordinates="pytorch_half_pixel"), "f32[1, 4]"),
        case(taps.WeighNeighbours(), "f32[2, 7, 19]", "i64[3]", "f32[3, 2]",
             values=(None, (5, -1, 9))),
        case(taps.WeighNeighbours(), "f32[n, 5, 1]", "i64[2]", "f32[2, 3]", values=(None, (0, 2))),
        case(taps.WeighNeighbours(), "f16[5, n]", "i64[2]", "f32[2, 1]", values=(None, (4, 0))),
    ]  # fmt: skip
    return cases


def _scatters() -> list[Case]:
    at = [0, -1, 1, 2, 1, -2]
    cases = []
    for reduction in ("none", "add", "mul", "max", "min"):
        onnx = same("ScatterElements", axis=1, reduction=reduction)
        once = [0, -1, 1, 2, 1, -3] if reduction == "none" else at
        cases += [
            case(scatter.ScatterElements(axis=1, reduction=reduction), "f32[3, 3]", "i64[2, 3]",
                 "f32[2, 3]", values=(None, once), onnx=onnx),
            case(scatter.ScatterElements(reduction=reduction), "i32[3, 2]", "i64[n, 2]",
                 "i32[n, 2]", values=(None, at)),
            case(scatter.ScatterND(reduction=reduction), "f32[3, 2]", "i64[2, 1]", "f32[2, 2]",
                 values=(None, [0, 2]), onnx=same("ScatterND", reduction=reduction)),
            case(scatter.ScatterND(reduction=reduction), "f32[3, 3, n]", "i64[2, 2, 2]",
                 "f32[2, 2, n]", values=(None, [0, 1, 2, -1, 0, 1, -3, 7])),
            case(scatter.ScatterND(reduction=reduction), "f32[5, 21]", "i64[n, 1]", "f32[n, 21]",
                 values=(None, [1, -1, 1])),
            case(scatter.ScatterElements(axis=1, reduction=reduction), "f16[n, 5]", "i64[n, 4]",
                 "f16[n, 4]", values=(None, [1, -1, 1, 9]), rtol=2e-3),
        ]  # fmt: skip
    return cases


def _others() -> list[Case]:
    trig = {
        trigonometry.Atan: ("Atan", "unit"), trigonometry.Asin: ("Asin", "ratio"),
        trigonometry.Acos: ("Acos", "ratio"), trigonometry.Asinh: ("Asinh", "unit"),
        trigonometry.Acosh: ("Acosh", "positive"), trigonometry.Atanh: ("Atanh", "ratio"),
        trigonometry.Tan: ("Tan", "unit"),
    }  # fmt: skip
    cases = [
        case(op(), "f32[n, 20]", data=data, rtol=1e-6, onnx=same(name) if data == own else None)
        for op, (name, own) in trig.items() for data in (own, "special")
    ]  # fmt: skip
    cases += [
        case(trigonometry.Asinh(), "f32[3]", values=([1e-6, 1e20, -1e-6],), rtol=1e-6),
        case(trigonometry.Acosh(), "f32[3]", values=([1.0, 1.0001, 1e20],), rtol=1e-5),
        case(trigonometry.Acos(), "f32[3]", values=([1.0, -1.0, 0.9999],), rtol=1e-6),
        case(trigonometry.Atan(), "f32[4]", values=([3.0, -3.0, 1.0, 1e30],), rtol=1e-6),
        case(trigonometry.Atan(), "f64[5]", values=([3.0, -0.3, 1.0, 1e30, -0.42],), rtol=1e-15),
        case(trigonometry.Asin(), "f64[4]", values=([-1.0, 0.3, 0.999, 1e-9],), rtol=2e-15),
        case(trigonometry.Acos(), "f64[4]", values=([-0.999, 0.3, 1.0, -1e-9],), rtol=2e-15),
        case(gather.ReverseSequence(), "f32[5, n, 2]", "i64[n]", values=(None, [3, 5, 1])),
        case(gather.ReverseSequence(batch_axis=0, time_axis=1), "f32[3, 4]", "i64[3]",
             values=(None, [2, 4, 1]),
             onnx=same("ReverseSequence", batch_axis=0, time_axis=1)),
        case(gather.ReverseSequence(), "f32[3, 4]", "i64[4]", values=(None, [0, 9, -2, 3])),
    ]  # fmt: skip
    for largest in (True, False):
        onnx = Onnx("TopK", {"axis": 1, "largest": int(largest)}, (np.array([3]),))
        cases += [
            case(sort.TopK(k=3, axis=1, largest=largest), "f32[2, 6]", data="unit", onnx=onnx),
            case(sort.TopK(k=4, largest=largest), "i32[n, 7]"),
            case(sort.TopK(k=N, axis=0, largest=largest), "f32[n, 2]"),
            case(
                sort.TopK(k=4, largest=largest),
                "f32[5]",
                values=([math.nan, 1.0, math.nan, math.inf, 1.0],),
            ),
            case(sort.TopK(k=13, largest=largest), "f32[13]", data="special"),
            case(sort.TopK(k=2, axis=1, largest=largest), "f32[2, 29, 5]", data="special"),
            case(sort.TopK(k=3, axis=1, largest=largest), "f32[2, 71]", onnx=onnx),
            case(sort.TopK(k=7, axis=0, largest=largest), "f32[103, 3]", data="special"),
            case(sort.TopK(k=1, largest=largest), "i32[n, 37]"),
            case(sort.TopK(k=5, largest=largest), "i64[301]"),
            case(sort.TopK(k=0, largest=largest), "f32[50]"),
        ]
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                op = sample.GridSample(mode=mode, padding_mode=padding, align_corners=align)
                theirs = {"mode": mode, "padding_mode": padding, "align_corners": align}
                onnx = Onnx("GridSample", theirs, by_runtime=(mode, padding) == ("cubic", "border"))
                settings = {"data": "unit", "rtol": 2e-5}
                cases.append(case(op, "f32[1, 2, 3, 4]", "f32[1, 3, 5, 2]", onnx=onnx, **settings))
                cases.append(case(op, "f32[1, 1, n, 1]", "f32[1, 2, 2, 2]", **settings))
                far = math.inf if padding == "reflection" else math.nan  # ever between two mirrors
                odd = {"values": (None, [math.nan, 0.3, 0.3, math.nan, far, -far]), "rtol": 2e-5}
                onnx = Onnx("GridSample", theirs, by_runtime=True)
                cases.append(case(op, "f32[1, 2, 3, 4]", "f32[1, 1, 3, 2]", onnx=onnx, **odd))
                pixels = sample.GridSamplePixels(
                    mode=mode, padding_mode=padding, align_corners=align
                )
                cases.append(case(pixels, "f32[2, 3, 4, 19]", "f32[2, 3, n, 2]", **settings))
                cases.append(case(pixels, "f32[1, n, 2, 5, 9]", "f32[1, 2, 1, 3, 3]", **settings))
                cases.append(case(pixels, "f32[1, 3, 4, 9]", "f32[1, 1, 3, 2]", **odd))
    linear = sample.GridSample()
    cases += [
        case(linear, "f32[n, 2, 3]", "f32[n, 4, 1]", data="unit", rtol=2e-5),
        case(linear, "f32[1, 1, 2, 2, 3]", "f32[1, 1, 2, 2, 3]", data="unit", rtol=2e-5),
        case(linear, "f32[1, 1, 2, 2]", "f32[1, 1, 2, 2]", rtol=2e-5,
             values=(None, [1e30, math.inf, -math.inf, -1e30])),
    ]  # fmt: skip
    return cases


def _orders() -> list[Case]:
    bits = [0x7FC00000, 0xFFC00001, 0x7F800000, 0xFF800000, 0x80000000, 0, 0x3F800000, 0xBF800001]
    cases = [
        case(order.OrderKeys(of=DType.F32), "u32[n, 4]", values=(bits,)),
        case(order.OrderKeys(of=DType.F32, largest=True), "u32[8]", values=(bits,)),
        case(order.OrderKeys(of=DType.BF16), "u16[8]", values=([b >> 16 for b in bits],)),
        case(order.OrderKeys(of=DType.F16), "u16[4]", values=([0x7C00, 0x7C01, 0x8000, 0xFC00],)),
        case(order.OrderKeys(of=DType.F64), "u64[8]", values=([b << 32 for b in bits],)),
        case(order.OrderKeys(of=DType.I8), "u8[3]", values=([0, 127, 255],)),
        case(order.OrderKeys(of=DType.I64, largest=True), "u64[3]", values=([0, 1, 1 << 63],)),
        case(order.OrderKeys(of=DType.U16, largest=True), "u16[n]"),
    ]  # fmt: skip
    for kind in (order.SortOrder, smallest.Smallest):
        cases += [
            case(kind(k=5), "u32[2, 5]", data="bits"),
            case(kind(k=3), "u8[3, 71]"),
            case(kind(k=60), "u16[1, 131]"),
            case(kind(k=N), "u32[2, n]", data="bits"),
            case(kind(k=N), "u64[n, 130]"),
            case(kind(k=7), "u64[1, 64]", data="bits"),
            case(kind(k=N), "u16[1, n + 66]", data="bits"),
            case(kind(k=0), "u32[n, 4]"),
            case(kind(k=0), "u32[2, 0]"),
        ]
    dozen = [5, 0, 255, 7, 7, 0, 1, 255, 3, 3, 2, 9]
    cases += [
        case(smallest.Smallest(k=3), "u8[2, 84]", values=(dozen,)),
        case(smallest.Smallest(k=70), "u8[1, 1100]", values=(dozen,)),
        case(smallest.Smallest(k=20), "u32[2, 330]", data="bits"),
        case(smallest.Smallest(k=8), "u64[1, 200]", data="bits"),
        case(smallest.Smallest(k=1), "u32[3, n + 1]", data="bits"),
        case(smallest.Smallest(k=9), "u16[n, 4300]", values=([65535],)),
        case(smallest.Smallest(k=N), "u32[2, n + 254]", data="bits"),  # by candidates where n is 3
        case(smallest.Smallest(k=N + 30), "u8[1, 600]", values=(dozen,)),
        case(smallest.Smallest(k=0), "u64[n, 300]"),
        case(first_keys.FirstKeys(k=1, lanes=8), "u32[19, 13]", data="bits"),
        case(first_keys.FirstKeys(k=3, lanes=8), "u8[n + 17, 12]", values=(dozen,)),
        case(first_keys.FirstKeys(k=5, lanes=8), "u16[8, 6]", values=([65535],)),
        case(first_keys.FirstKeys(k=2, lanes=16), "u32[33, n + 16]", values=([1, 1, 0, 2],)),
        case(first_keys.FirstKeys(k=4, lanes=4), "u64[n, 4]", data="bits"),
        case(
            first_keys.FirstKeys(k=4, lanes=4),
            "u64[9, 11]",
            values=(np.array([2**64 - 1, 1, 1], np.uint64),),
        ),
    ]
    return cases


def _selections() -> list[Case]:
    flags = [*[False] * 70, True, False, True, *[False] * 60]
    boxes = [[0, 0, 0, 9, 0, 1], [4, 4, 2, 12, 3, 5], [0, 1, 0, 9, 0, 1], [4, 5, 2, 12, 4, 5]]
    areas = [(b - t) * (r - c) for t, b, c, r in zip(*boxes, strict=True)]
    types = ["f32[2, 1, 6]"] * 5
    dynamic = ["f32[n, 1, n + 17]"] * 5
    return [
        case(selection.TruePlaces(count=2), "bool[5]", values=([False, True, False, True, False],)),
        case(selection.TruePlaces(count=2), "bool[133]", values=(flags,)),
        case(selection.TruePlaces(count=N), "bool[n + 66]", values=([True],)),
        case(selection.TruePlaces(count=0), "bool[n]", values=([False],)),
        case(selection.TruePlaces(count=0), "bool[0]"),
        case(row_tiles.TileBegins(matrices=4, rows=2), "i64[7]", values=([2, 0, 2, -4, 0, 2, 3],)),
        case(row_tiles.TileBegins(matrices=3, rows=4), "i32[n]", values=([1],)),
        case(row_tiles.RowTiles(tiles=5, rows=2), "i64[7]", "i64[5]",
             values=([2, 0, 2, -4, 0, 2, 3], [0, 2, 2, 4, 5])),
        case(row_tiles.RowTiles(tiles=(N + 3) // 4, rows=4), "i32[n]", "i64[4]",
             values=([1], [0, 0, 0, 0])),
        case(suppress.Suppress(steps=4), "u32[2, 3, 6]", "bool[2, 3, 6]", *types, "f32[()]",
             values=(None, None, *boxes, areas, [0.25])),
        case(suppress.Suppress(steps=20), "u32[2, 1, 6]", "bool[2, 1, 6]", *types, "f32[()]",
             values=([3, 0, 5, 3, 1, 2], [True], *boxes, areas, [1.0])),
        case(suppress.Suppress(steps=N), "u32[n, 2, n + 17]", "bool[n, 2, n + 17]", *dynamic,
             "f32[()]", values=(None, None, *boxes, areas, [0.0])),
        case(suppress.Suppress(steps=2), "u32[0, 1, 6]", "bool[0, 1, 6]", *["f32[0, 1, 6]"] * 5,
             "f32[()]"),
    ]  # fmt: skip


RUNNING = ("f32[9, 5, 1]", "i32[n, 4, 1]", "f32[2, n, 19]", "f16[1, 7, 3]", "u8[3, n, 2]")


def _running() -> list[Case]:
    cases = []
    for exclusive in (False, True):
        for reverse in (False, True):
            op = running.RunningSum(exclusive=exclusive, reverse=reverse)
            shapes = (
                "f32[9, 5, 1]",
                "i32[n, 4, 1]",
                "f32[2, n, 19]",
                "f16[1, 7, 3]",
                "u8[3, n, 2]",
            )
            cases += [case(op, shape) for shape in shapes]
    return [
        *cases,
        case(running.RunningSum(), "f32[17, 40, 1]"),
        case(running.RunningSum(), "i8[0, 3, 2]"),
    ]


MOVES: list[Case] = [
    *_shapes(),
    *_orders(),
    *_gathers(),
    *_resizes(),
    *_scatters(),
    *_selections(),
    *_running(),
    *_others(),
]
