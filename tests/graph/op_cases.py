"""Calls of all operators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dlc.core.types import NARROW, DType
from dlc.graph.ops import activation as act
from dlc.graph.ops import binary as bin_
from dlc.graph.ops import (
    byte_products,
    byte_tiles,
    conv,
    conv_blocked,
    conv_gathered,
    conv_lanes,
    elementwise,
    few_bits,
    matmul,
    narrow,
    norm,
    norm_blocked,
    pairs,
    pairs_computed,
    pairs_planar,
    planes_conv,
    planes_matmul,
    planes_pair,
    planes_planar,
    pool,
    quotient,
    softmax,
    to_bytes,
)
from dlc.graph.ops import reduce as red
from dlc.graph.ops import winograd as wino
from dlc.graph.ops.filters import transform_weights
from tests.graph.op_case import LOOSE, Case, N, Onnx, both, case, same
from tests.graph.op_cases_images import IMAGES
from tests.graph.op_cases_moves import MOVES
from tests.graph.op_cases_trees import TREES


def winograd(
    x: str,
    out: tuple[int, ...] = (2, 2),
    outer: tuple[int, ...] = (),
    kernel: tuple[int, ...] | None = None,
    pixels: Any = None,
    **attributes: Any,
) -> Case:
    """A convolution whose weights are whole numbers in both forms."""
    kernel = kernel or (3,) * len(out)
    scale = math.prod({2: 2, 3: 30, 4: 15}[n] for n in out)  # of the fractions in the transforms
    w = scale * np.random.default_rng(1).integers(-3, 4, (3, 2, *outer, *kernel, 4, 5))
    u = transform_weights(w, out, attributes.get("steps", ()))
    types = (x, *(f"f32[{', '.join(map(str, each.shape))}]" for each in (u, w)))
    return case(wino.ConvWinograd(out=out, **attributes), *types, values=(pixels, u, w))


def winograd_bytes(
    x: str, out: tuple[int, ...] = (2, 2), outer: tuple[int, ...] = (), **attributes: Any
) -> Case:
    """A convolution of bytes, or of what is left of them, the largest often."""
    w = f"i8[{', '.join(map(str, (3, 2, *outer, *(3 for _ in out), 2, 10)))}]"
    random = np.random.default_rng(1)
    values = random.choice([-255, -128, 0, 1, 255], 999), random.choice([-128, -127, 3, 127], 999)
    return case(wino.ConvWinogradBytes(out=out, **attributes), x, w, values=values)


def _elementwise() -> list[Case]:
    exact = {
        elementwise.Floor: "Floor", elementwise.Ceil: "Ceil", elementwise.Round: "Round",
        elementwise.Abs: "Abs", elementwise.Neg: "Neg", elementwise.Sign: "Sign",
        elementwise.Identity: "Identity", elementwise.IsNaN: "IsNaN", elementwise.IsInf: "IsInf",
        act.Relu: "Relu", act.ThresholdedRelu: "ThresholdedRelu", act.Shrink: "Shrink",
    }  # fmt: skip
    rounded = {
        elementwise.Exp: "Exp", elementwise.Log: "Log", elementwise.Sqrt: "Sqrt",
        elementwise.Erf: "Erf", elementwise.Sin: "Sin", elementwise.Cos: "Cos",
        elementwise.Tanh: "Tanh", elementwise.Reciprocal: "Reciprocal",
        elementwise.Sinh: "Sinh", elementwise.Cosh: "Cosh",
        act.Sigmoid: "Sigmoid", act.LeakyRelu: "LeakyRelu", act.Elu: "Elu", act.Celu: "Celu",
        act.Selu: "Selu", act.HardSigmoid: "HardSigmoid", act.HardSwish: "HardSwish",
        act.Softplus: "Softplus", act.Softsign: "Softsign", act.Mish: "Mish",
    }  # fmt: skip
    cases = [case(op(), "f32[n, 5]", data="special", onnx=same(name)) for op, name in exact.items()]
    cases += [
        case(op(), "f32[n, 5]", data=data, rtol=1e-5 if op in (act.Elu, act.Celu) else LOOSE,
             onnx=same(name) if data == "unit" else None)
        for op, name in rounded.items() for data in ("unit", "special")
    ]  # fmt: skip
    cases += [
        case(act.Gelu(), "f32[n, 5]", data="unit", rtol=1e-5, onnx=same("Gelu")),
        case(act.Gelu(approximate="tanh"), "f32[4, 5]", data="unit", rtol=1e-5,
             onnx=same("Gelu", approximate="tanh")),
        case(act.GeluShort(), "f32[n, 5]", data="unit", rtol=1e-4),
        case(act.Silu(), "f32[n, 5]", data="unit", rtol=LOOSE),
        case(act.Silu(alpha=0.5), "f32[5]", data="special", rtol=LOOSE),
        case(act.Elu(alpha=0.5), "f32[5]", data="unit", rtol=1e-5, onnx=same("Elu", alpha=0.5)),
        case(act.Relu(), "i32[5]", onnx=same("Relu")),
        case(elementwise.Neg(), "i64[5]", onnx=same("Neg")),
        case(elementwise.Abs(), "u8[5]", onnx=same("Abs")),
        case(elementwise.Sign(), "u8[5]", onnx=same("Sign")),
        case(elementwise.NanToZero(), "f32[13]", data="special"),
        case(elementwise.IsInf(detect_negative=0), "f32[13]", data="special",
             onnx=same("IsInf", detect_negative=0)),
        case(elementwise.Not(), "bool[n]", onnx=same("Not")),
        case(elementwise.BitwiseNot(), "u8[6]", data="bits", onnx=same("BitwiseNot")),
        case(act.Clip(min=-1.0, max=1.5), "f32[n, 5]", data="special"),
        case(act.Clip(max=2.0), "i32[7]"),
        case(act.Clip(), "f32[7]"),
        # Results far below 1, where 1 + exp(x) and exp(x) - 1 have few digits of them left.
        case(act.Softplus(), "f32[3]", values=([-15.0, -16.0, -17.5],), rtol=1e-6),
        case(act.Elu(), "f32[3]", values=([-1e-4, -3e-5, -1e-5],), rtol=1e-6),
        case(act.Clip(min=2.0, max=1.0), "f32[7]"),
    ]  # fmt: skip
    cases += both(case(act.Relu(), "f32[7]", data="special"))
    targets = (DType.I32, DType.I8, DType.U8, DType.BOOL, DType.F16, DType.F64, DType.F32)
    cases += [case(elementwise.Cast(to=t), "f32[13]", data="special") for t in targets]
    cases += [
        case(narrow.Narrow(), "f32[13]", data="special"),
        case(narrow.Narrow(), "f32[n, 5]", values=([1e-39, -1e-39, 1.0, 3.4e38, 257.0],)),
        case(narrow.Widen(), "bf16[13]", data="special"),
        case(elementwise.Cast(to=DType.U8), "i32[6]", values=([-1, 256, 300, 0, 5, -300],)),
        case(elementwise.Cast(to=DType.BOOL), "i64[6]"),
        case(elementwise.Cast(to=DType.F32), "bool[6]"),
        case(elementwise.Cast(to=DType.I64), "bool[6]"),
        case(elementwise.Cast(to=DType.I64), "f32[4]", values=([3e30, -3e30, 2.9, -2.9],)),
    ]
    for t in sorted(NARROW):
        cases += [
            case(elementwise.Cast(to=t), "f32[n, 5]", data="positive"),
            case(elementwise.Cast(to=DType.F16), f"{t}[n, 5]", data="positive"),
            case(elementwise.Cast(to=DType.U16), f"{t}[7]", data="positive"),
            case(elementwise.Identity(), f"{t}[n, 5]", data="positive"),
        ]
    return cases


def _binary() -> list[Case]:
    numbers = {
        bin_.Add: "Add", bin_.Sub: "Sub", bin_.Mul: "Mul", bin_.Less: "Less",
        bin_.LessEqual: "LessOrEqual", bin_.Greater: "Greater", bin_.Equal: "Equal",
        bin_.GreaterEqual: "GreaterOrEqual", bin_.Minimum: "Min", bin_.Maximum: "Max",
    }  # fmt: skip
    cases = [
        case(op(), "f32[n, 1, 3]", "f32[2, 1]", data=data, onnx=same(name))
        for op, name in numbers.items()
        for data in ("small", "special")
    ]
    cases += [case(op(), "i32[4]", "i32[2, 1]", onnx=same(n)) for op, n in numbers.items()]
    bools = {bin_.And: "And", bin_.Or: "Or", bin_.Xor: "Xor", bin_.Equal: "Equal"}
    cases += [case(op(), "bool[n, 4]", "bool[4]", onnx=same(n)) for op, n in bools.items()]
    bits = {
        bin_.BitwiseAnd(): "BitwiseAnd", bin_.BitwiseOr(): "BitwiseOr",
        bin_.BitwiseXor(): "BitwiseXor",
    }  # fmt: skip
    cases += [case(op, "u8[5]", "u8[5]", data="bits", onnx=same(n)) for op, n in bits.items()]
    signs = ([7, -7, 7, -7, 6, -6, 0, 5], [2, 2, -2, -2, 3, 3, 4, 0])
    unsigned = ([7, 255, 9, 0], [2, 16, 0, 3])
    cases += [
        case(bin_.Add(), "f32[()]", "f32[n]", onnx=same("Add")),
        case(bin_.Add(), "f32[()]", "f32[()]", onnx=same("Add")),
        case(bin_.Add(), "f32[n, n + 1]", "f32[n, n + 1]", onnx=same("Add")),
        case(bin_.Add(), "i8[4]", "i8[4]", values=([127, -128, 3, 4], [1, -1, 3, 4])),
        case(bin_.Div(), "f32[n, 5]", "f32[5]", data="special", rtol=LOOSE, onnx=same("Div")),
        case(quotient.Quotient(), "f32[4]", "f32[()]", "f32[()]",
             values=([3.0, -7.0, 0.0, 1e30], 3.0, 1 / 3), rtol=LOOSE),
        case(quotient.Quotient(), "f32[3]", "f32[()]", "f32[()]",
             values=([math.inf, -math.inf, math.nan], 3.0, 1 / 3)),
        case(to_bytes.ToBytes(to=DType.I8), "f32[9]", "i32[()]",
             values=([0.5, 1.5, 2.5, -0.5, -1.5, 130.4, 130.6, -125.4, -3e8], -3)),
        case(to_bytes.ToBytes(to=DType.U8), "f32[n, 5]", "i32[5]"),
        case(bin_.Div(), "i32[8]", "i32[8]", values=signs),
        case(bin_.Div(), "u8[4]", "u8[4]", values=unsigned),
        case(bin_.Mod(), "i32[7]", "i32[7]", values=tuple(s[:7] for s in signs),
             onnx=same("Mod")),
        case(bin_.Mod(fmod=1), "i32[7]", "i32[7]", values=tuple(s[:7] for s in signs),
             onnx=same("Mod", fmod=1)),
        case(bin_.Mod(), "i32[8]", "i32[8]", values=signs),
        case(bin_.Mod(fmod=1), "u8[4]", "u8[4]", values=unsigned),
        case(bin_.Mod(fmod=1), "f32[8]", "f32[8]", values=signs, onnx=same("Mod", fmod=1)),
        case(bin_.Mod(fmod=1), "f32[4]", "f32[4]",
             values=([7.5, -7.5, 1e9, math.inf], [2.25, 2.25, 7.0, 3.0])),
        case(bin_.Pow(), "f32[4]", "f32[2, 1]", data="positive", rtol=LOOSE, onnx=same("Pow")),
        case(bin_.Pow(), "f32[5]", "f32[5]",
             values=([-2, -2, 0, math.nan, math.inf], [3, 0.5, 0, 0, -1]), rtol=LOOSE),
        case(bin_.Pow(), "i32[4]", "i32[4]", values=([2, -3, 5, 7], [10, 3, 0, 2])),
        case(bin_.BitShift(direction="LEFT"), "u8[4]", "u8[4]",
             values=([1, 255, 3, 7], [1, 4, 7, 8])),
        case(bin_.BitShift(direction="RIGHT"), "u32[4]", "u32[4]",
             values=([1, 255, 300, 7], [1, 4, 7, 32])),
        *(case(bin_.BitShift(direction=d), f"{t}[n, 6]", f"{t}[6]",
               values=([-3, 100, -128, 1, 127, -1], [1, 2, 7, 8, -1, 64]))
          for d in ("LEFT", "RIGHT") for t in ("i8", "i64")),
        case(bin_.Where(), "bool[n, 1]", "f32[4]", "f32[n, 4]", onnx=same("Where")),
        case(bin_.Where(), "bool[3]", "i64[2, 1]", "i64[()]", onnx=same("Where")),
        case(bin_.PRelu(), "f32[n, 3, 2]", "f32[3, 1]", data="special", rtol=LOOSE,
             onnx=same("PRelu")),
    ]  # fmt: skip
    cases += both(case(bin_.Add(), "f32[4]", "f32[4]", data="unit", rtol=LOOSE))
    return cases


def _contractions() -> list[Case]:
    def conv_of(x: str, w: str, **attributes: Any) -> Case:
        names = {"stride": "strides", "dilation": "dilations", "groups": "group"}
        theirs = {names.get(k, k): v for k, v in attributes.items()}
        return case(conv.Conv(**attributes), x, w, onnx=Onnx("Conv", theirs))

    def transposed(x: str, w: str, **attributes: Any) -> Case:
        names = {"stride": "strides", "dilation": "dilations", "groups": "group"}
        theirs = {names.get(k, k): v for k, v in attributes.items()}
        onnx = Onnx("ConvTranspose", theirs, by_runtime=True)
        return case(conv.ConvTranspose(**attributes), x, w, onnx=onnx)

    one = {"stride": (2,), "pads": (1, 2), "dilation": (1,)}
    three = {"stride": (1, 2, 1), "pads": (0, 1, 0, 1, 0, 0), "dilation": (1, 1, 2)}
    return [
        conv_of("f32[n, 2, 5, 6]", "f32[3, 2, 3, 2]", pads=(1, 0, 2, 1)),
        conv_of("f32[1, 4, 7, 9]", "f32[6, 2, 3, 2]", stride=(2, 1), dilation=(1, 2), groups=2),
        conv_of("f32[2, 3, 5, 4]", "f32[3, 1, 3, 3]", pads=(1, 1, 1, 1), groups=3),
        conv_of("f32[1, 2, n + 3, 4]", "f32[3, 2, 3, 1]", stride=(2, 1)),
        conv_of("f32[1, 2, 7]", "f32[3, 2, 3]", **one),
        conv_of("f32[1, 1, 3, 4, 5]", "f32[2, 1, 2, 2, 2]", **three),
        case(conv.Conv(), "u8[1, 2, 4, 4]", "i8[3, 2, 3, 3]"),
        case(conv.Conv(), "f32[1, 2, 4, 2]", "f32[3, 2, 3, 3]"),
        *both(case(conv.Conv(), "f32[1, 2, 4, 4]", "f32[3, 2, 3, 3]")),
        transposed("f32[n, 2, 3, 4]", "f32[2, 3, 3, 2]", stride=(2, 3), pads=(1, 0, 0, 1)),
        transposed("f32[1, 4, 3, 2]", "f32[4, 1, 2, 3]", stride=(2, 1), groups=2,
                   output_padding=(1, 0), dilation=(2, 1)),
        transposed("f32[1, 2, n + 1, 2]", "f32[2, 1, 2, 2]", stride=(2, 2)),
        case(conv_blocked.ConvBlocked(stride=(2, 1)), "f32[n, 3, 5, 4, 2]",
             "f32[2, 3, 3, 2, 2, 4]"),
        case(conv_blocked.ConvBlocked(groups=2, dilation=(1, 2)), "f32[1, 4, 4, 5, 2]",
             "f32[6, 2, 2, 2, 2, 3]"),
        case(conv_blocked.ConvBlocked(sparse=True, groups=2, stride=(1, 2)), "f32[1, 4, 3, 5, 2]",
             "f32[2, 2, 2, 2, 2, 3]", values=([3, math.inf, 1, 2, 4, math.nan, -2, *range(30)],
             [2, -0.0, 0.0, -3, -0.0, 1, 5])),
        case(conv_blocked.ConvBlocked(zeros=(2, 0, 1, 3), dilation=(2, 1), stride=(1, 2)),
             "f32[n, 2, 7, 9, 2]", "f32[2, 2, 3, 2, 2, 3]"),
        case(conv_blocked.ConvBlocked(turned=True, groups=2), "u8[1, 4, n, 3, 5]",
             "i8[2, 2, 1, 2, 3, 5]"),
        case(conv_blocked.ConvBlocked(sparse=True), "f32[1, 1, 3, n, 2]", "f32[2, 1, 2, 1, 2, 3]"),
        case(conv_blocked.ConvBlocked(used=3), "f32[1, 2, 3, n, 5]", "f32[2, 2, 2, 1, 5, 3]",
             values=([1, 2, 3, math.nan, math.inf, *range(20)], None)),
        case(conv_blocked.ConvBlocked(sparse=True, used=1), "f32[1, 1, 3, n, 2]",
             "f32[2, 1, 2, 1, 2, 3]", values=([1, math.inf, math.nan, 2, math.inf, 3], [-0.0, 1])),
        case(conv_lanes.ConvLanes(stride=(2, 1)), "f32[n, 2, 5, 4, 6]", "f32[2, 3, 3, 2, 6]"),
        case(conv_lanes.ConvLanes(dilation=(1, 2)), "f32[1, 1, 4, n + 2, 8]", "f32[1, 2, 2, 2, 8]",
             values=([1, math.inf, 2, math.nan, *range(40)], None)),
        case(conv_lanes.ConvLanes(stride=(3,), dilation=(1,)), "f16[2, 2, 9, 4]",
             "f16[2, 4, 3, 4]"),
        case(conv_gathered.ConvGathered(stride=(2, 1)), "f32[n, 3, 5, 4, 2]",
             "f32[2, 3, 2, 5, 4]", "i32[1, 5]", values=(None, None, [5, 0, 3, 3, 1])),
        case(conv_gathered.ConvGathered(dilation=(1, 2)), "f32[1, 2, 4, 5, 3]",
             "f32[6, 2, 2, 2, 3]", "i32[3, 2]", values=(None, None, [5, 0, 2, 1, 4, 3])),
        case(conv_blocked.PlanarConv(stride=(1, 2)), "f32[n, 3, 4, 6]", "f32[2, 3, 3, 2, 4]"),
        case(conv_blocked.DepthwiseBlocked(stride=(2, 1), dilation=(1, 2)),
             "f32[n, 3, 5, 6, 2]", "f32[3, 3, 2, 2]"),
        winograd("f32[n, 2, 5, 6, 4]"), winograd("f32[1, 2, n + 2, 5, 4]"),
        winograd("f32[1, 2, 8, 11, 4]", (2, 4)), winograd("f32[1, 2, 9, n + 2, 4]", (4, 4)),
        winograd("f32[1, 2, 9, 5, 4]", pixels=[*range(31), math.nan, math.inf, *range(-90, 200)]),
        winograd("f32[2, 2, 4, n + 2, 6, 4]", outer=(2,), stride=(1,), dilation=(2,)),
        winograd("f32[n, 2, 5, 5, 8, 4]", (2, 4), (3,), stride=(2,), dilation=(1,)),
        winograd("f32[1, 2, 2, 3, 5, 4, 4]", outer=(1, 2), stride=(1, 1), dilation=(1, 1)),
        winograd("f32[1, 2, 6, n + 3, 4]", pixels=[1, 2, 3, math.nan, *range(90)], used=3),
        winograd("f32[n, 2, 7, 4]", (2,)), winograd("f32[1, 2, n + 3, 4]", (4,)),
        winograd("f32[1, 2, 272, 4]", (4,)),
        winograd("f32[n, 2, 13, 4]", (3,), kernel=(4,)),
        winograd("f32[1, 2, 9, 4]", (2,), kernel=(2,)),
        winograd("f32[1, 2, n + 7, 4]", (3,), kernel=(7,)),
        winograd("f32[1, 2, 10, 4]", (4,), kernel=(5,)),
        winograd("f32[1, 2, 6, 6, 4]", (2, 2), kernel=(2, 2)),
        winograd("f32[n, 2, 11, 12, 4]", (2, 2), kernel=(5, 4)),
        winograd("f32[1, 2, 7, n + 4, 4]", (3, 3), kernel=(2, 2)),
        winograd("f32[1, 2, 8, 9, 4]", (3, 4), kernel=(2, 3)),
        winograd("f32[n, 2, 9, 8, 4]", (2, 3), kernel=(5, 2)),
        winograd("f32[1, 2, n + 4, 4]", (3,), kernel=(2,)),
        winograd("f32[n, 2, 13, 9, 4]", (3, 3), steps=(2, 2)),
        winograd("f32[1, 2, 10, n + 6, 4]", (3, 3), kernel=(4, 4), steps=(2, 2)),
        winograd("f32[1, 2, 2 * n + 5, 12, 4]", (2, 2), kernel=(5, 5), steps=(2, 2)),
        winograd("f32[1, 2, 12, 9, 4]", (3, 4), steps=(2, 1)),
        winograd("f32[1, 2, 24, 4]", (3,), steps=(2,)),
        winograd("f32[1, 2, 7, 15, 4]", (3,), (2,), stride=(3,), dilation=(1,), steps=(2,)),
        winograd("f32[1, 2, 9, n + 7, 4]", (3, 3), kernel=(4, 7)),
        winograd("f32[1, 2, 4, 9, 10, 4]", (4, 2), (2,), (3, 6), stride=(2,), dilation=(1,)),
        winograd("f32[2, 2, 5, 9, 4]", (4,), (2,), stride=(2,), dilation=(1,)),
        winograd_bytes("i16[n, 2, 5, 6, 4]"), winograd_bytes("i16[1, 2, 8, n + 2, 4]", (2, 4)),
        winograd_bytes("i16[1, 2, 11, 8, 4]", (4, 2)), winograd_bytes("i16[1, 2, 9, 8, 4]", (4, 4)),
        winograd_bytes("i16[1, 2, n + 3, 4]", (4,)), winograd_bytes("i16[2, 2, 7, 4]", (2,)),
        winograd_bytes("i16[1, 2, 4, 5, 7, 4]", (4, 2), (2,), stride=(2,), dilation=(1,)),
        case(pairs.ConvPairs(), "f32[2, 3, 4, n + 2, 4]", "bf16[2, 3, 2, 3, 2, 5, 2]"),
        case(pairs.ConvPairs(stride=(2, 1), dilation=(1, 2)), "f32[1, 1, 5, 6, 16]",
             "bf16[3, 1, 3, 2, 8, 16, 2]", values=([math.nan, 1.0, math.inf, -2.0],)),
        case(pairs_planar.PlanarPairs(width=3), "f32[n, 2, 4, 9]", "bf16[3, 2, 2, 2, 5, 2]",
             values=(None, pairs_planar.pack_columns(np.ones((3, 2, 2, 3, 5))))),
        case(pairs_planar.PlanarPairs(width=2, stride=(1, 2)), "f32[1, 2, 4, n + 2]",
             "bf16[3, 2, 2, 1, 5, 2]"),
        case(pairs.ConvPairs(groups=2), "f32[2, 4, 3, n + 2, 4]", "bf16[6, 2, 2, 3, 2, 5, 2]"),
        case(pairs.MatMulPairs(n=7), "f32[2, n, 32]", "bf16[2, 16, 4, 2]"),
        case(pairs.MatMulPairs(n=16), "f32[1, 16]", "bf16[1, 8, 16, 2]",
             values=([math.nan, 1.0, -math.inf, -2.0],)),
        case(pairs_computed.MatMulPairsComputed(), "f32[2, n, 5]", "f32[2, 5, 3]"),
        case(pairs_computed.MatMulPairsComputed(), "f32[2, 32]", "f32[32, n + 16]"),
        case(pairs_computed.MatMulPairsComputed(), "f32[2, n]", "f32[n, 16]",
             values=([math.nan, 1.0, math.inf, -2.0],)),
        case(byte_products.ConvBytes(), "u8[2, 3, 4, n + 2, 4]", "i8[2, 3, 2, 3, 1, 5, 4]"),
        case(byte_products.ConvBytes(groups=2), "u8[2, 4, 4, n + 2, 4]",
             "i8[6, 2, 2, 3, 1, 5, 4]"),
        case(byte_products.ConvBytes(stride=(2, 1), dilation=(1, 2)), "u8[1, 1, 5, 6, 16]",
             "i8[3, 1, 3, 2, 4, 16, 4]", values=([0, 1, 255, 128], [-128, 127, 0, 3])),
        case(few_bits.DequantizeBlocks(axis=1, block=3), "u8[2, 7, n]", "f32[2, 3, n]"),
        case(few_bits.DequantizeBlocks(axis=0, block=4), "i8[8, 3]", "f32[2, 3]", "f32[2, 3]"),
        case(few_bits.MatMulFewBits(n=7, bits=4, middle=8), "f32[2, n, 32]", "u32[2, 4, 4]",
             "f32[2, 2, 4]"),
        case(few_bits.MatMulFewBits(n=5, bits=8), "f32[3, 32]", "u32[2, 8, 4]", "f16[2, 2, 4]",
             "u8[2, 2, 4]"),
        case(few_bits.MatMulFewBits(n=4, bits=2), "f32[32]", "u32[1, 2, 4]", "f32[1, 1, 4]",
             "f32[1, 1, 4]", values=(None, [0, 1 << 31, 0x12345678, 0xFFFFFFFF])),
        case(few_bits.MatMulFewBits(n=7, bits=4), "f32[n, 2, 32]", "u32[n, 2, 4, 4]",
             "f32[n, 2, 2, 4]", "f32[n, 2, 2, 4]"),
        case(few_bits.MatMulBytesFewBits(n=7, bits=4), "i8[3, n, 2, 32]", "f32[3, n, 2, 2]",
             "f32[3, n, 2, 2]", "u32[3, 2, 4, 4]", "f32[3, 2, 2, 4]", "f32[3, 2, 2, 4]"),
        case(few_bits.MatMulBytesFewBits(n=7, bits=4), "i8[2, n, 32]", "f32[2, n, 2]",
             "f32[2, n, 2]", "u32[2, 4, 4]", "f32[2, 2, 4]"),
        case(few_bits.MatMulBytesFewBits(n=5, bits=8), "i8[3, 32]", "f32[3, 2]", "f32[3, 2]",
             "u32[2, 8, 4]", "f16[2, 2, 4]", "u8[2, 2, 4]"),
        case(few_bits.MatMulBytesFewBits(n=4, bits=2), "i8[32]", "f32[1]", "f32[1]",
             "u32[1, 2, 4]", "f32[1, 1, 4]", "f32[1, 1, 4]"),
        case(byte_products.ConvBytes(stride=(1, 2)), "i16[1, 2, 4, n + 2, 8]",
             "i8[3, 2, 3, 2, 4, 5, 2]"),
        case(byte_products.MatMulBytes(n=7), "u8[2, n, 32]", "i8[2, 8, 4, 4]"),
        case(byte_products.MatMulBytes(n=7), "i16[2, n, 6]", "i8[2, 3, 4, 2]"),
        case(byte_products.MatMulBytes(n=16), "u8[1, 16]", "i8[1, 4, 16, 4]",
             values=([255], [-128])),
        case(byte_tiles.ConvByteTiles(blocks=1, slack=0), "u8[2, 8, 2, 3, 16]",
             "i8[2, 2, 2, 2, 1, 16, 16, 4]"),
        case(byte_tiles.ConvByteTiles(blocks=2, stride=(2, 1), dilation=(1, 2), slack=1),
             "u8[1, 4, 4, 4, 16]", "i8[2, 1, 2, 2, 1, 16, 16, 4]",
             values=([0, 1, 255, 128], [-128, 127, 0, 3])),
        case(byte_tiles.ConvByteTiles(blocks=1, stride=(1, 2)), "u8[1, 4, n + 2, 4, 16]",
             "i8[2, 1, 2, 2, 1, 16, 16, 4]"),
        case(byte_tiles.ConvPlanarByteTiles(blocks=2, kernel=(4, 8), stride=(2, 1), slack=0),
             "u8[2, 4, 8, 9]", "i8[2, 1, 2, 1, 1, 16, 16, 4]"),
        case(byte_tiles.ConvPlanarByteTiles(blocks=1, kernel=(2, 1, 16), stride=(1, 3, 2)),
             "u8[1, 8, 2, 2, 17]", "i8[2, 2, 2, 1, 1, 1, 16, 16, 4]",
             values=([0, 1, 255, 128], [-128, 127, 0, 3])),
        case(byte_tiles.ConvPlanarByteTiles(blocks=1, kernel=(2, 8), stride=(2, 1)),
             "u8[1, 3, 6, 9]", "i8[2, 1, 1, 1, 1, 16, 16, 4]",
             values=(None, [0])),  # a row has 48 bytes, and 16 more that are read again
        case(byte_tiles.ConvPlanarByteTiles(blocks=1, kernel=(8,), stride=(3,)), "u8[2, 8, 20]",
             "i8[2, 1, 1, 1, 16, 16, 4]"),
        case(byte_tiles.MatMulByteTiles(n=20, slack=0), "u8[2, 3, 128]", "i8[2, 2, 1, 16, 16, 4]"),
        case(byte_tiles.MatMulByteTiles(n=32), "u8[n, 64]", "i8[2, 1, 1, 16, 16, 4]",
             values=([255], [-128])),
        case(planes_conv.ConvPlanes(blocks=1, slack=0), "f32[2, 2, 2, 3, 16]",
             "bf16[2, 1, 2, 2, 1, 16, 16, 2]"),
        case(planes_conv.ConvPlanes(blocks=2, stride=(2, 1), dilation=(1, 2), slack=1),
             "f32[1, 4, 4, 4, 16]", "bf16[2, 2, 2, 2, 2, 16, 16, 2]"),
        case(planes_conv.ConvPlanes(blocks=1, stride=(2, 2), slack=0), "f32[1, 2, 3, 4, 16]",
             "bf16[2, 1, 1, 1, 3, 16, 16, 2]"),
        case(planes_conv.ConvPlanes(blocks=2, stride=(2, 1), dilation=(1, 2)),
             "f32[2, 4, n + 2, 4, 16]", "bf16[2, 2, 2, 2, 1, 16, 16, 2]"),
        case(planes_planar.ConvPlanarPlanes(blocks=2, width=4, stride=(2, 1), slack=3),
             "f32[2, 8, 5, 9]", "bf16[2, 1, 3, 1, 2, 16, 16, 2]"),
        case(planes_planar.ConvPlanarPlanes(blocks=2, width=8, stride=(3,), dilation=(1,)),
             "f32[2, 4, 20]", "bf16[2, 1, 1, 1, 16, 16, 2]"),
        case(planes_planar.ConvPlanarPlanes(blocks=1, width=2, dilation=(1, 2), slack=0),
             "f32[1, 32, 3, 6]", "bf16[2, 2, 2, 1, 1, 16, 16, 2]"),
        case(planes_matmul.MatMulPlanes(n=20, slack=0), "f32[2, 2, 32]",
             "bf16[2, 1, 3, 16, 16, 2]"),
        case(planes_matmul.MatMulPlanes(n=16, slack=1), "f32[1, 64]",
             "bf16[2, 2, 1, 16, 16, 2]", values=([math.nan, 1.0, math.inf, -2.0],)),
        case(planes_matmul.MatMulSplit(n=32, fewest=9), "f32[2, n, 64]", "f32[2, 64, 16]"),
        case(planes_matmul.MatMulSplit(n=32, planes=2), "f32[2, 32]", "f32[2, 32, 16]",
             values=([math.nan, 1.0, math.inf, -2.0],)),
        case(planes_pair.MatMulPair(planes=2), "f32[2, n, 5]", "f32[2, 5, 3]"),
        case(planes_pair.MatMulPair(), "f32[2, 3]", "f32[3, n]",
             values=([math.nan, 1.0, math.inf, -2.0],)),
        case(matmul.MatMulPacked(n=7), "f32[n, 3]", "bf16[2, 3, 4]"),
        case(matmul.MatMul(), "f32[n, 5]", "f32[5, 2]", onnx=same("MatMul")),
        case(matmul.MatMul(), "f32[3, n]", "f32[n, 2]", onnx=same("MatMul")),
        case(matmul.MatMul(), "f32[5]", "f32[5]", onnx=same("MatMul")),
        case(matmul.MatMul(), "f32[5]", "f32[n, 5, 2]", onnx=same("MatMul")),
        case(matmul.MatMul(), "f32[n, 3, 5]", "f32[5]", onnx=same("MatMul")),
        case(matmul.MatMul(), "f32[n, 1, 3, 5]", "f32[2, 5, 4]", onnx=same("MatMul")),
        case(matmul.MatMul(), "i64[2, 3]", "i64[3, 2]", onnx=same("MatMul")),
        case(matmul.MatMul(), "i8[2, 300]", "i8[300, 2]", data="bits"),
        *both(case(matmul.MatMul(), "f32[2, 3]", "f32[3, 2]")),
        case(matmul.MatMulPacked(n=5), "f32[n, 2, 3]", "f32[2, 3, 4]"),
        case(matmul.MatMulPacked(n=N), "f32[2, 3]", "f32[(n + 3) // 4, 3, 4]"),
        case(matmul.MatMulPacked(n=8), "f32[3]", "f32[2, 3, 4]"),
        case(matmul.MatMulPacked(n=7), "f32[n, 2, 3]", "f32[n, 2, 3, 4]"),
        case(matmul.MatMulPacked(n=7), "f32[2, 3, n, 2, 5]", "bf16[2, 3, 2, 5, 4]"),
        case(matmul.MatMulPacked(n=7), "f32[n, 5]", "f32[n, 2, 5, 4]"),
        case(matmul.Einsum(equation="bij,bkj->bik"), "f32[n, 2, 3]", "f32[n, 4, 3]",
             onnx=same("Einsum", equation="bij,bkj->bik")),
        case(matmul.Einsum(equation="ii->i"), "f32[4, 4]", onnx=same("Einsum", equation="ii->i")),
        case(matmul.Einsum(equation="i,j->ij"), "f32[n]", "f32[2]"),
    ]  # fmt: skip


def _pools() -> list[Case]:
    def maximum(x: str, **a: Any) -> Case:
        return case(pool.MaxPool(**a), x, onnx=_theirs("MaxPool", a) if "[2" not in x else None)

    def average(x: str, **a: Any) -> Case:
        return case(pool.AveragePool(**a), x, rtol=LOOSE, onnx=_theirs("AveragePool", a))

    def _theirs(name: str, a: Mapping[str, Any]) -> Onnx:
        names = {"kernel": "kernel_shape", "stride": "strides", "dilation": "dilations"}
        return Onnx(name, {names.get(k, k): int(v) if v is True else v for k, v in a.items()})

    ceil = {"kernel": (3, 2), "stride": (2, 2), "ceil_mode": True}
    return [
        maximum("f32[n, 2, 5, 6]", kernel=(3, 2)),
        maximum("f32[1, 2, 5, 6]", kernel=(3, 3), stride=(2, 2), pads=(1, 1, 1, 1)),
        maximum("f32[1, 1, 6, 7]", kernel=(2, 3), dilation=(2, 1), pads=(0, 1, 1, 0)),
        maximum("f32[1, 2, 6, 7]", **ceil),
        maximum("f32[1, 2, 7, 5]", pads=(1, 0, 0, 1), **ceil),
        maximum("f32[1, 1, 3, 4]", kernel=(2, 2), stride=(3, 3), pads=(0, 0, 1, 1), ceil_mode=True),
        maximum("f32[1, 1, n + 3, 4]", kernel=(3, 2), stride=(2, 1), pads=(1, 1, 1, 1)),
        maximum("f32[1, 2, 7]", kernel=(3,), stride=(2,), pads=(1, 1), dilation=(1,)),
        case(pool.MaxPool(kernel=(2, 2), pads=(1, 1, 0, 0)), "f32[2, 2, 5, 5]", data="special"),
        case(pool.MaxPool(kernel=(2, 2), pads=(1, 1, 0, 0)), "i8[2, 1, 4, 5]"),
        case(pool.MaxPool(kernel=(2, 2), stride=(2, 2)), "f32[n, 2, 5, 6, 4]"),
        average("f32[n, 2, 5, 6]", kernel=(3, 2)),
        average("f32[1, 2, 5, 6]", kernel=(3, 3), stride=(2, 2), pads=(1, 0, 1, 2)),
        average("f32[1, 2, 5, 6]", kernel=(3, 3), pads=(1, 0, 1, 2), count_include_pad=True),
        average("f32[1, 2, 6, 7]", **ceil),
        average("f32[1, 2, 7, 5]", kernel=(3, 3), stride=(3, 2), pads=(1, 1, 1, 1),
                ceil_mode=True, count_include_pad=True),
        average("f32[1, 1, 7, 8]", kernel=(2, 3), dilation=(2, 2), pads=(1, 1, 1, 2)),
        average("f32[1, 1, n + 3, 4]", kernel=(3, 2), stride=(2, 1), pads=(1, 1, 1, 1)),
        case(pool.AveragePool(kernel=(2, 2), pads=(1, 1, 0, 0)), "f32[2, 2, 5, 6, 4]", rtol=LOOSE),
        *both(case(pool.AveragePool(kernel=(2, 2)), "f32[1, 1, 3, 3]", rtol=LOOSE)),
    ]  # fmt: skip


def _reductions() -> list[Case]:
    theirs = {
        "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin",
        "prod": "ReduceProd", "sum_square": "ReduceSumSquare", "l1": "ReduceL1",
        "l2": "ReduceL2", "log_sum": "ReduceLogSum", "log_sum_exp": "ReduceLogSumExp",
    }  # fmt: skip

    def reduction(kind: str, x: str, axes: tuple[int, ...], *, kept: bool = True, **k: Any) -> Case:
        op = red.Reduce(kind=kind, axes=axes, keepdims=kept)
        onnx = Onnx(theirs[kind], {"keepdims": int(kept)}, (np.array(axes, np.int64),), opset=18)
        exact = kind in ("sum", "max", "min", "prod", "sum_square", "l1")
        empty = "n" in x  # what ONNX's own reference refuses to reduce
        return case(op, x, rtol=0 if exact else 1e-5, onnx=None if empty else onnx, **k)

    cases = [
        reduction(kind, "f32[2, 3, 4]", (1, -1), kept=kept, data=data)
        for kind in theirs
        for kept, data in ((True, "small"), (False, "positive"))
        if not (kind in ("log_sum", "prod") and data == "small")
        and not (kind in ("sum", "prod", "sum_square", "l1") and data == "positive")
    ]
    cases += [reduction(kind, "f32[2, n]", (1,)) for kind in theirs if kind != "log_sum"]
    cases += [
        reduction("sum", "i32[3, 4]", (0,)),
        reduction("max", "f32[3, 4]", (1,), data="special"),
        reduction("prod", "i64[3, 4]", (0,)),
        reduction("sum", "f32[n, 3]", ()),
        case(red.Reduce(kind="max", axes=(1,)), "bool[3, n]"),
        case(red.Reduce(kind="l1", axes=(0,)), "u8[3]"),
        case(red.Reduce(kind="l_inf", axes=(1,)), "f32[3, n]"),
        case(red.Reduce(kind="l_inf", axes=(0, 2), keepdims=False), "f32[2, 3, 4]",
             data="special"),
        case(red.Reduce(kind="sum", axes=(0,)), "f16[2500]", values=([1.0],)),  # f16 stops at 2048
        case(red.Reduce(kind="log_sum_exp", axes=(1,)), "f32[2, 3]", rtol=LOOSE,
             values=([-math.inf, -math.inf, -math.inf, 1000.0, 999.0, 0.0],)),
        case(red.Reduce(kind="log_sum_exp", axes=(0,)), "f32[2]",
             values=([math.inf, 1.0],)),
        *both(case(red.Reduce(kind="mean", axes=(1,)), "f32[2, 3]", rtol=LOOSE)),
    ]  # fmt: skip
    for op, name in ((red.ArgMax, "ArgMax"), (red.ArgMin, "ArgMin")):
        for axis, kept, last in ((1, True, False), (-1, False, True), (0, False, False)):
            attributes = {"axis": axis, "keepdims": int(kept), "select_last_index": int(last)}
            made = op(axis=axis, keepdims=kept, select_last_index=last)
            cases.append(case(made, "f32[3, 5]", onnx=Onnx(name, attributes)))
        cases.append(case(op(axis=1), "f32[5, 6]", data="special"))
        cases.append(case(op(axis=1), "f32[n, 4]"))
    for exclusive in (False, True):
        for reverse in (False, True):
            summed = red.CumSum(axis=1, exclusive=exclusive, reverse=reverse)
            attributes = {"exclusive": int(exclusive), "reverse": int(reverse)}
            onnx = Onnx("CumSum", attributes, (np.array(1, np.int64),))
            cases.append(case(summed, "f32[2, 5]", onnx=onnx))
            cases.append(case(summed, "f32[2, 71]", onnx=onnx))
            cases.append(
                case(red.CumSum(axis=0, exclusive=exclusive, reverse=reverse), "i32[n, 3]")
            )
    cases.append(case(red.CumSum(axis=-1), "i32[2, n]"))
    infinite = [[1, math.inf, 2, 3, -math.inf], [-math.inf, 4, math.nan, 5, 6]]
    cases.append(case(red.CumSum(axis=1, exclusive=True), "f32[2, 5]", values=(infinite,)))
    return cases


def _norms() -> list[Case]:
    channels = ("f32[3]",) * 4
    return [
        case(norm.BatchNorm(epsilon=1e-3), "f32[n, 3, 4, 2]", *channels, data="positive",
             rtol=1e-5, onnx=same("BatchNormalization", epsilon=1e-3)),
        case(norm.InstanceNorm(), "f32[n, 3, 4, 2]", "f32[3]", "f32[3]", data="unit", rtol=1e-4,
             onnx=same("InstanceNormalization")),
        case(norm_blocked.InstanceNormBlocked(), "f32[n, 2, 3, 2, 4]", "f32[2, 4]", "f32[2, 4]",
             data="unit", rtol=1e-4),
        case(norm.GroupNorm(groups=2), "f32[n, 6, 2, 2]", "f32[6]", "f32[6]", data="unit",
             rtol=1e-4, onnx=same("GroupNormalization", num_groups=2)),
        case(norm.LayerNorm(), "f32[n, 2, 5]", "f32[5]", "f32[5]", data="unit", rtol=1e-4,
             onnx=same("LayerNormalization")),
        case(norm.LayerNorm(axis=1, epsilon=0.1), "f32[3, 2, 5]", "f32[2, 5]", data="unit",
             rtol=1e-4, onnx=same("LayerNormalization", axis=1, epsilon=0.1)),
        case(norm.LayerNorm(), "f32[3, 5]", data="unit", rtol=1e-4),
        case(norm.RMSNorm(), "f32[n, 5]", "f32[5]", data="unit", rtol=1e-5),
        case(norm.RMSNorm(axis=0), "f32[3, 5]", data="unit", rtol=1e-5),
        case(norm.LRN(size=3, alpha=0.5), "f32[n, 5, 2]", data="unit", rtol=1e-5),
        case(norm.LRN(size=4, beta=0.5, bias=2.0), "f32[5, 5, 2, 3]", data="unit", rtol=1e-5,
             onnx=same("LRN", size=4, beta=0.5, bias=2.0)),  # theirs needs n == c
        case(norm.LRN(size=3, beta=0.5, bias=2.0), "f32[1, 5, 2, 3]", data="unit", rtol=1e-5,
             onnx=Onnx("LRN", {"size": 3, "beta": 0.5, "bias": 2.0}, by_runtime=True)),
        case(softmax.Softmax(), "f32[n, 5]", data="unit", rtol=1e-5, onnx=same("Softmax")),
        case(softmax.Softmax(axis=1), "f32[2, n, 3]", data="unit", rtol=1e-5),
        case(softmax.Softmax(), "f32[2, 3]", rtol=1e-5,
             values=([math.inf, 1, 2, -math.inf, -math.inf, -math.inf],)),
        case(softmax.Softmax(), "f32[3]", rtol=1e-5, values=([1000.0, 999.0, -math.inf],)),
        case(softmax.LogSoftmax(axis=-2), "f32[2, 4, 3]", data="unit", rtol=1e-5,
             onnx=same("LogSoftmax", axis=-2)),
        case(softmax.LogSoftmax(), "f32[n, 3]", data="unit", rtol=1e-5),
        case(softmax.LogSoftmax(axis=0), "f32[n, 2]", data="unit", rtol=1e-5),
        case(softmax.Softmax(axis=0), "f32[7, 2]", data="unit", rtol=1e-5),
        *both(case(softmax.Softmax(), "f32[2, 5]", data="unit", rtol=1e-5)),
    ]  # fmt: skip


CASES: list[Case] = [
    *_elementwise(), *_binary(), *_contractions(), *_pools(), *_reductions(), *_norms(),
    *MOVES, *IMAGES, *TREES,
]  # fmt: skip
