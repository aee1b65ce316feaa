"""Each rule rewrites what its equation says, keeps the results, and refuses what it must."""

from __future__ import annotations

import cProfile
from dataclasses import replace

import numpy as np
import pytest

from dlc.core.errors import InternalError
from dlc.core.target import Target
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.activation import Gelu
from dlc.graph.ops.elementwise import Neg
from dlc.graph.pass_ import PassContext
from dlc.graph.rewrite import Pattern, Rule, rewrite_graph
from dlc.graph.rules import PATTERN_RULES, SHAPE_RULES, STEP_RULES
from dlc.graph.text import parse_graph
from tests.graph.pass_cases import CONTEXT, ENGINE, read, same
from tests.graph.rule_cases import ON_GPU, assert_refuses, assert_rewrites, body, ops, rewrite

X4 = "x: f32[2, 3, 5, 7]"
CONV = ("w: f32[4, 3, 3, 3] = const()", "a: f32[2, 4, 5, 7] = conv(x, w, pads=(1, 1, 1, 1))")
MATMUL = ("w: f32[5, 7] = const()", "a: f32[3, 7] = matmul(x, w)")
NORM = tuple(f"{n}: f32[3] = const(1, 2, 3)" for n in ("s", "b", "m", "v"))


def elementwise(*lines, shape="3, 5", outputs="y"):
    types = ["f32[()]" if "const(" in line else f"f32[{shape}]" for line in lines]
    typed = [line.replace(":", f": {t}", 1) for line, t in zip(lines, types, strict=True)]
    return body(f"x: f32[{shape}]", *typed, outputs=outputs)


SIX_SLICES = tuple(
    f"{name}: f32[2, 3, 4, 2] = slice(x, starts=(0, 0, {i}, {j}), sizes=(2, 3, 4, 2), "
    "steps=(1, 1, 2, 3))"
    for name, i, j in zip("abcdef", (1, 0, 1, 0, 1, 0), (2, 0, 0, 1, 1, 2), strict=True)
)

PART = ("slice", "cast", "matmul", "cast")
FIRES = [
    ("div_into_quotient", body(
        "x: f64[3, 5]", "a: F32[3, 5] = cast(x, to=F32)", "c: F32[5] = const(3, -5, 7, 9, 11)",
        "y: F32[3, 5] = div(a, c)"),
     ["cast", "quotient"]),
    ("integers_into_bytes", body(
        "x: i8[2, 32]", "w: i32[32, 16] = const(200)", "a: i32[2, 32] = cast(x, to=i32)",
        "y: i32[2, 16] = matmul(a, w)"),
     ["matmul"]),
    ("integers_into_bytes", body(
        "x: u8[2, 32]", "w: F32[32, 16] = const(-3)", "z: i32[()] = const(131)",
        "a: i32[2, 32] = cast(x, to=i32)", "b: i32[2, 32] = sub(a, z)",
        "c: F32[2, 32] = cast(b, to=F32)", "y: F32[2, 16] = matmul(c, w)"),
     ["matmul", "add", "cast"]),
    ("convolved_integers_into_bytes", body(
        "x: i8[1, 4, 3, 5]", "w: i32[6, 2, 2, 3] = const()", "a: i32[1, 4, 3, 5] = cast(x, to=i32)",
        "y: i32[1, 6, 4, 3] = conv(a, w, pads=(1, 0, 1, 0), groups=2)"),
     ["conv"]),
    ("convolved_integers_into_bytes", body(
        "x: u8[2, 3, 4, 4]", "w: F32[2, 3, 2, 2] = const(-5)", "z: i32[()] = const(131)",
        "a: i32[2, 3, 4, 4] = cast(x, to=i32)", "b: i32[2, 3, 4, 4] = sub(a, z)",
        "c: F32[2, 3, 4, 4] = cast(b, to=F32)",
        "y: F32[2, 2, 4, 3] = conv(c, w, pads=(1, 0, 0, 0))"),
     ["pad", "conv", "add", "cast"]),
    ("convolved_integers_into_bytes", body(
        "n: size, x: u8[1, 2, n]", "w: i32[3, 2, 2] = const(-7)", "z: i32[1] = const(300)",
        "a: i32[1, 2, n] = cast(x, to=i32)", "b: i32[1, 2, n] = add(a, z)",
        "y: i32[1, 3, n - 1] = conv(b, w, stride=(1,), pads=(0, 0), dilation=(1,))"),
     ["conv", "add"]),
    ("integers_into_floats", body(
        "x: u8[2, 4]", "w: i32[4, 3] = const()", "a: i32[2, 4] = cast(x, to=i32)",
        "y: i32[2, 3] = matmul(a, w)"),
     ["cast", "cast", "matmul", "cast"]),
    ("integers_into_floats", body(
        "x: i16[2, 300]", "w: i32[300, 3] = const()", "a: i32[2, 300] = cast(x, to=i32)",
        "y: i32[2, 3] = matmul(a, w)"),
     ["cast", *PART, *(*PART, "add") * 2]),
    ("integers_into_floats", body(
        "x: i16[1, 90, 3, 3]", "w: i32[2, 90, 2, 2] = const()",
        "a: i32[1, 90, 3, 3] = cast(x, to=i32)", "y: i32[1, 2, 2, 2] = conv(a, w)"),
     ["cast", "slice", "cast", "conv", "cast", *("slice", "cast", "conv", "cast", "add") * 3]),
    ("cast_there_and_back", body(
        "x: u8[3]", "a: f64[3] = cast(x, to=f64)", "b: i32[3] = cast(a, to=i32)",
        "y: f64[3] = cast(b, to=f64)"),
     ["cast"]),
    ("batch_norm_into_mul_add", body(X4, *NORM, "y: f32[2, 3, 5, 7] = batch_norm(x, s, b, m, v)"),
     ["mul", "add"]),
    ("scale_into_conv", body(
        X4, *CONV, "c: f32[4, 1, 1] = const(1, 2, 3, 4)", "y: f32[2, 4, 5, 7] = mul(c, a)"),
     ["conv"]),
    ("scale_into_conv", body(X4, *CONV, "c: f32[()] = const(3)", "y: f32[2, 4, 5, 7] = mul(a, c)"),
     ["conv"]),
    ("scale_into_conv_transpose", body(
        "x: f32[2, 6, 5, 7]", "w: f32[6, 2, 2, 2] = const()",
        "a: f32[2, 4, 6, 8] = conv_transpose(x, w, groups=2)",
        "c: f32[4, 1, 1] = const(1, 2, 3, 4)", "y: f32[2, 4, 6, 8] = mul(c, a)"),
     ["conv_transpose"]),
    ("scale_before_conv", body(
        X4, "c: f32[1, 3, 1, 1] = const(1, 2, 3)", "b: f32[2, 3, 5, 7] = mul(x, c)",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 3, 5] = conv(b, w)"),
     ["conv"]),
    ("scale_before_conv", body(
        "x: f32[2, 6, 5, 7]", "c: f32[6, 1, 1] = const(1, 2, 3, 4, 5, 6)",
        "b: f32[2, 6, 5, 7] = mul(x, c)", "w: f32[4, 3, 3, 3] = const()",
        "y: f32[2, 4, 3, 5] = conv(b, w, groups=2)"),
     ["conv"]),
    ("scale_into_matmul", body(
        "x: f32[3, 5]", *MATMUL, "c: f32[7] = const(1, 2, 3, 4, 5, 6, 7)",
        "y: f32[3, 7] = mul(a, c)"),
     ["matmul"]),
    ("scale_through_bias", body(
        "x: f32[3, 5]", *MATMUL, "b: f32[7] = const(1, 2, 3, 4, 5, 6, 7)",
        "d: f32[3, 7] = add(b, a)", "c: f32[()] = const(2)", "y: f32[3, 7] = mul(d, c)"),
     ["matmul", "mul", "add"]),
    ("scale_through_bias", body(
        X4, *CONV, "b: f32[4, 1, 1] = const(1, 2, 3, 4)", "d: f32[2, 4, 5, 7] = add(a, b)",
        "c: f32[4, 1, 1] = const(5, 6, 7, 8)", "y: f32[2, 4, 5, 7] = mul(d, c)"),
     ["conv", "mul", "add"]),
    ("add_into_add", elementwise(
        "b: = const(2)", "c: = const(3)", "d: = add(b, x)", "y: = add(d, c)"), ["add"]),
    ("mul_into_mul", elementwise(
        "b: = const(2)", "c: = const(3)", "d: = mul(b, x)", "y: = mul(d, c)"), ["mul"]),
    ("sub_into_add", elementwise("c: = const(3)", "y: = sub(x, c)"), ["add"]),
    ("div_into_mul", elementwise("c: = const(-4)", "y: = div(x, c)"), ["mul"]),
    ("pow_into_products", elementwise("c: = const(2)", "y: = pow(x, c)"), ["mul"]),
    ("pow_into_products", elementwise("c: = const(3)", "y: = pow(x, c)"), ["mul", "mul"]),
    ("pow_into_products", elementwise("c: = const(-1)", "y: = pow(x, c)"), ["reciprocal"]),
    ("pow_into_products", elementwise("c: = const(1)", "a: = pow(x, c)", "y: = relu(a)"), ["relu"]),
    ("drop_mul_by_one", elementwise("c: = const(1)", "d: = mul(c, x)", "y: = relu(d)"), ["relu"]),
    ("pad_into_conv", body(
        X4, "p: f32[2, 3, 8, 8] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 2, 1))",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 8, 8] = conv(p, w, pads=(1, 1, 1, 1))"),
     ["conv"]),
    ("crop_kernel", body(
        X4, "w: f32[4, 3, 3, 3] = const()",
        "y: f32[2, 4, 5, 7] = conv(x, w, pads=(6, 2, 6, 2), dilation=(6, 2))"), ["conv"]),
    ("crop_kernel", body(
        "N: size, x: f64[2, 3, N, 2]", "w: f64[4, 3, 3, 5] = const()",
        "y: f64[2, 4, N, 3] = conv(x, w, pads=(1, 3, 1, 2))"), ["conv"]),
    ("crop_kernel", body(
        "x: i8[2, 3, 3]", "w: i8[4, 3, 4] = const()",
        "y: i32[2, 4, 2] = conv(x, w, stride=(4,), pads=(4, 1), dilation=(1,))"), ["conv"]),
    ("pad_into_pool", body(
        X4, "p: f32[2, 3, 7, 8] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 1), value=-inf)",
        "y: f32[2, 3, 6, 6] = max_pool(p, kernel=(2, 3))"),
     ["max_pool"]),
    ("pad_into_pool", body(
        X4, "p: f32[2, 3, 7, 8] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 1))",
        "y: f32[2, 3, 6, 6] = average_pool(p, kernel=(2, 3))"),
     ["average_pool"]),
    ("pool_into_reduce", body(
        X4, "y: f32[2, 3, 1, 1] = average_pool(x, kernel=(40, 9), stride=(40, 9), "
        "pads=(2, 0, 2, 1), ceil_mode=True)"), ["reduce"]),
    ("pool_into_reduce", body(
        X4, "y: f32[2, 3, 1, 1] = max_pool(x, kernel=(5, 7), stride=(2, 2))"), ["reduce"]),
    ("conv_transpose_of_a_pixel", body(
        "x: f32[2, 3, 1, 1]", "w: f32[3, 4, 5, 2] = const()",
        "y: f32[2, 4, 5, 2] = conv_transpose(x, w, stride=(2, 1))"),
     ["reshape", "reshape", "matmul", "reshape"]),
    ("conv_transpose_of_a_pixel", body(
        "N: size, x: f64[N, 3, 1], w: f64[3, 4, 5]",
        "y: f64[N, 4, 5] = conv_transpose(x, w, stride=(1,), pads=(0, 0), dilation=(1,), "
        "output_padding=(0,))"), ["reshape", "reshape", "matmul", "reshape"]),
    ("tiny_weights_into_zeros", body(
        "x: f32[3, 2]", "w: f32[2, 2] = const(1, 1e-310, -1e-309, 2)",
        "y: f32[3, 2] = matmul(x, w)"), ["matmul"]),
    ("tiny_bias_into_zeros", body(
        "x: f32[3, 2]", "w: f32[2, 2] = const(1, 3, 5, 2)", "b: f32[2] = const(1e-310, 2)",
        "a: f32[3, 2] = matmul(x, w)", "y: f32[3, 2] = add(b, a)"), ["matmul", "add"]),
    ("sigmoid_into_silu", elementwise("s: = sigmoid(x)", "y: = mul(s, x)"), ["silu"]),
    ("scaled_sigmoid_into_silu", body(
        "x: f32[3, 5]", "c: f32[()] = const(1.5)", "b: f32[3, 5] = mul(x, c)",
        "s: f32[3, 5] = sigmoid(b)", "y: f32[3, 5] = mul(x, s)"), ["silu"]),
    ("parts_into_mish", elementwise("s: = softplus(x)", "t: = tanh(s)", "y: = mul(x, t)"),
     ["mish"]),
    ("hard_sigmoid_into_hard_swish", elementwise(
        "s: = hard_sigmoid(x, alpha=0.16666666666666666, beta=0.5)", "y: = mul(x, s)"),
     ["hard_swish"]),
    ("clip_into_hard_swish", elementwise(
        "c: = const(3)", "six: = const(6)", "a: = add(x, c)", "b: = clip(a, min=0.0, max=6.0)",
        "d: = mul(x, b)", "y: = div(d, six)"), ["hard_swish"]),
    ("clip_into_hard_sigmoid", elementwise(
        "c: = const(3)", "six: = const(6)", "a: = add(x, c)", "b: = clip(a, min=0.0, max=6.0)",
        "y: = div(b, six)"), ["hard_sigmoid"]),
    ("parts_into_softmax", body(
        "x: f32[3, 5]", "m: f32[3, 1] = reduce(x, kind='max', axes=(1,))",
        "d: f32[3, 5] = sub(x, m)", "e: f32[3, 5] = exp(d)",
        "t: f32[3, 1] = reduce(e, kind='sum', axes=(-1,))", "y: f32[3, 5] = div(e, t)"),
     ["softmax"]),
    ("scale_into_layer_norm", body(
        "x: f32[3, 5]", "n: f32[3, 5] = layer_norm(x)", "s: f32[5] = const(1, 2, 3, 4, 5)",
        "y: f32[3, 5] = mul(n, s)"), ["layer_norm"]),
    ("bias_into_layer_norm", body(
        "x: f32[3, 5]", "s: f32[5] = const(1, 2, 3, 4, 5)", "n: f32[3, 5] = layer_norm(x, s)",
        "y: f32[3, 5] = add(n, s)"), ["layer_norm"]),
    ("reshape_into_reshape", body(
        "n: size, x: f32[n, 6]", "a: f32[n, 2, 3] = reshape(x, shape=(n, 2, 3))",
        "b: f32[n * 6] = reshape(a, shape=(n * 6,))", "y: f32[n * 6] = relu(b)"),
     ["reshape", "relu"]),
    ("transpose_into_transpose", body(
        "x: f32[2, 3, 5]", "a: f32[5, 2, 3] = transpose(x, perm=(2, 0, 1))",
        "y: f32[2, 5, 3] = transpose(a, perm=(1, 0, 2))"), ["transpose"]),
    ("transpose_into_reshape", body(
        "n: size, x: f32[n, 1, 3]", "y: f32[1, n, 3] = transpose(x, perm=(1, 0, 2))"),
     ["reshape"]),
    ("slice_into_slice", body(
        "x: f32[20]", "a: f32[6] = slice(x, starts=(3,), sizes=(6,), steps=(2,))",
        "y: f32[2] = slice(a, starts=(1,), sizes=(2,), steps=(3,))"), ["slice"]),
    ("concat_into_concat", body(
        "x: f32[2, 3], y: f32[2, 4], z: f32[2, 5]", "a: f32[2, 7] = concat(x, y, axis=1)",
        "b: f32[2, 12] = concat(a, z, axis=-1)", "c: f32[2, 7] = neg(a)", outputs="b, c"),
     ["concat", "concat", "neg"]),
    ("slice_behind_reshape", body(
        "n: size, x: f32[n, 12]", "a: f32[n, 6] = slice(x, starts=(0, 3), sizes=(n, 6))",
        "b: f32[n, 2, 3] = reshape(a, shape=(n, 2, 3))", "y: f32[n, 2, 3] = relu(b)"),
     ["reshape", "slice", "relu"]),
    ("transpose_into_channel_shuffle", body(
        "x: f32[2, 12, 5]",
        "s: f32[2, 3, 4, 5] = reshape(x, shape=(2, 3, 4, 5))",
        "t: f32[2, 4, 3, 5] = transpose(s, perm=(0, 2, 1, 3))",
        "y: f32[2, 12, 5] = reshape(t, shape=(2, 12, 5))"), ["channel_shuffle"]),
    ("scale_before_move", body(
        "x: f32[4, 6]", "w: f32[6, 10] = const()", "b: f32[10] = const()",
        "c: f32[1, 1] = const(3)", "a: f32[4, 10] = matmul(x, w)", "d: f32[4, 10] = add(b, a)",
        "e: f32[4, 5, 2] = reshape(d, shape=(4, 5, 2))",
        "f: f32[2, 4, 5] = transpose(e, perm=(2, 0, 1))", "y: f32[2, 4, 5] = mul(c, f)"),
     ["matmul", "add", "mul", "reshape", "transpose"]),
    ("scale_into_operand", body(
        "x: f32[4, 6], z: f32[10, 3]", "w: f32[6, 10] = const()", "c: f32[()] = const(3)",
        "a: f32[4, 10] = matmul(x, w)", "s: f32[4, 3] = matmul(a, z)", "y: f32[4, 3] = mul(s, c)"),
     ["matmul", "mul", "matmul"]),
    ("slices_into_conv", body(
        "x: f32[2, 3, 8, 6]",
        *SIX_SLICES,
        "s: f32[2, 18, 4, 2] = concat(a, b, c, d, e, f, axis=1)", "w: f32[5, 18, 3, 2] = const()",
        "y: f32[2, 5, 2, 3] = conv(s, w, stride=(2, 1), pads=(1, 0, 1, 2))"),
     ["conv"]),
    ("expand_into_broadcast", body(
        "x: f32[3, 1], z: f32[3, 5]", "a: f32[3, 5] = expand(x, shape=(3, 5))",
        "y: f32[3, 5] = add(a, z)"), ["add"]),
    ("expand_into_broadcast", body(
        "x: f32[3, 1], z: f32[1, 5]", "a: f32[3, 5] = expand(x, shape=(3, 5))",
        "b: f32[3, 5] = expand(z, shape=(3, 5))", "y: f32[3, 5] = mul(a, b)"), ["mul"]),
    ("expand_behind_elements", body(
        "n: size, x: i64[n, 1]", "a: i64[n, 5] = expand(x, shape=(n, 5))",
        "b: bool[n, 5] = cast(a, to=bool)", "y: bool[n, 5] = logical_not(b)"),
     ["cast", "logical_not", "expand"]),
    ("expand_behind_elements", body(
        "x: f32[1, 3]", "a: f32[2, 3] = expand(x, shape=(2, 1))",
        "y: f32[2, 3] = clip(a, min=0.5)"), ["clip", "expand"]),
    ("expand_behind_elements", body(
        "x: f32[3]", "a: f32[2, 3] = expand(x, shape=(2, 3))", "y: f32[2, 3] = exp(a)"),
     ["exp", "expand"]),
    ("expand_behind_reduce", body(
        "n: size, x: f32[2, n, 1]", "a: f32[2, n, 5] = expand(x, shape=(2, n, 5))",
        "y: f32[2, 5] = reduce(a, kind='sum', axes=(1,), keepdims=False)"), ["reduce", "expand"]),
    ("expand_behind_reduce", body(
        "x: f32[2, 1, 4]", "a: f32[2, 3, 4] = expand(x, shape=(2, 3, 4))",
        "y: f32[2, 3, 1] = reduce(a, kind='max', axes=(-1,))"), ["reduce", "expand"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "text", "left"), FIRES, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(FIRES)]
)
def test_a_rule_rewrites(rule, text, left):
    assert_rewrites(rule, text, left)


FOCUS = (
    "a: f32[2, 3, 4, 6] = slice(x, starts=(0, 0, 0, 0), sizes=(2, 3, 4, 6), steps=(1, 1, 2, 1))",
    "b: f32[2, 3, 4, 6] = slice(x, starts=(0, 0, 1, 0), sizes=(2, 3, 4, 6), steps=(1, 1, 2, 1))",
    "s: f32[2, 6, 4, 6] = concat(a, b, axis=1)", "w: f32[4, 6, 1, 1] = const()",
    "y: f32[2, 4, 4, 6] = conv(s, w)",
)  # fmt: skip


def focus(*changes, x="x: f32[2, 3, 8, 6]"):
    text = body(x, *FOCUS)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


FOCUS_REFUSES = [
    ("div_into_quotient", "no f32", body(
        "x: f64[3]", "c: f64[()] = const(3)", "y: f64[3] = div(x, c)")),
    *(("div_into_quotient", reason, body(
        "x: f64[3]", "a: F32[3] = cast(x, to=F32)", f"c: F32[3] = const({values})",
        "y: F32[3] = div(a, c)"))
      for reason, values in (("zero or not finite", "3, 5, inf"), ("too small", "3, 5, 1e-30"))),
    ("integers_into_bytes", "no matrix", body(
        "x: u8[3, 32]", "w: f64[32, 16] = const(1)", "a: f64[3, 32] = cast(x, to=f64)",
        "y: f64[3, 16] = matmul(a, w)")),
    ("integers_into_bytes", "fills no instruction", body(
        "x: u8[3, 33]", "w: i32[33, 16] = const(1)", "a: i32[3, 33] = cast(x, to=i32)",
        "y: i32[3, 16] = matmul(a, w)")),
    ("integers_into_bytes", "fills no instruction", body(
        "x: u8[3, 32]", "w: i32[32, 15] = const(1)", "a: i32[3, 32] = cast(x, to=i32)",
        "y: i32[3, 15] = matmul(a, w)")),
    *(("integers_into_bytes", "not made of bytes", body(
        f"x: {dtype}[3, 32]", f"w: i32[32, 16] = const({number})",
        "a: i32[3, 32] = cast(x, to=i32)", "y: i32[3, 16] = matmul(a, w)"))
      for dtype, number in (("i16", 1), ("u8", 256), ("u8", -129))),
    ("integers_into_bytes", "operands are bytes", body(
        "x: u8[3, 32]", "w: i8[32, 16] = const(1)", "y: i32[3, 16] = matmul(x, w)")),
    ("convolved_integers_into_bytes", "neither i32 nor f32", body(
        "x: u8[1, 2, 3, 3]", "w: f64[1, 2, 2, 2] = const(1)",
        "a: f64[1, 2, 3, 3] = cast(x, to=f64)", "y: f64[1, 1, 2, 2] = conv(a, w)")),
    ("convolved_integers_into_bytes", "operands are bytes", body(
        "x: u8[1, 2, 3, 3]", "w: i8[1, 2, 2, 2] = const(1)", "y: i32[1, 1, 2, 2] = conv(x, w)")),
    *(("convolved_integers_into_bytes", "not made of bytes", body(
        f"x: {dtype}[1, 2, 3, 3]", f"w: i32[1, 2, 2, 2] = const({number})",
        "a: i32[1, 2, 3, 3] = cast(x, to=i32)", "y: i32[1, 1, 2, 2] = conv(a, w)"))
      for dtype, number in (("i16", 1), ("u8", 256), ("u8", -129))),
    ("convolved_integers_into_bytes", "no byte stands for zero", body(
        "x: u8[1, 2, 3, 3]", "w: i32[1, 2, 2, 2] = const(3)", "z: i32[()] = const(256)",
        "a: i32[1, 2, 3, 3] = cast(x, to=i32)", "b: i32[1, 2, 3, 3] = sub(a, z)",
        "y: i32[1, 1, 3, 3] = conv(b, w, pads=(1, 1, 0, 0))")),
    ("convolved_integers_into_bytes", "larger than i32", body(
        "x: u8[1, 66100, 1, 1]", "w: F32[1, 66100, 1, 1] = const(-128)",
        "a: F32[1, 66100, 1, 1] = cast(x, to=F32)", "y: F32[1, 1, 1, 1] = conv(a, w)")),
    ("integers_into_bytes", "larger than i32", body(
        "x: u8[1, 66112]", "w: F32[66112, 16] = const(-128)", "a: F32[1, 66112] = cast(x, to=F32)",
        "y: F32[1, 16] = matmul(a, w)")),
    ("integers_into_floats", "no i32", body("x: f32[3, 5]", *MATMUL, "y: f32[3, 7] = relu(a)")),
    ("integers_into_floats", "an operand may be larger", body(
        "x: i32[2, 4]", "w: i32[4, 3] = const()", "y: i32[2, 3] = matmul(x, w)")),
    ("integers_into_floats", "of a vector", body(
        "x: u8[4]", "w: i32[4, 3] = const()", "a: i32[4] = cast(x, to=i32)",
        "y: i32[3] = matmul(a, w)")),
    ("integers_into_floats", "the sums may be larger", body(
        "x: i16[1, 2, 5, 5]", "w: i32[2, 1, 1, 1] = const(600, 700)",
        "a: i32[1, 2, 5, 5] = cast(x, to=i32)", "y: i32[1, 2, 5, 5] = conv(a, w, groups=2)")),
    ("cast_there_and_back", "the types differ", body(
        "x: u8[3]", "b: i32[3] = cast(x, to=i32)", "y: i16[3] = cast(b, to=i16)")),
    ("cast_there_and_back", "no i32", body(
        "x: f64[3]", "b: i16[3] = cast(x, to=i16)", "y: f64[3] = cast(b, to=f64)")),
    ("cast_there_and_back", "no float", body(
        "x: i64[3]", "b: i32[3] = cast(x, to=i32)", "y: i64[3] = cast(b, to=i64)")),
    ("cast_there_and_back", "no whole number", body(
        "x: f64[3]", "b: i32[3] = cast(x, to=i32)", "y: f64[3] = cast(b, to=f64)")),
    ("slices_into_conv", "stacked as channels", focus(
        ("s: f32[2, 6, 4, 6]", "s: f32[2, 3, 8, 6]"), ("b, axis=1", "b, axis=2"),
        ("w: f32[4, 6", "w: f32[4, 3"), ("y: f32[2, 4, 4, 6]", "y: f32[2, 4, 8, 6]"))),
    ("slices_into_conv", "groups or dilation", focus(
        ("w: f32[4, 6", "w: f32[4, 3"), ("conv(s, w)", "conv(s, w, groups=2)"))),
    ("slices_into_conv", "slices of one image", focus(
        ("b: f32[2, 3, 4, 6] = slice(x", "b: f32[2, 3, 4, 6] = slice(z"),
        x="x: f32[2, 3, 8, 6], z: f32[2, 3, 8, 6]")),
    ("slices_into_conv", "slices of one image", focus(
        ("concat(a, b", "concat(a, z"), x="x: f32[2, 3, 8, 6], z: f32[2, 3, 4, 6]")),
    ("slices_into_conv", "different steps", focus(
        ("starts=(0, 0, 1, 0), sizes=(2, 3, 4, 6), steps=(1, 1, 2, 1)",
         "starts=(0, 0, 1, 0), sizes=(2, 3, 4, 6)"))),
    ("slices_into_conv", "unknown places or channels", focus(
        ("starts=(0, 0, 1, 0)", "starts=(0, 0, k, 0)"), x="k: size, x: f32[2, 3, 8 + k, 6]")),
    ("slices_into_conv", "do not take all channels", focus(x="x: f32[2, 5, 8, 6]")),
    ("slices_into_conv", "beyond the first square", focus(
        ("starts=(0, 0, 1, 0)", "starts=(0, 0, 3, 0)"), x="x: f32[2, 3, 10, 6]")),
    ("slices_into_conv", "cover each square once", focus(
        ("starts=(0, 0, 1, 0)", "starts=(0, 0, 0, 0)"))),
    ("slices_into_conv", "cover the image", focus(x="x: f32[2, 3, 9, 6]")),
]  # fmt: skip

REFUSES = [
    ("batch_norm_into_mul_add", "a variance is negative", body(
        X4, *NORM[:3], "v: f32[3] = const(-1, 2, 3)",
        "y: f32[2, 3, 5, 7] = batch_norm(x, s, b, m, v)")),
    ("batch_norm_into_mul_add", "channels is not known", body(
        "k: size, n: size, x: f32[k, n, 5, 7]", *NORM,
        "y: f32[k, n, 5, 7] = batch_norm(x, s, b, m, v)")),
    ("scale_into_conv", "differs within a channel", body(
        X4, *CONV, "c: f32[7] = const(1, 2, 3, 4, 5, 6, 7)", "y: f32[2, 4, 5, 7] = mul(a, c)")),
    ("scale_into_conv_transpose", "differs within a channel", body(
        "x: f32[2, 6, 5, 7]", "w: f32[6, 2, 2, 2] = const()",
        "a: f32[2, 4, 6, 8] = conv_transpose(x, w, groups=2)",
        "c: f32[4, 6, 1] = const()", "y: f32[2, 4, 6, 8] = mul(c, a)")),
    ("scale_before_conv", "differs within a channel", body(
        X4, "c: f32[7] = const(1, 2, 3, 4, 5, 6, 7)", "b: f32[2, 3, 5, 7] = mul(x, c)",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 3, 5] = conv(b, w)")),
    ("scale_before_conv", "repeats its operand", body(
        "x: f32[2, 1, 5, 7]", "c: f32[3, 1, 1] = const(1, 2, 3)", "b: f32[2, 3, 5, 7] = mul(x, c)",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 3, 5] = conv(b, w)")),
    ("scale_before_conv", "not finite", body(
        X4, "c: f32[3, 1, 1] = const(1, inf, 2)", "b: f32[2, 3, 5, 7] = mul(x, c)",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 3, 5] = conv(b, w)")),
    ("scale_through_bias", "not known", body(
        "k: size, x: f32[k, 5]", "w: f32[5] = const()", "a: f32[k] = matmul(x, w)",
        "b: f32[()] = const(2)", "d: f32[k] = add(a, b)", "y: f32[k] = mul(d, b)")),
    ("scale_into_matmul", "differs within a column", body(
        "x: f32[3, 5]", *MATMUL, "c: f32[3, 1] = const(1, 2, 3)", "y: f32[3, 7] = mul(a, c)")),
    ("scale_into_matmul", "integer products", body(
        "x: i32[3, 5]", "w: i32[5, 7] = const()", "a: i32[3, 7] = matmul(x, w)",
        "c: i32[()] = const(2)", "y: i32[3, 7] = mul(a, c)")),
    ("scale_into_matmul", "not one matrix", body(
        "x: f32[2, 3, 5]", "w: f32[2, 5, 7] = const()", "a: f32[2, 3, 7] = matmul(x, w)",
        "c: f32[()] = const(2)", "y: f32[2, 3, 7] = mul(a, c)")),
    ("scale_into_matmul", "repeats the product", body(
        "x: f32[3, 5]", *MATMUL, "c: f32[2, 1, 1] = const(1, 2)", "y: f32[2, 3, 7] = mul(a, c)")),
    ("scale_through_bias", "differs within a channel", body(
        "x: f32[3, 5]", *MATMUL, "b: f32[()] = const(1)", "d: f32[3, 7] = add(b, a)",
        "c: f32[3, 1] = const(1, 2, 3)", "y: f32[3, 7] = mul(d, c)")),
    ("scale_through_bias", "repeat the result", body(
        "x: f32[3, 5]", *MATMUL, "b: f32[2, 1, 1] = const(1, 2)", "d: f32[2, 3, 7] = add(b, a)",
        "c: f32[()] = const(2)", "y: f32[2, 3, 7] = mul(d, c)")),
    ("add_into_add", "repeats the operand", body(
        "x: f32[3, 1]", "b: f32[5] = const(1, 2, 3, 4, 5)", "c: f32[()] = const(3)",
        "d: f32[3, 5] = add(b, x)", "y: f32[3, 5] = add(d, c)")),
    ("add_into_add", "larger than both", body(
        "x: f32[3, 5]", "b: f32[5] = const(1, 2, 3, 4, 5)", "c: f32[3, 1] = const(1, 2, 3)",
        "d: f32[3, 5] = add(b, x)", "y: f32[3, 5] = add(d, c)")),
    ("add_into_add", "all operands are constants", body(
        "x: f32[3]", "b: f32[3] = const(1, 2, 3)", "d: f32[3] = add(b, b)",
        "e: f32[3] = add(d, b)", "y: f32[3] = add(e, x)")),
    ("mul_into_mul", "repeats the operand", body(
        "x: f32[3, 1]", "b: f32[5] = const(1, 2, 3, 4, 5)", "c: f32[()] = const(3)",
        "d: f32[3, 5] = mul(b, x)", "y: f32[3, 5] = mul(d, c)")),
    ("mul_into_mul", "larger than both", body(
        "x: f32[3, 5]", "b: f32[5] = const(1, 2, 3, 4, 5)", "c: f32[3, 1] = const(1, 2, 3)",
        "d: f32[3, 5] = mul(b, x)", "y: f32[3, 5] = mul(d, c)")),
    ("mul_into_mul", "all operands are constants", body(
        "x: f32[3]", "b: f32[3] = const(1, 2, 3)", "d: f32[3] = mul(b, b)",
        "e: f32[3] = mul(d, b)", "y: f32[3] = mul(e, x)")),
    ("mul_into_mul", "wrap around", body(
        "x: i32[3]", "b: i32[3] = const(1, 2, 3)", "d: i32[3] = mul(x, b)",
        "y: i32[3] = mul(d, b)")),
    ("mul_into_mul", "too small or too large", body(
        "x: f32[3]", "b: f32[()] = const(1e-30)", "d: f32[3] = mul(x, b)",
        "y: f32[3] = mul(d, b)")),
    ("sub_into_add", "no negative", body(
        "x: u8[3]", "c: u8[3] = const(1, 2, 3)", "y: u8[3] = sub(x, c)")),
    ("div_into_mul", "with a remainder", body(
        "x: i32[3]", "c: i32[3] = const(1, 2, 4)", "y: i32[3] = div(x, c)")),
    ("pow_into_products", "integers round", body(
        "x: i32[4]", "c: i32[()] = const(2)", "y: i32[4] = pow(x, c)")),
    ("pow_into_products", "repeats the operand", body(
        "x: f32[4]", "c: f32[3, 1] = const(2)", "y: f32[3, 4] = pow(x, c)")),
    ("pow_into_products", "several exponents", body(
        "x: f32[2]", "c: f32[2] = const(2, 3)", "y: f32[2] = pow(x, c)")),
    ("pow_into_products", "no exponent", elementwise("c: = const(0.5)", "y: = pow(x, c)")),
    ("div_into_mul", "zero or not finite", elementwise("c: = const(inf)", "y: = div(x, c)")),
    ("div_into_mul", "no power of two", elementwise("c: = const(3)", "y: = div(x, c)")),
    ("div_into_mul", "too small or too large", elementwise("c: = const(5e-324)", "y: = div(x, c)")),
    ("pad_into_conv", "zeros only", body(
        X4, "p: f32[2, 3, 7, 7] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 0), value=1.0)",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 5, 5] = conv(p, w)")),
    ("pad_into_conv", "zeros only", body(
        X4, "p: f32[2, 3, 7, 7] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 0), mode='reflect')",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 5, 5] = conv(p, w)")),
    ("pad_into_conv", "batch or channel", body(
        X4, "p: f32[3, 3, 5, 7] = pad(x, before=(1, 0, 0, 0), after=(0, 0, 0, 0))",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[3, 4, 3, 5] = conv(p, w)")),
    ("pad_into_conv", "negative or not known", body(
        X4, "p: f32[2, 3, 4, 7] = pad(x, before=(0, 0, -1, 0), after=(0, 0, 0, 0))",
        "w: f32[4, 3, 3, 3] = const()", "y: f32[2, 4, 2, 5] = conv(p, w)")),
    ("crop_kernel", "every weight meets", body(
        X4, "w: f32[4, 3, 3, 3] = const()",
        "y: f32[2, 4, 5, 7] = conv(x, w, pads=(4, 2, 4, 2), dilation=(4, 2))")),
    ("crop_kernel", "every weight meets", body(
        "N: size, x: f32[2, 3, N]", "w: f32[4, 3, 3] = const()",
        "y: f32[2, 4, N] = conv(x, w, stride=(1,), pads=(9, 9), dilation=(9,))")),
    ("crop_kernel", "every weight meets", body(
        "x: f32[2, 3, 0]", "w: f32[4, 3, 3] = const()",
        "y: f32[2, 4, 4] = conv(x, w, stride=(1,), pads=(3, 3), dilation=(1,))")),
    ("crop_kernel", "first pixels are left out", body(
        "x: f32[2, 3, 3]", "w: f32[4, 3, 2] = const()",
        "y: f32[2, 4, 1] = conv(x, w, stride=(1,), pads=(1, 0), dilation=(3,))")),
    ("crop_kernel", "not finite", body(
        "x: f32[2, 1, 1]", "w: f32[1, 1, 3] = const(inf, 1, 2)",
        "y: f32[2, 1, 1] = conv(x, w, stride=(1,), pads=(1, 1), dilation=(1,))")),
    ("pad_into_pool", "pads with -inf", body(
        X4, "p: f32[2, 3, 7, 7] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 0))",
        "y: f32[2, 3, 6, 5] = max_pool(p, kernel=(2, 3))")),
    ("pad_into_pool", "ceil_mode", body(
        X4, "p: f32[2, 3, 7, 7] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 0), value=-inf)",
        "y: f32[2, 3, 4, 4] = max_pool(p, kernel=(2, 2), stride=(2, 2), ceil_mode=True)")),
    ("pad_into_pool", "a constant only", body(
        X4, "p: f32[2, 3, 7, 7] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 0), mode='edge')",
        "y: f32[2, 3, 6, 5] = max_pool(p, kernel=(2, 3))")),
    ("pad_into_pool", "count the pads", body(
        X4, "p: f32[2, 3, 7, 7] = pad(x, before=(0, 0, 1, 0), after=(0, 0, 1, 0))",
        "y: f32[2, 3, 8, 5] = average_pool(p, kernel=(2, 3), pads=(1, 0, 1, 0))")),
    ("pad_into_pool", "without windows", body(
        X4, "p: f32[3, 3, 5, 7] = pad(x, before=(1, 0, 0, 0), after=(0, 0, 0, 0))",
        "y: f32[3, 3, 4, 5] = average_pool(p, kernel=(2, 3))")),
    ("pad_into_pool", "negative or not known", body(
        X4, "p: f32[2, 3, 4, 7] = pad(x, before=(0, 0, -1, 0), after=(0, 0, 0, 0))",
        "y: f32[2, 3, 3, 5] = average_pool(p, kernel=(2, 3))")),
    ("pool_into_reduce", "several windows", body(
        X4, "y: f32[2, 3, 1, 2] = max_pool(x, kernel=(5, 6))")),
    ("pool_into_reduce", "counts pads", body(
        X4, "y: f32[2, 3, 1, 1] = average_pool(x, kernel=(6, 7), pads=(1, 0, 0, 0), "
        "count_include_pad=True)")),
    ("pool_into_reduce", "leave elements out", body(
        X4, "y: f32[2, 3, 1, 1] = max_pool(x, kernel=(5, 4), dilation=(1, 2))")),
    ("pool_into_reduce", "leave elements out", body(
        "x: f32[2, 3, 1, 7]", "y: f32[2, 3, 1, 1] = max_pool(x, kernel=(3, 7), "
        "pads=(1, 0, 3, 0), dilation=(2, 1))")),
    ("pool_into_reduce", "the whole image", body(
        X4, "y: f32[2, 3, 1, 1] = max_pool(x, kernel=(5, 5), stride=(1, 5))")),
    ("conv_transpose_of_a_pixel", "no pixels", body(
        "x: f32[2, 3, 1, 2]", "w: f32[3, 4, 5, 2] = const()",
        "y: f32[2, 4, 5, 3] = conv_transpose(x, w)")),
    ("conv_transpose_of_a_pixel", "more or less", body(
        "x: f32[2, 4, 1, 1]", "w: f32[4, 3, 5, 2] = const()",
        "y: f32[2, 6, 5, 2] = conv_transpose(x, w, groups=2)")),
    ("conv_transpose_of_a_pixel", "more or less", body(
        "x: f32[2, 3, 1, 1]", "w: f32[3, 4, 5, 2] = const()",
        "y: f32[2, 4, 5, 3] = conv_transpose(x, w, dilation=(1, 2))")),
    ("conv_transpose_of_a_pixel", "no whole kernel", body(
        "x: f32[2, 3, 1, 1]", "w: f32[3, 4, 5, 2] = const()",
        "y: f32[2, 4, 4, 2] = conv_transpose(x, w, pads=(1, 0, 0, 0))")),
    ("scaled_sigmoid_into_silu", "not one number", body(
        "x: f32[3, 5]", "c: f32[5] = const(1, 2, 3, 4, 5)", "b: f32[3, 5] = mul(x, c)",
        "s: f32[3, 5] = sigmoid(b)", "y: f32[3, 5] = mul(x, s)")),
    ("hard_sigmoid_into_hard_swish", "the slope is", elementwise(
        "s: = hard_sigmoid(x)", "y: = mul(x, s)")),
    ("clip_into_hard_swish", "clips at", elementwise(
        "c: = const(3)", "six: = const(6)", "a: = add(x, c)", "b: = clip(a, min=0.0, max=5.0)",
        "d: = mul(x, b)", "y: = div(d, six)", )),
    ("clip_into_hard_sigmoid", "clips at", elementwise(
        "c: = const(3)", "six: = const(6)", "a: = add(x, c)", "b: = clip(a, min=1.0, max=6.0)",
        "y: = div(b, six)", )),
    ("parts_into_softmax", "not the maximum", body(
        "x: f32[3, 5]", "m: f32[3, 1] = reduce(x, kind='mean', axes=(1,))",
        "d: f32[3, 5] = sub(x, m)", "e: f32[3, 5] = exp(d)",
        "t: f32[3, 1] = reduce(e, kind='sum', axes=(-1,))", "y: f32[3, 5] = div(e, t)")),
    ("parts_into_softmax", "is dropped", body(
        "x: f32[3, 3]", "m: f32[3] = reduce(x, kind='max', axes=(0,), keepdims=False)",
        "d: f32[3, 3] = sub(x, m)", "e: f32[3, 3] = exp(d)",
        "t: f32[3] = reduce(e, kind='sum', axes=(0,), keepdims=False)",
        "y: f32[3, 3] = div(e, t)")),
    ("parts_into_softmax", "the same one axis", body(
        "x: f32[3, 5]", "m: f32[3, 1] = reduce(x, kind='max', axes=(1,))",
        "d: f32[3, 5] = sub(x, m)", "e: f32[3, 5] = exp(d)",
        "t: f32[1, 5] = reduce(e, kind='sum', axes=(0,))", "y: f32[3, 5] = div(e, t)")),
    ("scale_into_layer_norm", "one entry for each column", body(
        "x: f32[3, 5]", "n: f32[3, 5] = layer_norm(x)", "s: f32[3, 1] = const(1, 2, 3)",
        "y: f32[3, 5] = mul(n, s)")),
    ("scale_into_layer_norm", "several axes", body(
        "x: f32[3, 5]", "n: f32[3, 5] = layer_norm(x, axis=0)", "s: f32[5] = const(1, 2, 3, 4, 5)",
        "y: f32[3, 5] = mul(n, s)")),
    ("drop_no_op", "the type changes", body(
        "x: f32[3, 5]", "y: f32[15] = reshape(x, shape=(15,))")),
    ("drop_no_op", "change places", body(
        "x: f32[3, 3]", "a: f32[3, 3] = transpose(x, perm=(1, 0))", "y: f32[3, 3] = relu(a)")),
    ("drop_no_op", "reversed", body(
        "x: f32[3]", "a: f32[3] = slice(x, starts=(2,), sizes=(3,), steps=(-1,))",
        "y: f32[3] = relu(a)")),
    ("drop_no_op", "the other loses", body(
        "x: f32[3]", "a: f32[3] = pad(x, before=(1,), after=(-1,))", "y: f32[3] = relu(a)")),
    ("drop_no_op", "keeps its name", body("x: f32[3]", "y: f32[3] = identity(x)")),
    ("drop_mul_by_one", "is not one", elementwise(
        "c: = const(1.0000002)", "d: = mul(c, x)", "y: = relu(d)")),
    ("drop_mul_by_one", "repeats the operand", body(
        "x: f32[3]", "c: f32[1, 1] = const(1)", "a: f32[1, 3] = mul(x, c)",
        "y: f32[1, 3] = relu(a)")),
    ("transpose_into_reshape", "several elements change", body(
        "x: f32[3, 1, 5]", "y: f32[5, 1, 3] = transpose(x, perm=(2, 1, 0))")),
    ("transpose_into_reshape", "nothing moves", body(
        "x: f32[3, 5]", "y: f32[3, 5] = transpose(x, perm=(0, 1))")),
    ("concat_into_concat", "no part is", body(
        "x: f32[2, 3], y: f32[2, 4], z: f32[2, 5]", "a: f32[2, 7] = concat(x, y, axis=1)",
        "b: f32[2, 12] = concat(z, a, axis=1)", "c: f32[2, 7] = neg(a)", outputs="b, c")),
    ("concat_into_concat", "no part is", body(
        "x: f32[2, 3], y: f32[2, 4], z: f32[1, 7]", "a: f32[2, 7] = concat(x, y, axis=1)",
        "b: f32[3, 7] = concat(a, z, axis=0)", outputs="b")),
    ("concat_into_concat", "no part is", body(
        "x: f32[2, 3], y: f32[2, 4], z: f32[2, 5]", "a: f32[2, 7] = concat(x, y, axis=1)",
        "b: f32[2, 12] = concat(a, z, axis=1)", outputs="b, a")),
    ("slice_behind_reshape", "the last axis alone", body(
        "x: f32[4, 6]", "a: f32[2, 6] = slice(x, starts=(0, 0), sizes=(2, 6))",
        "b: f32[4, 1, 3] = reshape(a, shape=(4, 1, 3))", "y: f32[4, 1, 3] = relu(b)")),
    ("slice_behind_reshape", "leaves elements out", body(
        "x: f32[4, 12]", "a: f32[4, 6] = slice(x, starts=(0, 0), sizes=(4, 6), steps=(1, 2))",
        "b: f32[4, 2, 3] = reshape(a, shape=(4, 2, 3))", "y: f32[4, 2, 3] = relu(b)")),
    ("slice_behind_reshape", "does not split", body(
        "x: f32[4, 12]", "a: f32[4, 6] = slice(x, starts=(0, 0), sizes=(4, 6))",
        "b: f32[2, 4, 3] = reshape(a, shape=(2, 4, 3))", "y: f32[2, 4, 3] = relu(b)")),
    ("slice_behind_reshape", "unknown size", body(
        "n: size, x: f32[4, 12 + n]", "a: f32[4, 6] = slice(x, starts=(0, 0), sizes=(4, 6))",
        "b: f32[4, 2, 3] = reshape(a, shape=(4, 2, 3))", "y: f32[4, 2, 3] = relu(b)")),
    ("slice_behind_reshape", "within a row", body(
        "x: f32[4, 12]", "a: f32[4, 6] = slice(x, starts=(0, 2), sizes=(4, 6))",
        "b: f32[4, 2, 3] = reshape(a, shape=(4, 2, 3))", "y: f32[4, 2, 3] = relu(b)")),
    ("tiny_weights_into_zeros", "no weight is too small", body(
        "x: f32[3, 2]", "w: f32[2, 2] = const(1, 0, 1e-300, 2)", "y: f32[3, 2] = matmul(x, w)")),
    ("tiny_weights_into_zeros", "no weight is too small", body(
        "x: f16[3, 2]", "w: f16[2, 2] = const(1, 0, 1e-7, 2)", "y: f16[3, 2] = matmul(x, w)")),
    ("tiny_bias_into_zeros", "no bias is too small", body(
        "x: f32[3, 2]", "w: f32[2, 2] = const(1, 3, 5, 2)", "b: f32[2] = const(0, 2)",
        "a: f32[3, 2] = matmul(x, w)", "y: f32[3, 2] = add(b, a)")),
    ("transpose_into_channel_shuffle", "as the operand is", body(
        "x: f32[2, 12]", "s: f32[2, 3, 4] = reshape(x, shape=(2, 3, 4))",
        "t: f32[2, 4, 3] = transpose(s, perm=(0, 2, 1))",
        "y: f32[2, 12] = reshape(t, shape=(2, 12))")),
    ("transpose_into_channel_shuffle", "not the channels", body(
        "x: f32[2, 12, 5]", "s: f32[4, 3, 2, 5] = reshape(x, shape=(4, 3, 2, 5))",
        "t: f32[4, 2, 3, 5] = transpose(s, perm=(0, 2, 1, 3))",
        "y: f32[2, 12, 5] = reshape(t, shape=(2, 12, 5))")),
    ("transpose_into_channel_shuffle", "do not change places", body(
        "x: f32[2, 12, 5]", "s: f32[2, 3, 4, 5] = reshape(x, shape=(2, 3, 4, 5))",
        "t: f32[3, 2, 4, 5] = transpose(s, perm=(1, 0, 2, 3))",
        "y: f32[2, 12, 5] = reshape(t, shape=(2, 12, 5))")),
    ("transpose_into_channel_shuffle", "not known", body(
        "g: size, x: f32[2, g * 4, 5]", "s: f32[2, g, 4, 5] = reshape(x, shape=(2, g, 4, 5))",
        "t: f32[2, 4, g, 5] = transpose(s, perm=(0, 2, 1, 3))",
        "y: f32[2, g * 4, 5] = reshape(t, shape=(2, g * 4, 5))")),
    ("scale_before_move", "not one number", body(
        "x: f32[4, 6]", "w: f32[6, 10] = const()", "c: f32[10, 1] = const()",
        "a: f32[4, 10] = matmul(x, w)", "f: f32[10, 4] = transpose(a, perm=(1, 0))",
        "y: f32[10, 4] = mul(c, f)")),
    ("scale_before_move", "integer products", body(
        "x: i32[4, 6]", "w: i32[6, 10] = const()", "c: i32[()] = const(2)",
        "a: i32[4, 10] = matmul(x, w)", "f: i32[10, 4] = transpose(a, perm=(1, 0))",
        "y: i32[10, 4] = mul(c, f)")),
    ("scale_before_move", "no weights", body(
        "x: f32[4, 6]", "c: f32[()] = const(2)", "f: f32[6, 4] = transpose(x, perm=(1, 0))",
        "y: f32[6, 4] = mul(c, f)")),
    ("scale_before_move", "no weights", body(
        "x: f32[4, 6]", "w: f32[6, 10] = const()", "c: f32[()] = const(2)",
        "a: f32[4, 10] = matmul(x, w)", "f: f32[10, 4] = transpose(a, perm=(1, 0))",
        "y: f32[10, 4] = mul(c, f)", outputs="y, a")),
    ("scale_into_operand", "not one number", body(
        "x: f32[4, 6], z: f32[10, 3]", "w: f32[6, 10] = const()", "c: f32[3] = const(1, 2, 3)",
        "a: f32[4, 10] = matmul(x, w)", "s: f32[4, 3] = matmul(a, z)", "y: f32[4, 3] = mul(s, c)")),
    ("scale_into_operand", "takes the factor itself", body(
        "x: f32[4, 6]", "w: f32[6, 10] = const()", "c: f32[()] = const(2)",
        "a: f32[4, 10] = matmul(x, w)", "y: f32[4, 10] = mul(a, c)")),
    ("scale_into_operand", "no weights", body(
        "x: f32[4, 6], z: f32[6, 3]", "c: f32[()] = const(2)", "e: f32[4, 6] = exp(x)",
        "s: f32[4, 3] = matmul(e, z)", "y: f32[4, 3] = mul(s, c)")),
    *FOCUS_REFUSES,
    ("expand_into_broadcast", "no operand is", body(
        "x: f32[3, 1], z: f32[3, 5]", "y: f32[3, 5] = add(x, z)")),
    ("expand_into_broadcast", "nothing else surely has the size", body(
        "x: f32[3, 1], z: f32[1, 1]", "a: f32[3, 5] = expand(x, shape=(3, 5))",
        "y: f32[3, 5] = add(a, z)")),
    ("expand_behind_reduce", "what is joined is repeated", body(
        "x: f32[3, 1]", "a: f32[3, 5] = expand(x, shape=(3, 5))",
        "y: f32[3] = reduce(a, kind='sum', axes=(1,), keepdims=False)")),
    ("expand_behind_reduce", "adds axes", body(
        "x: f32[3]", "a: f32[2, 3] = expand(x, shape=(2, 3))",
        "y: f32[2] = reduce(a, kind='sum', axes=(1,), keepdims=False)")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "reason", "text"), REFUSES, ids=[f"{r}: {why}" for r, why, _ in REFUSES]
)
def test_a_rule_refuses(rule, reason, text):
    assert_refuses(rule, reason, text)


@pytest.mark.parametrize(
    ("shape", "data", "result", "context", "reason"),
    [
        ("()", [0], "3, 5", ON_GPU, ""),
        ("1", [-0.0], "3, 5", ON_GPU, ""),
        ("()", [0], "3, 5", CONTEXT, "no GPU"),
        ("()", [1], "3, 5", ON_GPU, "not 0"),
        ("5", [0] * 5, "3, 5", ON_GPU, "not one number"),
        ("1, 1, 1", [0], "1, 3, 5", ON_GPU, "not one number"),
    ],
)
def test_zeros_for_nan_are_an_operator_of_their_own_on_gpus(shape, data, result, context, reason):
    text = body(
        "x: f32[3, 5]", f"z: f32[{shape}] = const({', '.join(map(str, data))})",
        "n: bool[3, 5] = isnan(x)", f"y: f32[{result}] = where(n, z, x)",
    )  # fmt: skip
    graph = parse_graph(text)
    refusals = []
    after = rewrite_graph(graph, PATTERN_RULES, context, lambda *why: refusals.append(why))
    assert ops(after) == (["isnan", "where"] if reason else ["nan_to_zero"])
    assert [name for name, _, why in refusals if reason and reason in why] == (
        ["where_into_nan_to_zero"] if reason else []
    )
    x = np.where(np.eye(3, 5) > 0, np.nan, 2).astype(np.float32)
    (want,), (got,) = (evaluate(g, {"x": x}).values() for g in (graph, after))
    np.testing.assert_array_equal(got, want)


GELU_ERF = (
    "r: f32[()] = const(1.4142135)", "one: f32[()] = const(1)", "half: f32[()] = const(0.5)",
    "a: f32[3, 5] = div(x, r)", "e: f32[3, 5] = erf(a)", "p: f32[3, 5] = add(e, one)",
)  # fmt: skip
GELU_TANH = (
    "k: f32[()] = const(0.044715)", "r: f32[()] = const(0.7978845)", "one: f32[()] = const(1)",
    "three: f32[()] = const(3)", "half: f32[()] = const(0.5)", "c: f32[3, 5] = pow(x, three)",
    "d: f32[3, 5] = mul(c, k)", "s: f32[3, 5] = add(x, d)", "m: f32[3, 5] = mul(s, r)",
    "t: f32[3, 5] = tanh(m)", "p: f32[3, 5] = add(t, one)",
)  # fmt: skip
ORDERS = {
    "(x * p) * half": ("q: f32[3, 5] = mul(x, p)", "y: f32[3, 5] = mul(q, half)"),
    "(x * half) * p": ("q: f32[3, 5] = mul(half, x)", "y: f32[3, 5] = mul(q, p)"),
    "x * (p * half)": ("q: f32[3, 5] = mul(half, p)", "y: f32[3, 5] = mul(x, q)"),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("lines", "tanh"), [(GELU_ERF, False), (GELU_TANH, True)])
def test_gelu_is_found(order, lines, tanh):
    graph = read(body("x: f32[3, 5]", *lines, *ORDERS[order]))
    after = rewrite_graph(graph, PATTERN_RULES, CONTEXT)
    assert [n.op for n in after.nodes] == [Gelu(approximate="tanh" if tanh else "none")]
    same(graph, after, tolerance=1e-6)


def test_gelu_with_another_factor_is_none():
    lines = [line.replace("0.5)", "0.51)") for line in GELU_ERF]
    graph = read(body("x: f32[3, 5]", *lines, *ORDERS["(x * p) * half"]))
    assert rewrite_graph(graph, PATTERN_RULES, CONTEXT) is graph


LAYER_NORM = (
    "m: f32[3, 5] = reduce(x, kind='mean', axes=(-1,))", "d: f32[3, 5] = sub(x, m)",
    "two: f32[()] = const(2)", "q: f32[3, 5] = pow(d, two)",
    "v: f32[3, 1] = reduce(q, kind='mean', axes=(-1,))", "eps: f32[()] = const(0.00001)",
    "w: f32[3, 1] = add(v, eps)", "r: f32[3, 1] = sqrt(w)", "n: f32[3, 5] = div(d, r)",
    "g: f32[5] = const(1, 2, 3, 4, 5)", "h: f32[3, 5] = mul(n, g)", "y: f32[3, 5] = add(h, g)",
)  # fmt: skip


def layer_norm(**changes):
    text = body("x: f32[3, 5]", *LAYER_NORM).replace("m: f32[3, 5]", "m: f32[3, 1]")
    for old, new in changes.items():
        text = text.replace(old, new)
    return text.replace("f32[", "f64[")


def test_layer_norm_is_found_with_scale_and_bias():
    graph = read(layer_norm())
    after = rewrite_graph(graph, PATTERN_RULES, CONTEXT)
    assert [(n.op.name, len(n.inputs)) for n in after.nodes] == [("layer_norm", 3)]
    same(graph, after)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind='mean', axes=(-1,))\n    d": "kind='max', axes=(-1,))\n    d"}, "not a mean"),
        ({"axes=(-1,)": "axes=(0,)", "f32[3, 1]": "f32[1, 5]"}, "not over the last axis"),
        ({"eps: f32[()] = const(0.00001)": "eps: f32[3, 1] = const(1, 2, 3)"}, "epsilon"),
    ],
)
def test_layer_norm_refuses(changes, reason):
    graph = read(layer_norm(**changes))
    refusals = []
    after = rewrite_graph(
        graph, PATTERN_RULES, CONTEXT, lambda name, _, why: refusals.append((name, why))
    )
    assert any(name == "parts_into_layer_norm" and reason in why for name, why in refusals)
    assert "layer_norm" not in ops(after)


RMS_NORM = (
    "two: f32[()] = const(2)", "q: f32[3, 5] = pow(x, two)",
    "v: f32[3, 1] = reduce(q, kind='mean', axes=(1,))", "eps: f32[()] = const(0.01)",
    "w: f32[3, 1] = add(v, eps)", "r: f32[3, 1] = sqrt(w)", "i: f32[3, 1] = reciprocal(r)",
    "n: f32[3, 5] = mul(x, i)", "g: f32[5] = const(1, 2, 3, 4, 5)", "y: f32[3, 5] = mul(n, g)",
)  # fmt: skip
RMS_SPELLINGS = {
    "mul reciprocal": [],
    "x * x": [("pow(x, two)", "mul(x, x)")],
    "div": [("i: f32[3, 1] = reciprocal(r)", "n: f32[3, 5] = div(x, r)"),
            ("n: f32[3, 5] = mul(x, i)", "one: f32[()] = const(1)")],
    "one over": [("i: f32[3, 1] = reciprocal(r)", "one: f32[()] = const(1)"),
                 ("n: f32[3, 5] = mul(x, i)",
                  "i: f32[3, 1] = div(one, r)\n    n: f32[3, 5] = mul(i, x)")],
    "power": [("r: f32[3, 1] = sqrt(w)", "half: f32[()] = const(-0.5)"),
              ("reciprocal(r)", "pow(w, half)")],
}  # fmt: skip


def rms_norm(changes):
    text = body("x: f32[3, 5]", *RMS_NORM)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return read(text.replace("f32[", "f64["))


@pytest.mark.parametrize("spelling", RMS_SPELLINGS)
def test_rms_norm_is_found_with_its_scale(spelling):
    graph = rms_norm(RMS_SPELLINGS[spelling])
    after = rewrite_graph(graph, PATTERN_RULES, CONTEXT)
    assert [(n.op.name, len(n.inputs)) for n in after.nodes] == [("rms_norm", 2)]
    same(graph, after)


@pytest.mark.parametrize(
    ("old", "new", "rule", "reason"),
    [
        ("kind='mean'", "kind='sum'", "parts_into_rms_norm", "not a mean"),
        ("eps: f32[()] = const(0.01)", "eps: f32[3, 1] = const(1, 2, 3)", "parts_into_rms_norm",
         "epsilon"),
        ("g: f32[5] = const(1, 2, 3, 4, 5)", "g: f32[3, 1] = const(1, 2, 3)",
         "scale_into_rms_norm", "for each column"),
    ],
)  # fmt: skip
def test_rms_norm_refuses(old, new, rule, reason):
    graph = rms_norm([(old, new)])
    refusals = []
    after = rewrite_graph(
        graph, PATTERN_RULES, CONTEXT, lambda name, _, why: refusals.append((name, why))
    )
    assert any(name == rule and reason in why for name, why in refusals)
    same(graph, after)


def test_rms_norm_over_other_axes_is_refused():
    graph = rms_norm([("axes=(1,)", "axes=(0,)"), ("f32[3, 1]", "f32[1, 5]")])
    refusals = []
    rewrite_graph(graph, PATTERN_RULES, CONTEXT, lambda *why: refusals.append(why))
    assert any("last axis" in why for _, _, why in refusals)


def test_a_scale_of_an_rms_norm_over_several_axes_is_refused():
    text = body(
        "x: f32[3, 5]", "n: f32[3, 5] = rms_norm(x, axis=0)", "g: f32[5] = const(1, 2, 3, 4, 5)",
        "y: f32[3, 5] = mul(n, g)",
    )  # fmt: skip
    _, after, refusals = rewrite(text, "scale_into_rms_norm")
    assert ops(after) == ["rms_norm", "mul"]
    assert refusals == [("scale_into_rms_norm", "the norm is over several axes")]


def test_a_value_that_others_read_is_not_matched():
    text = elementwise("s: = sigmoid(x)", "y: = mul(s, x)", outputs="y, s")
    graph = read(text)
    assert rewrite_graph(graph, PATTERN_RULES, CONTEXT) is graph


SCALED = {
    "scale_into_conv": (X4, *CONV, "c: f32[4, 1, 1] = const(3, 5, 7, 9)",
                        "y: f32[2, 4, 5, 7] = mul(a, c)"),
    "scale_before_conv": (X4, "c: f32[()] = const(3)", "s: f32[2, 3, 5, 7] = mul(x, c)",
                          CONV[0], "y: f32[2, 4, 3, 5] = conv(s, w)"),
    "scale_into_matmul": ("x: f32[3, 5]", *MATMUL, "c: f32[7] = const(1, 2, 3, 4, 5, 6, 7)",
                          "y: f32[3, 7] = mul(a, c)"),
}  # fmt: skip


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("rule", SCALED)
def test_weights_that_are_exact_in_bf16_stay_so_for_a_matrix_engine(rule, whole):
    graph, refusals = read(body(*SCALED[rule])), []
    if whole:
        graph = replace(graph, constants={v: np.rint(a) for v, a in graph.constants.items()})
    chosen = [r for r in STEP_RULES if r.name == rule]
    context = PassContext(target=Target(features=ENGINE))
    after = rewrite_graph(graph, chosen, context, lambda *why: refusals.append(why[2]))
    assert any("multiplies such whole numbers faster" in why for why in refusals) is whole
    assert ("mul" in ops(after)) is whole


def test_a_gpu_multiplies_bytes_as_they_are():
    text = body("x: u8[3, 32]", "w: i8[32, 16] = const(1)", "y: i32[3, 16] = matmul(x, w)")
    for context, left in ((ON_GPU, ["matmul"]), (CONTEXT, ["cast", "matmul", "cast"])):
        assert ops(rewrite_graph(read(text), STEP_RULES, context)) == left
    wide = "x: u8[3, 32]", "w: i32[32, 16] = const(1)", "a: i32[3, 32] = cast(x, to=i32)"
    graph = read(body(*wide, "y: i32[3, 16] = matmul(a, w)"))
    assert "f32" not in str(rewrite_graph(graph, STEP_RULES, ON_GPU))
    assert "i8" not in str(rewrite_graph(graph, STEP_RULES, CONTEXT)).replace("u8", "")


def test_without_a_fused_multiply_add_a_division_stays():
    text = "x: f32[3]", "c: f32[()] = const(3)", "y: f32[3] = div(x, c)"
    graph, refusals = read(body(*text)), []
    rewrite_graph(graph, STEP_RULES, PassContext(), lambda *why: refusals.append(why[::2]))
    assert ("div_into_quotient", "the target has no fused multiply-add") in refusals


def test_rules_that_do_not_end_are_an_error():
    graph = read(elementwise("y: = neg(x)"))
    forever = Rule("forever", Pattern(Neg, ("x",)), lambda match: match.call(Neg(), match["x"]))
    with pytest.raises(InternalError, match="forever"):
        rewrite_graph(graph, [forever], CONTEXT)


def test_every_rule_has_a_case_that_fires():
    tested = {r for r, _, _ in FIRES} | {"drop_no_op"}
    tested |= {"parts_into_gelu", "parts_into_layer_norm"}
    tested |= {"parts_into_rms_norm", "scale_into_rms_norm", "where_into_nan_to_zero"}
    assert {r.name for r in (*PATTERN_RULES, *SHAPE_RULES, *STEP_RULES)} == tested


def test_rewriting_takes_time_in_proportion_to_the_nodes():
    def calls(nodes):
        """How many functions are called: unlike time, the same on any machine."""
        pairs = [
            f"a{i + 1}: f32[3] = {'relu' if i % 2 else 'identity'}(a{i})" for i in range(nodes)
        ]
        text = "\n    ".join(["def main(a0: f32[3]):", *pairs, f"return a{nodes}\n"])
        graph, profile = read(text), cProfile.Profile()
        after = profile.runcall(rewrite_graph, graph, SHAPE_RULES, CONTEXT)
        assert len(after.nodes) == nodes // 2
        return sum(entry.callcount for entry in profile.getstats())

    calls(100)  # what is computed once
    assert calls(1000) < 2.2 * calls(500)
