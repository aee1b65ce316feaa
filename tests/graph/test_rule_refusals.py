"""Rules that leave a graph as it is say why."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dlc.graph.pass_ import PassContext
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules import PATTERN_RULES, STEP_RULES
from tests.graph.pass_cases import CONTEXT, read
from tests.graph.rule_cases import (
    BESIDE,
    BESIDE_INPUTS,
    CHOSEN,
    CONV,
    LINEAR,
    MATMUL,
    MATRICES,
    NORM,
    X4,
    assert_refuses,
    body,
    elementwise,
)

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
    ("gather_nd_into_gather", "several numbers", body(
        "x: f32[3, 5], i: i64[4, 2]", "y: f32[4] = gather_nd(x, i)")),
    ("gather_nd_into_gather", "part of its own", body(
        "x: f32[4, 3, 5], i: i64[4, 1]", "y: f32[4, 5] = gather_nd(x, i, batch_dims=1)")),
    ("cast_before_choice", "no matrices", body(
        "i: i64[4]", "w: f16[3, 5] = const()", "g: f16[4, 5] = gather(w, i, axis=0)",
        "y: F32[4, 5] = cast(g, to=F32)")),
    ("cast_before_choice", "no matrices", body(
        "i: i64[4]", "w: f16[3, 7, 5] = const()", "g: f16[3, 4, 5] = gather(w, i, axis=1)",
        "y: F32[3, 4, 5] = cast(g, to=F32)")),
    *(("cast_before_choice", "not from 16-bit", body(
        "i: i64[4]", f"w: {one}[3, 7, 5] = const()", f"g: {one}[4, 7, 5] = gather(w, i, axis=0)",
        f"y: {other}[4, 7, 5] = cast(g, to={other})"))
      for one, other in (("f16", "bf16"), ("F32", "f16"), ("u8", "F32"))),
    ("chosen_to_the_right", "no choice of matrices", body(
        "x: f32[3, 5, 1], i: i64[2]", "w: f32[3, 7, 5] = const()",
        "g: f32[3, 2, 5] = gather(w, i, axis=1)", "y: f32[3, 2, 1] = matmul(g, x)")),
    ("chosen_to_the_right", "no choice of matrices", body(
        "x: f32[5, 1], i: i64[2]", "w: f32[3, 5] = const()",
        "g: f32[2, 5] = gather(w, i, axis=0)", "y: f32[2, 1] = matmul(g, x)")),
    ("chosen_to_the_right", "not one column", body(
        CHOSEN.replace("5, 1]", "5, 2]"), *MATRICES, "y: f32[4, 7, 2] = matmul(g, x)")),
    ("chosen_to_the_right", "not one column", body(
        CHOSEN.replace("4, 5, 1]", "5, 1]"), *MATRICES, "y: f32[4, 7, 1] = matmul(g, x)")),
    *(("transpose_before_choice", "is moved itself", body(
        CHOSEN, *MATRICES, f"y: f32[{shape}] = transpose(g, perm=({perm}))"))
      for shape, perm in (("7, 4, 5", "1, 0, 2"), ("5, 7, 4", "2, 1, 0"))),
    ("transpose_before_choice", "is moved itself", body(
        "i: i64[2]", "w: f32[3, 7, 5] = const()", "g: f32[3, 2, 5] = gather(w, i, axis=1)",
        "y: f32[3, 5, 2] = transpose(g, perm=(0, 2, 1))")),
    ("div_into_quotient", "no f32", body(
        "x: f64[3]", "c: f64[()] = const(3)", "y: f64[3] = div(x, c)")),
    *(("div_into_quotient", reason, body(
        "x: f64[3]", "a: F32[3] = cast(x, to=F32)", f"c: F32[3] = const({values})",
        "y: F32[3] = div(a, c)"))
      for reason, values in (("zero or not finite", "3, 5, inf"), ("too small", "3, 5, 1e-30"))),
    ("bytes_before_concat", "no floats", body(
        "x: i32[2, 3], z: i32[2, 2]", "a: i32[2, 5] = concat(x, z, axis=1)",
        "y: u8[2, 5] = cast(a, to=u8)")),
    ("bytes_before_concat", "too many", body(
        "x: f32[2, 3]", f"a: f32[2, 51] = concat({', '.join('x' * 17)}, axis=1)",
        "y: u8[2, 51] = cast(a, to=u8)")),
    ("bytes_before_concat", "no bytes", body(BESIDE_INPUTS, *BESIDE).replace("u8", "i32")),
    ("bytes_before_concat", "somebody else", body(BESIDE_INPUTS, *BESIDE, outputs="b, y")),
    ("bytes_before_concat", "somebody else", body(BESIDE_INPUTS, *BESIDE, outputs="a, y")),
    *(("bytes_before_concat", "no parts", body(BESIDE_INPUTS, *BESIDE).replace(*change))
      for change in (
          ("c: f32[()] = const(3)", "c: f32[5] = const(1, 2, 3, 4, 5)"),
          ("mul(c, a)", "mul(a, a)"),
          ("round(b)", "softmax(b, axis=0)"),
          ("r: f32[2, 5] = round(b)", "\n    ".join(  # too many operators to follow
              f"{to}: f32[2, 5] = abs({of})" for of, to in pairwise("bdefghijr"))),
      )),
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
        "x: f32[3, 5]", *MATMUL, "c: f32[2, 1, 1] = const()", "y: f32[2, 3, 7] = mul(a, c)")),
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
    ("pow_into_products", "no exponent", elementwise("c: = const(0.25)", "y: = pow(x, c)")),
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
    *(
        (name, why, body(x, w, f"y: f32[2, {size}] = conv_transpose(x, w, {how})"))
        for name in ("conv_transpose_into_conv", "conv_transpose_into_product")
        for why, x, w, size, how in (
            ("no products", "x: f32[2, 3, 5, 4]", "w: f32[3, 0, 2, 2] = const()", "0, 10, 8",
             "stride=(2, 2)"),
            ("fill vectors", "x: f32[2, 3, 5, 4]", "w: f32[3, 7, 2, 2] = const()", "7, 10, 8",
             "stride=(2, 2)"),
            ("in groups", "x: f32[2, 4, 5, 4]", "w: f32[4, 1, 2, 2] = const()", "2, 10, 8",
             "stride=(2, 2), groups=2"),
        )
    ),
    ("conv_transpose_into_conv", "fewer taps", body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 1, 2, 2] = const()",
        "y: f32[2, 1, 10, 9] = conv_transpose(x, w, stride=(2, 2), dilation=(1, 2))")),
    ("conv_transpose_into_conv", "fewer taps", body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 1, 2, 3] = const()",
        "y: f32[2, 1, 10, 9] = conv_transpose(x, w, stride=(2, 2))")),
    ("conv_transpose_into_conv", "a vector holds", body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 1, 2, 2] = const()",
        "y: f32[2, 1, 10, 8] = conv_transpose(x, w, stride=(2, 2))")),
    ("conv_transpose_into_product", "room for patches", body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 1, 3, 2] = const()",
        "y: f32[2, 1, 10, 5] = conv_transpose(x, w, stride=(2, 1), dilation=(1, 2), "
        "output_padding=(0, 1), pads=(0, 1, 1, 1))")),
    ("conv_transpose_into_product", "as many taps", body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 1, 2, 2] = const()",
        "y: f32[2, 1, 10, 8] = conv_transpose(x, w, stride=(2, 2))")),
    ("conv_transpose_into_product", "it is a convolution", body(
        "x: f32[2, 3, 5, 4]", "w: f32[3, 1, 2, 2] = const()",
        "y: f32[2, 1, 6, 5] = conv_transpose(x, w)")),
    ("conv_transpose_into_product", "rounded before", body(
        "x: f16[2, 3, 5, 4]", "w: f16[3, 1, 3, 2] = const()",
        "y: f16[2, 1, 11, 8] = conv_transpose(x, w, stride=(2, 2))")),
    ("conv_transpose_into_conv", "may be scaled", body(
        "x: f32[2, 3, 5, 4], s: f32[2, 1, 1, 1]", "w: f32[3, 1, 2, 2] = const()",
        "c: f32[2, 1, 6, 5] = conv_transpose(x, w)", "y: f32[2, 1, 6, 5] = mul(c, s)")),
    ("conv_transpose_into_product", "may be scaled", body(
        "x: f32[2, 3, 5, 4], s: f32[2, 1, 1, 1]", "w: f32[3, 1, 3, 2] = const()",
        "c: f32[2, 1, 11, 8] = conv_transpose(x, w, stride=(2, 2))",
        "y: f32[2, 1, 11, 8] = mul(c, s)")),
    ("col2im_by_phases", "one phase", body(
        "x: f32[2, 3, 4]", "y: f32[2, 1, 6] = col2im(x, image=(6,), kernel=(3,), stride=(1,), "
        "pads=(0, 0), dilation=(1,))")),
    ("col2im_by_phases", "are apart", body(
        "x: f32[2, 3, 4]", "y: f32[2, 1, 11] = col2im(x, image=(11,), kernel=(3,), stride=(2,), "
        "pads=(0, 0), dilation=(2,))")),
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
    ("transpose_behind_reshape", "more than the last two", body(
        "x: f32[6, 5, 4]", "a: f32[2, 3, 5, 4] = reshape(x, shape=(2, 3, 5, 4))",
        "b: f32[3, 2, 4, 5] = transpose(a, perm=(1, 0, 3, 2))",
        "y: f32[6, 4, 5] = reshape(b, shape=(6, 4, 5))")),
    ("transpose_behind_reshape", "takes matrices apart", body(
        "x: f32[2, 3, 5, 4]", "a: f32[6, 5, 4] = reshape(x, shape=(6, 5, 4))",
        "b: f32[6, 4, 5] = transpose(a, perm=(0, 2, 1))",
        "y: f32[6, 20] = reshape(b, shape=(6, 20))")),
    ("one_before_transpose", "more than one element", body(
        "x: f32[4, 3]", "a: f32[3, 4] = transpose(x, perm=(1, 0))",
        "y: f32[3, 2] = slice(a, starts=(0, 1), sizes=(3, 2))")),
    ("one_before_transpose", "no reshape follows", body(
        "x: f32[4, 3]", "a: f32[3, 4] = transpose(x, perm=(1, 0))",
        "b: f32[1, 4] = slice(a, starts=(1, 0), sizes=(1, 4))", "y: f32[1, 4] = relu(b)")),
    ("one_before_reshape", "more than one element", body(
        "x: f32[3, 4]", "a: f32[1, 3, 4] = reshape(x, shape=(1, 3, 4))",
        "y: f32[1, 2, 4] = slice(a, starts=(0, 1, 0), sizes=(1, 2, 4))")),
    ("one_before_reshape", "no reshape follows", body(
        "x: f32[3, 4]", "a: f32[1, 3, 4] = reshape(x, shape=(1, 3, 4))",
        "b: f32[1, 1, 4] = slice(a, starts=(0, 1, 0), sizes=(1, 1, 4))",
        "y: f32[1, 1, 4] = relu(b)")),
    ("one_before_reshape", "more than axes of one", body(
        "x: f32[6, 4]", "a: f32[3, 2, 4] = reshape(x, shape=(3, 2, 4))",
        "b: f32[1, 2, 4] = slice(a, starts=(1, 0, 0), sizes=(1, 2, 4))",
        "y: f32[8] = reshape(b, shape=(8,))")),
    ("one_before_reshape", "nothing of an axis of one", body(
        "x: f32[3, 4]", "a: f32[1, 3, 4] = reshape(x, shape=(1, 3, 4))",
        "b: f32[0, 1, 4] = slice(a, starts=(0, 1, 0), sizes=(0, 1, 4))",
        "y: f32[0, 4] = reshape(b, shape=(0, 4))")),
    ("one_before_reshape", "is the last one", body(
        "x: f32[3, 4]", "a: f32[3, 4, 1] = reshape(x, shape=(3, 4, 1))",
        "b: f32[3, 1, 1] = slice(a, starts=(0, 2, 0), sizes=(3, 1, 1))",
        "y: f32[3] = reshape(b, shape=(3,))")),
    ("one_behind_reshape", "one of several last axes", body(
        "x: f32[4, 3, 8]", "a: f32[4, 2, 8] = slice(x, starts=(0, 1, 0), sizes=(4, 2, 8))",
        "y: f32[4, 4, 4] = reshape(a, shape=(4, 4, 4))")),
    ("one_behind_reshape", "one of several last axes", body(
        "x: f32[4, 3, 8]", "a: f32[2, 1, 8] = slice(x, starts=(0, 1, 0), sizes=(2, 1, 8))",
        "y: f32[2, 2, 4] = reshape(a, shape=(2, 2, 4))")),
    ("one_behind_reshape", "what stands before", body(
        "x: f32[4, 3, 8]", "a: f32[4, 1, 8] = slice(x, starts=(0, 1, 0), sizes=(4, 1, 8))",
        "y: f32[2, 2, 2, 4] = reshape(a, shape=(2, 2, 2, 4))")),
    ("one_behind_reshape", "of unknown size", body(
        "n: size, x: f32[4, n, 8]",
        "a: f32[4, 1, 8] = slice(x, starts=(0, n - 1, 0), sizes=(4, 1, 8))",
        "y: f32[4, 2, 4] = reshape(a, shape=(4, 2, 4))")),
    ("one_behind_reshape", "is not split", body(
        "x: f32[4, 3, 8]", "a: f32[4, 1, 8] = slice(x, starts=(0, 1, 0), sizes=(4, 1, 8))",
        "y: f32[1, 4, 1, 8] = reshape(a, shape=(1, 4, 1, 8))")),
    ("units_before_transpose", "more than axes of one", body(
        "x: f32[24]", "a: f32[4, 6] = reshape(x, shape=(4, 6))",
        "b: f32[6, 4] = transpose(a, perm=(1, 0))",
        "y: f32[3, 2, 4] = reshape(b, shape=(3, 2, 4))")),
    ("units_before_transpose", "not a product alone", body(
        "x: f32[24], z: f32[4, 4]", "a: f32[4, 6] = reshape(x, shape=(4, 6))",
        "b: f32[6, 4] = transpose(a, perm=(1, 0))", "c: f32[1, 6, 4] = reshape(b, shape=(1, 6, 4))",
        "d: f32[1, 6, 4] = matmul(c, z)", "y: f32[1, 6, 4] = add(c, d)")),
    ("units_before_slice", "no transpose reads it", body(
        "x: f32[24]", "a: f32[4, 6] = reshape(x, shape=(4, 6))",
        "b: f32[2, 6] = slice(a, starts=(2, 0), sizes=(2, 6))",
        "c: f32[2, 1, 6] = reshape(b, shape=(2, 1, 6))", "y: f32[2, 1, 6] = relu(c)")),
    ("units_before_slice", "goes before the reshape", body(
        "x: f32[24]", "a: f32[4, 6] = reshape(x, shape=(4, 6))",
        "b: f32[1, 6] = slice(a, starts=(2, 0), sizes=(1, 6))",
        "y: f32[6] = reshape(b, shape=(6,))")),
    ("units_before_slice", "more than axes of one", body(
        "x: f32[24]", "a: f32[4, 6] = reshape(x, shape=(4, 6))",
        "b: f32[2, 6] = slice(a, starts=(2, 0), sizes=(2, 6))",
        "y: f32[12] = reshape(b, shape=(12,))")),
    ("units_before_product", "not one of rows", body(
        "x: f32[1, 4, 6], z: f32[1, 6, 3]", "a: f32[1, 4, 3] = matmul(x, z)",
        "y: f32[4, 3] = reshape(a, shape=(4, 3))")),
    ("units_before_product", "more than axes of one", body(
        "x: f32[4, 6], z: f32[6, 3]", "a: f32[4, 3] = matmul(x, z)",
        "y: f32[2, 2, 3] = reshape(a, shape=(2, 2, 3))")),
    ("units_before_product", "changes the columns", body(
        "x: f32[0, 6], z: f32[6, 4]", "a: f32[0, 4] = matmul(x, z)",
        "y: f32[0, 2] = reshape(a, shape=(0, 2))")),
    ("scale_into_left", "not one number", body(
        "x: f32[2, 6], z: f32[6, 3]", "d: f32[3] = const(1, 2, 3)",
        "b: f32[6, 3] = mul(z, d)", "y: f32[2, 3] = matmul(x, b)")),
    ("scale_into_left", "adds dimensions", body(
        "x: f32[2, 6], z: f32[6, 3]", "d: f32[1, 1, 1] = const(3)",
        "b: f32[1, 6, 3] = mul(z, d)", "y: f32[1, 2, 3] = matmul(x, b)")),
    ("scale_into_left", "integer products", body(
        "x: i32[2, 6], z: i32[6, 3]", "d: i32[()] = const(2)",
        "b: i32[6, 3] = mul(z, d)", "y: i32[2, 3] = matmul(x, b)")),
    ("scale_into_left", "is larger", body(
        "x: f32[4, 6], z: f32[6, 3]", "d: f32[()] = const(2)",
        "b: f32[6, 3] = mul(z, d)", "y: f32[4, 3] = matmul(x, b)")),
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
    ("expand_behind_broadcast", "elements are as many", body(
        "x: f32[3, 1], z: f32[3, 5]", "a: f32[3, 5] = expand(x, shape=(3, 5))",
        "y: f32[3, 5] = add(a, z)")),
    ("expand_behind_broadcast", "more is taken for granted", body(
        "k: size, x: f32[min(k, 1), 1], z: f32[min(k, 3), 1]",
        "a: f32[k, 5] = expand(x, shape=(k, 5))",
        "y: f32[k, 5] = add(a, z)")),
    ("known_comparison", "may be no whole number", body(
        "x: f32[3]", "z: f32[()] = const(0)", "y: bool[3] = less(x, z)")),
    ("known_comparison", "some numbers may differ", body(
        "x: u8[3]", "z: u8[()] = const(255)", "y: bool[3] = less(x, z)")),
    ("known_comparison", "some numbers may differ", body(
        "n: size, x: f32[n]", "i: i64[n] = range(size=n, start=0, delta=1)",
        "z: i64[()] = const(1)", "y: bool[n] = greater_equal(i, z)")),
    ("known_comparison", "some numbers may differ", body(
        "x: u8[3]", "z: u8[()] = const(1)", "y: bool[3] = less_equal(x, z)")),
    ("known_truth_in_logic", "neither operand is the same", body(
        "x: bool[3]", "c: bool[3] = const(True, False, True)", "y: bool[3] = logical_and(x, c)")),
    ("known_comparison", "would not be checked", body(
        "m: size, n: size, x: u8[min(m, 1)], z: u8[n]", "c: i32[n] = cast(z, to=i32)",
        "d: i32[()] = const(-1)", "a: i32[min(m, 1)] = cast(x, to=i32)",
        "e: i32[min(m, 1)] = minimum(a, d)", "y: bool[n] = greater(c, e)")),
    ("known_truth_in_logic", "would not be checked", body(
        "m: size, n: size, x: bool[min(m, 1)]", "c: bool[()] = const(True)",
        "a: bool[n] = expand(c, shape=(n,))", "y: bool[n] = logical_and(a, x)")),
    ("known_truth_in_where", "would not be checked", body(
        "m: size, n: size, x: f32[min(m, 1)], z: f32[n]", "c: bool[()] = const(True)",
        "y: f32[n] = where(c, z, x)")),
    ("known_truth_in_where", "the condition is not the same", body(
        "x: f32[3], z: f32[3]", "c: bool[3] = const(True, False, True)",
        "y: f32[3] = where(c, x, z)")),
    ("elements_before_transpose", "no operand is transposed", body(
        "x: f32[3, 5]", "a: f32[3, 5] = exp(x)", "y: f32[5, 3] = transpose(a, perm=(1, 0))")),
    ("elements_before_transpose", "an operand is transposed otherwise", body(
        "x: f32[2, 3, 5], z: f32[5, 2, 3]", "t: f32[3, 5, 2] = transpose(x, perm=(1, 2, 0))",
        "u: f32[3, 5, 2] = transpose(z, perm=(2, 0, 1))", "a: f32[3, 5, 2] = add(t, u)",
        "y: f32[2, 3, 5] = transpose(a, perm=(2, 0, 1))")),
    ("elements_before_transpose", "or not at all", body(
        "x: f32[3, 5], z: f32[5, 3]", "t: f32[5, 3] = transpose(x, perm=(1, 0))",
        "a: f32[5, 3] = add(t, z)", "y: f32[3, 5] = transpose(a, perm=(1, 0))")),
    ("elements_before_transpose", "or not at all", body(
        "x: f32[3, 5]", "t: f32[5, 3] = transpose(x, perm=(1, 0))",
        "c: f32[2, 1, 1] = const()", "a: f32[2, 5, 3] = add(t, c)",
        "y: f32[2, 3, 5] = transpose(a, perm=(0, 2, 1))")),
    ("elements_before_transpose", "nobody turns the result back", body(
        "x: f32[2, 3, 5], z: f32[3, 5, 2]", "t: f32[3, 5, 2] = transpose(x, perm=(1, 2, 0))",
        "a: f32[3, 5, 2] = exp(t)", "b: f32[3, 5, 2] = add(a, z)",
        "y: f32[2, 3, 5] = transpose(b, perm=(2, 0, 1))",
        "w: f32[5, 2, 3] = transpose(a, perm=(1, 2, 0))", outputs="y, w")),
    ("elements_before_reshape", "no operand is reshaped", body(
        "x: f32[6, 5]", *LINEAR, "y: f32[6, 12] = exp(p)")),
    ("elements_before_reshape", "others read it, too", body(
        "x: f32[6, 5]", *LINEAR, "q: f32[2, 3, 12] = reshape(p, shape=(2, 3, 12))",
        "m: f32[2, 3, 1] = reduce(q, kind='mean', axes=(2,))", "y: f32[2, 3, 12] = sub(q, m)")),
    ("elements_before_reshape", "others read it, too", body(
        "x: f32[6, 5]", *LINEAR, "q: f32[2, 3, 12] = reshape(p, shape=(2, 3, 12))",
        "y: f32[2, 3, 12] = exp(q)", outputs="y, q")),
    ("elements_before_reshape", "made by one, and is not reshaped", body(
        "x: f32[6, 5]", *LINEAR, "u: f32[2, 3, 5] = reshape(x, shape=(2, 3, 5))",
        "r: f32[2, 3, 12] = matmul(u, w)", "q: f32[2, 3, 12] = reshape(p, shape=(2, 3, 12))",
        "y: f32[2, 3, 12] = add(r, q)")),
    ("elements_before_reshape", "the shape that a constant would have", body(
        "a: size, b: size, x: f32[a, b, 5]", "w: f32[5, 12] = const()", "c: f32[72] = const()",
        "p: f32[a, b, 12] = matmul(x, w)", "q: f32[6, 12] = reshape(p, shape=(6, 12))",
        "r: f32[6, 12] = reshape(c, shape=(6, 12))", "y: f32[6, 12] = mul(q, r)")),
    ("elements_before_reshape", "the shape that a constant would have", body(
        "a: size, b: size, x: f32[a, b, 5]", "w: f32[5, 12] = const()", "c: f32[6, 12] = const()",
        "p: f32[a, b, 12] = matmul(x, w)", "q: f32[6, 12] = reshape(p, shape=(6, 12))",
        "y: f32[6, 12] = mul(q, c)")),
    ("elements_before_reshape", "makes it larger", body(
        "x: f32[6, 5]", *LINEAR, "c: f32[3, 1, 1] = const()",
        "q: f32[12, 6] = reshape(p, shape=(12, 6))", "y: f32[3, 12, 6] = add(q, c)")),
    ("elements_before_reshape", "not made by a product with weights", body(
        "x: f32[6, 5], w: f32[5, 12]", "p: f32[6, 12] = matmul(x, w)",
        "q: f32[2, 3, 12] = reshape(p, shape=(2, 3, 12))", "y: f32[2, 3, 12] = exp(q)")),
    ("elements_before_reshape", "not made by a product with weights", body(
        "x: f32[6, 12]", "a: f32[6, 12] = exp(x)",
        "q: f32[2, 3, 12] = reshape(a, shape=(2, 3, 12))", "y: f32[2, 3, 12] = exp(q)")),
    ("elements_before_reshape", "repeats along a part", body(
        "x: f32[6, 5]", *LINEAR, "c: f32[3, 1] = const()",
        "q: f32[2, 3, 12] = reshape(p, shape=(2, 3, 12))", "y: f32[2, 3, 12] = add(q, c)")),
    ("elements_before_reshape", "repeats along a part", body(
        "x: f32[6, 5]", *LINEAR, "c: f32[4, 1] = const()",
        "q: f32[6, 4, 3] = reshape(p, shape=(6, 4, 3))", "y: f32[6, 4, 3] = add(q, c)")),
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


def test_a_value_that_others_read_is_not_matched():
    text = elementwise("s: = sigmoid(x)", "y: = mul(s, x)", outputs="y, s")
    graph = read(text)
    assert rewrite_graph(graph, PATTERN_RULES, CONTEXT) is graph


def test_without_a_fused_multiply_add_a_division_stays():
    text = "x: f32[3]", "c: f32[()] = const(3)", "y: f32[3] = div(x, c)"
    graph, refusals = read(body(*text)), []
    rewrite_graph(graph, STEP_RULES, PassContext(), lambda *why: refusals.append(why[::2]))
    assert ("div_into_quotient", "the target has no fused multiply-add") in refusals
