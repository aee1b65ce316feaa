"""Each rule rewrites what its equation says, keeps the results, and refuses what it must."""

from __future__ import annotations

import cProfile
from dataclasses import replace

import numpy as np
import pytest

from dlc.core.errors import InternalError
from dlc.core.target import Target
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.elementwise import Neg
from dlc.graph.pass_ import PassContext
from dlc.graph.rewrite import Pattern, Rule, rewrite_graph
from dlc.graph.rules import PATTERN_RULES, SHAPE_RULES, STEP_RULES
from tests.graph.pass_cases import CONTEXT, ENGINE, read
from tests.graph.rule_cases import (
    BESIDE,
    BESIDE_INPUTS,
    CHOSEN,
    CONV,
    MATMUL,
    MATRICES,
    NORM,
    ON_GPU,
    X4,
    assert_rewrites,
    body,
    elementwise,
    ops,
)

SIX_SLICES = tuple(
    f"{name}: f32[2, 3, 4, 2] = slice(x, starts=(0, 0, {i}, {j}), sizes=(2, 3, 4, 2), "
    "steps=(1, 1, 2, 3))"
    for name, i, j in zip("abcdef", (1, 0, 1, 0, 1, 0), (2, 0, 0, 1, 1, 2), strict=True)
)
PART = ("slice", "cast", "matmul", "cast")
FIRES = [
    ("gather_nd_into_gather", body(
        "x: f32[3, 5], i: i64[4, 2, 1]", "y: f32[4, 2, 5] = gather_nd(x, i)"),
     ["reshape", "gather"]),
    *(("cast_before_choice", body(
        "i: i64[4]", f"w: {half}[3, 7, 5] = const()", f"g: {half}[4, 7, 5] = gather(w, i, axis=0)",
        "y: F32[4, 7, 5] = cast(g, to=F32)"),
       ["gather"])
      for half in ("f16", "bf16")),
    ("chosen_to_the_right", body(CHOSEN, *MATRICES, "y: f32[4, 7, 1] = matmul(g, x)"),
     ["transpose", "reshape", "gather", "matmul", "reshape"]),
    ("transpose_before_choice", body(
        CHOSEN, *MATRICES, "y: f32[4, 5, 7] = transpose(g, perm=(0, 2, 1))"),
     ["transpose", "gather"]),
    ("transpose_before_choice", body(
        "i: i64[4, 2]", MATRICES[0], "g: f32[4, 2, 7, 5] = gather(w, i, axis=0)",
        "y: f32[4, 2, 5, 7] = transpose(g, perm=(0, 1, 3, 2))"),
     ["transpose", "gather"]),
    ("div_into_quotient", body(
        "x: f64[3, 5]", "a: F32[3, 5] = cast(x, to=F32)", "c: F32[5] = const(3, -5, 7, 9, 11)",
        "y: F32[3, 5] = div(a, c)"),
     ["cast", "quotient"]),
    ("bytes_before_concat", body(BESIDE_INPUTS, *BESIDE),
     ["mul", "round", "cast", "mul", "round", "cast", "concat"]),
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
    ("pow_into_products", elementwise("c: = const(0.5)", "y: = pow(x, c)"),
     ["sqrt", "isinf", "where", "abs"]),
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
    ("conv_transpose_into_conv", body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 2, 8, 12] = const()",
        "y: f32[2, 2, 21, 19] = conv_transpose(x, w, stride=(4, 4), pads=(1, 0, 2, 5))"),
     ["conv", "reshape", "transpose", "reshape", "slice"]),
    ("conv_transpose_into_conv", body(
        "N: size, L: size, x: f32[N, 3, L]", "w: f32[3, 1, 64] = const()",
        "y: f32[N, 1, L * 32 + 11] = conv_transpose(x, w, stride=(32,), pads=(37, 0), "
        "dilation=(1,), output_padding=(16,))"),
     ["conv", "reshape", "transpose", "reshape", "slice"]),
    ("conv_transpose_into_conv", body(  # one phase: cropped by pads, in groups, with dilation
        "x: f32[2, 4, 7, 6]", "w: f32[4, 3, 3, 2] = const()",
        "y: f32[2, 6, 7, 4] = conv_transpose(x, w, groups=2, pads=(2, 1, 3, 4), dilation=(2, 3), "
        "output_padding=(1, 0))"), ["conv", "reshape", "transpose", "reshape", "slice"]),
    ("conv_transpose_into_conv", body(  # more is cropped than the kernel reaches
        "x: f32[2, 3, 7, 6]", "w: f32[3, 2, 2, 2] = const()",
        "y: f32[2, 2, 5, 3] = conv_transpose(x, w, pads=(3, 0, 0, 4))"),
     ["conv", "reshape", "transpose", "reshape", "slice"]),
    ("conv_transpose_into_product", body(
        "N: size, x: f32[N, 3, 5, 4]", "w: f32[3, 2, 3, 3] = const()",
        "y: f32[N, 2, 8, 11] = conv_transpose(x, w, stride=(2, 3), pads=(1, 0, 2, 1))"),
     ["reshape", "matmul", "col2im"]),
    ("conv_transpose_into_product", body(
        "L: size, x: f32[2, 3, L]", "w: f32[3, 1, 3] = const()",
        "y: f32[2, 1, L * 2 + 3] = conv_transpose(x, w, stride=(2,), pads=(0, 1), dilation=(2,), "
        "output_padding=(1,))"), ["reshape", "matmul", "col2im"]),
    ("col2im_by_phases", body(
        "n: size, x: f32[n, 18, 16]", "y: f32[n, 3, 5, 11] = col2im(x, image=(5, 11), "
        "kernel=(2, 3), stride=(1, 3), pads=(0, 1, 0, 0), dilation=(1, 1))"),
     ["col2im_phases", "transpose", "reshape", "slice"]),
    ("col2im_by_phases", body(  # a pixel that no patch reaches
        "x: f32[2, 3, 4]", "y: f32[2, 1, 10] = col2im(x, image=(10,), kernel=(3,), stride=(2,), "
        "pads=(0, 0), dilation=(1,))"), ["col2im_phases", "transpose", "reshape", "slice"]),
    ("col2im_by_phases", body(
        "x: f32[2, 2, 4]", "y: f32[2, 1, 12] = col2im(x, image=(12,), kernel=(2,), stride=(3,), "
        "pads=(1, 0), dilation=(1,))"), ["col2im_phases", "transpose", "reshape", "pad"]),
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
    ("scale_into_left", body(
        "n: size, x: f32[2, 1, 6], z: f32[2, 6, n]", "c: f32[1] = const(0.25)",
        "b: f32[2, 6, n] = mul(c, z)", "y: f32[2, 1, n] = matmul(x, b)"), ["mul", "matmul"]),
    ("one_before_transpose", body(
        "n: size, x: f32[n, 5, 3, 4]", "a: f32[3, n, 5, 4] = transpose(x, perm=(2, 0, 1, 3))",
        "b: f32[1, n, 2, 4] = slice(a, starts=(1, 0, 0, 0), sizes=(1, n, 2, 4),"
        " steps=(1, 1, 2, 1))",
        "y: f32[n, 8] = reshape(b, shape=(n, 8))", "z: f32[3, n, 5, 4] = relu(a)", outputs="y, z"),
     ["transpose", "slice", "transpose", "reshape", "relu"]),
    ("one_before_reshape", body(
        "n: size, x: f32[3, n, 1, 4]", "a: f32[1, 3, n, 4] = reshape(x, shape=(1, 3, n, 4))",
        "b: f32[1, 1, n, 2] = slice(a, starts=(0, 2, 0, 1), sizes=(1, 1, n, 2))",
        "y: f32[n, 2] = reshape(b, shape=(n, 2))"), ["slice", "reshape", "reshape"]),
    ("one_behind_reshape", body(
        "n: size, x: f32[1, n, 3, 8]",
        "a: f32[1, n, 1, 8] = slice(x, starts=(0, 0, 2, 0), sizes=(1, n, 1, 8))",
        "b: f32[n, 2, 4] = reshape(a, shape=(n, 2, 4))", "y: f32[n, 2, 4] = relu(b)"),
     ["reshape", "slice", "relu"]),
    ("units_before_transpose", body(
        "n: size, x: f32[n, 6], z: f32[4, 3]", "a: f32[n, 2, 3] = reshape(x, shape=(n, 2, 3))",
        "b: f32[2, 3, n] = transpose(a, perm=(1, 2, 0))",
        "c: f32[1, 2, 3, n] = reshape(b, shape=(1, 2, 3, n))",
        "y: f32[1, 2, 4, n] = matmul(z, c)"),
     ["reshape", "reshape", "transpose", "matmul"]),
    ("units_before_slice", body(
        "n: size, x: f32[n, 6]", "a: f32[n, 1, 6] = reshape(x, shape=(n, 1, 6))",
        "b: f32[n, 1, 2] = slice(a, starts=(0, 0, 1), sizes=(n, 1, 2), steps=(1, 1, 3))",
        "c: f32[1, n, 2] = reshape(b, shape=(1, n, 2))",
        "y: f32[n, 1, 2] = transpose(c, perm=(1, 0, 2))"),
     ["reshape", "reshape", "slice", "transpose"]),
    ("units_before_product", body(
        "n: size, x: f32[n, 1, 6], z: f32[1, n, 3]", "w: f32[6, 3] = const()",
        "a: f32[n, 1, 3] = matmul(x, w)", "b: f32[1, n, 3] = reshape(a, shape=(1, n, 3))",
        "y: f32[1, n, 3] = add(b, z)"), ["reshape", "matmul", "add"]),
    ("transpose_behind_reshape", body(
        "n: size, x: f32[n, 2, 3, 5, 4]", "a: f32[n * 6, 5, 4] = reshape(x, shape=(n * 6, 5, 4))",
        "b: f32[n * 6, 4, 5] = transpose(a, perm=(0, 2, 1))",
        "y: f32[n, 6, 4, 5] = reshape(b, shape=(n, 6, 4, 5))"), ["reshape", "transpose"]),
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
    ("expand_behind_broadcast", body(
        "n: size, x: bool[n, 1]", "a: bool[n, 5] = expand(x, shape=(n, 5))",
        "c: f32[()] = const(3)", "d: f32[1, 1] = const(7)", "y: f32[n, 5] = where(a, c, d)"),
     ["where", "expand"]),
    ("expand_behind_broadcast", body(
        "n: size, x: f32[3, 1, 1], z: f32[3, 1, n]", "a: f32[3, 5, n] = expand(x, shape=(3, 5, n))",
        "b: f32[3, 5, n] = expand(z, shape=(3, 5, n))", "y: f32[3, 5, n] = sub(a, b)"),
     ["sub", "expand"]),
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
    ("elements_before_transpose", body(
        "n: size, x: f32[n, 3, 5]", "c: f32[3] = const(1, 2, 3)", "s: f32[()] = const(2)",
        "t: f32[n, 5, 3] = transpose(x, perm=(0, 2, 1))", "a: f32[n, 5, 3] = mul(c, t)",
        "b: f32[n, 5, 3] = add(a, s)", "d: f32[n, 5, 3] = exp(b)",
        "y: f32[n, 3, 5] = transpose(d, perm=(0, 2, 1))"),
     ["mul", "add", "exp", "transpose", "transpose"]),
    ("elements_before_transpose", body(
        "x: f32[2, 3, 5], z: f32[2, 3, 1]", "t: f32[5, 2, 3] = transpose(x, perm=(2, 0, 1))",
        "u: f32[1, 2, 3] = transpose(z, perm=(2, 0, 1))", "c: f32[5, 2, 1] = const()",
        "v: f32[1, 2, 3] = exp(u)", "a: f32[5, 2, 3] = sub(v, t)", "b: f32[5, 2, 3] = mul(a, c)",
        "y: f32[2, 3, 5] = transpose(b, perm=(1, 2, 0))", outputs="y, a"),
     ["exp", "sub", "transpose", "mul", "transpose", "transpose"]),
    ("elements_before_transpose", body(
        "x: f32[2, 3, 5], z: f32[2, 7, 5]", "t: f32[5, 2, 3] = transpose(x, perm=(2, 0, 1))",
        "u: f32[5, 2, 7] = transpose(z, perm=(2, 0, 1))", "c: f32[5, 2, 4] = const()",
        "a: f32[5, 2, 14] = concat(t, c, u, axis=-1)",
        "b: f32[8, 3, 14] = pad(a, before=(1, 0, 0), after=(2, 1, 0), value=7.0)",
        "y: f32[3, 14, 8] = transpose(b, perm=(1, 2, 0))"),
     ["concat", "pad", "transpose", "transpose"]),
    ("elements_before_reshape", body(
        "n: size, m: size, x: f32[n * m, 5]", "w: f32[5, 12] = const()", "c: f32[12] = const()",
        "p: f32[n * m, 12] = matmul(x, w)",
        "q: f32[n, m, 12] = reshape(p, shape=(n, m, 12))", "a: f32[n, m, 12] = add(c, q)",
        "y: f32[n, m, 12] = exp(a)"),
     ["matmul", "add", "exp", "reshape"]),
    ("elements_before_reshape", body(
        "x: f32[6, 5], z: f32[1, 2, 3, 4, 3]", "w: f32[5, 12] = const()",
        "c: f32[3, 1, 1] = const()", "d: f32[4, 3] = const()", "s: f32[1, 1] = const()",
        "p: f32[6, 12] = matmul(x, w)",
        "q: f32[1, 2, 3, 4, 3] = reshape(p, shape=(1, 2, 3, 4, 3))",
        "a: f32[1, 2, 3, 4, 3] = sub(z, q)", "b: f32[1, 2, 3, 4, 3] = mul(a, d)",
        "y: f32[1, 2, 3, 4, 3] = add(b, s)"),
     ["matmul", "reshape", "sub", "mul", "add", "reshape"]),
    ("elements_before_reshape", body(
        "x: f32[6, 5]", "w: f32[5, 12] = const()", "v: f32[5, 24] = const()",
        "u: f32[3, 5] = slice(x, starts=(0, 0), sizes=(3, 5))",
        "p: f32[6, 12] = matmul(x, w)", "q: f32[2, 3, 12] = reshape(p, shape=(2, 3, 12))",
        "r: f32[3, 24] = matmul(u, v)", "s: f32[2, 3, 12] = reshape(r, shape=(2, 3, 12))",
        "a: f32[2, 3, 12] = add(q, s)", "y: f32[2, 3, 12] = exp(a)"),
     ["slice", "matmul", "matmul", "reshape", "add", "exp", "reshape"]),
    ("elements_before_reshape", body(
        "x: f32[2, 3, 4, 5], z: f32[2, 6, 1, 1]", "w: f32[6, 3, 1, 1] = const()",
        "p: f32[2, 6, 4, 5] = conv(x, w)", "q: f32[2, 6, 20] = reshape(p, shape=(2, 6, 20))",
        "u: f32[2, 6, 1] = reshape(z, shape=(2, 6, 1))", "s: f32[6, 1] = const()",
        "c: bool[20] = const(1)", "a: f32[2, 6, 20] = mul(q, u)", "b: f32[2, 6, 20] = prelu(a, s)",
        "y: f32[2, 6, 20] = where(c, b, u)"),
     ["conv", "mul", "prelu", "where", "reshape"]),
    ("expand_behind_reduce", body(
        "n: size, x: f32[2, n, 1]", "a: f32[2, n, 5] = expand(x, shape=(2, n, 5))",
        "y: f32[2, 5] = reduce(a, kind='sum', axes=(1,), keepdims=False)"), ["reduce", "expand"]),
    ("known_comparison", body(
        "n: size, x: f32[n]", "i: i64[n] = range(size=n, start=0, delta=1)",
        "z: i64[()] = const(-1)", "c: bool[n] = greater(i, z)", "y: f32[n] = where(c, x, x)"),
     ["expand", "where"]),
    ("known_comparison", body(
        "n: size, x: f32[n, 3]", "i: i64[n] = range(size=n, start=4, delta=-1)",
        "t: i64[n, 1] = reshape(i, shape=(n, 1))", "z: i64[3] = const(5, 7, 9)",
        "y: bool[n, 3] = less(z, t)"), ["expand"]),
    ("known_comparison", body(
        "x: u8[2, 3]", "z: u8[()] = const(255)", "y: bool[2, 3] = less_equal(x, z)"), ["expand"]),
    ("known_comparison", body(
        "x: u8[2, 3]", "z: u8[()] = const(255)", "y: bool[2, 3] = greater(x, z)"), ["expand"]),
    ("known_comparison", body(
        "x: u8[2, 3]", "z: u8[()] = const(255)", "y: bool[2, 3] = greater_equal(z, x)"),
     ["expand"]),
    ("known_truth_in_logic", body(
        "x: bool[2, 3]", "c: bool[()] = const(True)", "y: bool[2, 3] = logical_and(c, x)"),
     ["expand"]),
    ("known_truth_in_logic", body(
        "n: size, x: bool[n, 1, 3]", "c: bool[1, 1] = const(False)",
        "a: bool[4, 3] = expand(c, shape=(4, 3))", "y: bool[n, 4, 3] = logical_or(x, a)"),
     ["expand"]),
    ("known_truth_in_logic", body(
        "x: bool[2, 3]", "c: bool[2, 1] = const(False, False)",
        "y: bool[2, 3] = logical_and(c, x)"), ["expand"]),
    ("known_truth_in_logic", body(
        "x: bool[2, 3]", "c: bool[3] = const(True, True, True)",
        "y: bool[2, 3] = logical_or(x, c)"), ["expand"]),
    ("known_truth_in_where", body(
        "x: f32[2, 3], z: f32[2, 3]", "c: bool[()] = const(False)",
        "y: f32[2, 3] = where(c, x, z)"), ["expand"]),
    ("known_truth_in_where", body(
        "x: f32[2, 1], z: f32[2, 3]", "c: bool[1] = const(True)", "y: f32[2, 3] = where(c, x, z)"),
     ["expand"]),
    ("expand_behind_reduce", body(
        "x: f32[2, 1, 4]", "a: f32[2, 3, 4] = expand(x, shape=(2, 3, 4))",
        "y: f32[2, 3, 1] = reduce(a, kind='max', axes=(-1,))"), ["reduce", "expand"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "text", "left"), FIRES, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(FIRES)]
)
def test_a_rule_rewrites(rule, text, left):
    assert_rewrites(rule, text, left)


SCALED = {
    "scale_into_conv": (X4, *CONV, "c: f32[4, 1, 1] = const(3, 5, 7, 9)",
                        "y: f32[2, 4, 5, 7] = mul(a, c)"),
    "scale_into_conv_transpose": (
        X4, "w: f32[3, 4, 3, 3] = const()", "a: f32[2, 4, 7, 9] = conv_transpose(x, w)",
        "c: f32[4, 1, 1] = const(3, 5, 7, 9)", "y: f32[2, 4, 7, 9] = mul(a, c)"),
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


def test_whole_weights_are_no_left_operand_of_a_product():
    text = body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 1, 3, 2] = const()",
        "y: f32[2, 1, 11, 8] = conv_transpose(x, w, stride=(2, 2))",
    )  # fmt: skip
    graph = read(text)
    chosen = [r for r in STEP_RULES if r.name == "conv_transpose_into_product"]
    context = PassContext(target=Target(features=ENGINE))
    assert "matmul" in ops(rewrite_graph(graph, chosen, context))
    whole = replace(graph, constants={v: np.rint(a) for v, a in graph.constants.items()})
    assert ops(rewrite_graph(whole, chosen, context)) == ["conv_transpose"]


def test_parts_become_bytes_together_on_a_gpu():
    graph = read(body(BESIDE_INPUTS, *BESIDE))
    assert ops(rewrite_graph(graph, STEP_RULES, ON_GPU))[0] == "concat"


@pytest.mark.parametrize("whole", [False, True])
def test_scales_behind_whole_weights_do_not_keep_a_transposed_convolution(whole):
    text = body(
        "x: f32[2, 3, 5, 4], s: f32[2, 1, 1, 1]", "w: f32[3, 1, 2, 2] = const()",
        "c: f32[2, 1, 6, 5] = conv_transpose(x, w)", "y: f32[2, 1, 6, 5] = mul(c, s)",
    )  # fmt: skip
    graph = read(text)
    if whole:
        graph = replace(graph, constants={v: np.rint(a) for v, a in graph.constants.items()})
    chosen = [r for r in STEP_RULES if r.name == "conv_transpose_into_conv"]
    after = rewrite_graph(graph, chosen, PassContext(target=Target(features=ENGINE)))
    assert ("conv" in ops(after)) is whole


def test_a_gpu_multiplies_bytes_as_they_are():
    text = body("x: u8[3, 32]", "w: i8[32, 16] = const(1)", "y: i32[3, 16] = matmul(x, w)")
    for context, left in ((ON_GPU, ["matmul"]), (CONTEXT, ["cast", "matmul", "cast"])):
        assert ops(rewrite_graph(read(text), STEP_RULES, context)) == left
    wide = "x: u8[3, 32]", "w: i32[32, 16] = const(1)", "a: i32[3, 32] = cast(x, to=i32)"
    graph = read(body(*wide, "y: i32[3, 16] = matmul(a, w)"))
    assert "f32" not in str(rewrite_graph(graph, STEP_RULES, ON_GPU))
    assert "i8" not in str(rewrite_graph(graph, STEP_RULES, CONTEXT)).replace("u8", "")


def test_phases_stay_together_on_a_gpu():
    for name, text, _ in FIRES:
        if name in ("conv_transpose_into_conv", "conv_transpose_into_product", "col2im_by_phases"):
            graph = read(text)
            assert ops(rewrite_graph(graph, STEP_RULES, ON_GPU)) == ops(graph) != []


def test_a_root_has_no_sign():
    text = "x: f32[6]", "c: f32[()] = const(0.5)", "y: f32[6] = pow(x, c)"
    before = read(body(*text))
    after = rewrite_graph(before, STEP_RULES, CONTEXT)
    assert "pow" not in ops(after)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0])
    with np.errstate(invalid="ignore"):
        (found,) = evaluate(after, {"x": x}).values()
    np.testing.assert_array_equal(found, [0, 0, np.inf, np.inf, np.nan, np.nan])
    assert not np.signbit(found[:4]).any()


def test_rules_that_do_not_end_are_an_error():
    graph = read(elementwise("y: = neg(x)"))
    forever = Rule("forever", Pattern(Neg, ("x",)), lambda match: match.call(Neg(), match["x"]))
    with pytest.raises(InternalError, match="forever"):
        rewrite_graph(graph, [forever], CONTEXT)


def test_every_rule_has_a_case_that_fires():
    tested = {r for r, _, _ in FIRES} | {"drop_no_op"}
    tested |= {"branches_into_conv", "parts_into_gelu", "parts_into_layer_norm"}
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
