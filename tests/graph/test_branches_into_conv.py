"""Convolutions of one image that are added up: which become one, and which stay apart."""

from __future__ import annotations

import pytest

from dlc.core.target import Target
from dlc.graph.half import half_of
from dlc.graph.pass_ import PassContext
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules.branches_into_conv import branches_into_conv
from tests.graph.pass_cases import ENGINE, read, rounded
from tests.graph.rule_cases import assert_refuses, assert_rewrites, body

RULE = "branches_into_conv"

X = "x: f32[2, 4, 5, 7]"
WIDE = ("v: f32[4, 4, 3, 3] = const()", "a: f32[2, 4, 5, 7] = conv(x, v, pads=(1, 1, 1, 1))")
PIXEL = ("w: f32[4, 4, 1, 1] = const()", "b: f32[2, 4, 5, 7] = conv(x, w)")
DEPTHWISE = (
    "v: f32[4, 1, 3, 3] = const()",
    "a: f32[2, 4, 5, 7] = conv(x, v, pads=(1, 1, 1, 1), groups=4)",
)
ALONE = ("w: f32[4, 1, 1, 1] = const()", "b: f32[2, 4, 5, 7] = conv(x, w, groups=4)")
SCALED = ("c: f32[4, 1, 1] = const()", "b: f32[2, 4, 5, 7] = mul(c, x)")
SUM = "y: f32[2, 4, 5, 7] = add(a, b)"


def biased(value: str) -> tuple[str, str]:
    """A constant that is added to a branch."""
    return (
        f"{value}_bias: f32[4, 1, 1] = const()",
        f"{value}_shifted: f32[2, 4, 5, 7] = add({value}, {value}_bias)",
    )


def pair(first: str, second: str, result: str = "2, 4, 3, 4", x: str = X) -> str:
    """Two convolutions of 4 channels: the size of the kernel, and the attributes, of each."""
    lines = []
    for name, text in (("a", first), ("b", second)):
        kernel, attributes = text.split(";")
        lines += [f"k{name}: f32[4, {kernel}] = const()"]
        lines += [f"{name}: f32[{result}] = conv(x, k{name}{attributes})"]
    return body(x, *lines, f"y: f32[{result}] = add(a, b)")


BRANCHES = {
    "two kernels": (body(X, *WIDE, *PIXEL, SUM), ["conv"]),
    "the smaller one first": (body(X, *WIDE, *PIXEL, SUM.replace("a, b", "b, a")), ["conv"]),
    "one kernel twice": (body(X, *WIDE, "y: f32[2, 4, 5, 7] = add(a, a)"), ["conv"]),
    "constants": (
        body(X, *WIDE, *PIXEL, *biased("a"), *biased("b"),
             SUM.replace("a, b", "a_shifted, b_shifted")),
        ["conv", "add", "add"],
    ),
    "a factor": (
        body(X, *DEPTHWISE, *SCALED, *biased("b"), SUM.replace("a, b", "b_shifted, a")),
        ["conv", "add"],
    ),
    "the image": (body(X, *DEPTHWISE, SUM.replace("a, b", "x, a")), ["conv"]),
    "three": (
        body(X, *DEPTHWISE, *ALONE, SUM.replace("y", "s"),
             *(line.replace("b:", "d:") for line in SCALED), SUM.replace("a, b", "s, d")),
        ["conv"],
    ),
    "strides": (pair(
        "4, 3, 3;, stride=(2, 2), pads=(1, 1, 1, 1)", "4, 1, 1;, stride=(2, 2)"), ["conv"]),
    "pads of one side": (pair(
        "4, 3, 2;, stride=(2, 2), pads=(1, 0, 1, 1)", "4, 1, 1;, stride=(2, 2)"), ["conv"]),
    "a kernel within a dilated one": (pair(
        "4, 3, 3;, pads=(2, 2, 2, 2), dilation=(2, 2)",
        "4, 1, 3;, pads=(0, 2, 0, 2), dilation=(1, 2)",
        "2, 4, 5, 7"), ["conv"]),
    "open sizes": (pair(
        "4, 3, 3;, pads=(1, 1, 1, 1)", "4, 1, 1;", "n, 4, h, w",
        x="n: size, h: size, w: size, x: f32[n, 4, h, w]"), ["conv"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "left"), BRANCHES.values(), ids=BRANCHES)
def test_branches_become_one(text, left):
    assert_rewrites(RULE, text, left)


ANOTHER = "reads what the other branch reads"
APART = "one kernel does not hold the other"
SEPARATE_BRANCHES = (
    (ANOTHER, body(X + ", z: f32[2, 4, 5, 7]", *WIDE, PIXEL[0], PIXEL[1].replace("(x", "(z"), SUM)),
    (ANOTHER, body(X, *WIDE, *PIXEL, SUM, outputs="y, a, b")),
    (ANOTHER, body(X + ", v: f32[4, 4, 3, 3]", *WIDE[1:], "y: f32[2, 4, 5, 7] = add(a, x)")),
    ("not of float32", body(X, *WIDE, *PIXEL, SUM).replace("f32", "f16")),
    ("a branch repeats", body(
        "x: f32[2, 4, 1, 1]", "v: f32[4, 4, 2, 2] = const()",
        "a: f32[2, 4, 2, 2] = conv(x, v, pads=(1, 1, 1, 1))", *PIXEL[:1],
        "b: f32[2, 4, 1, 1] = conv(x, w)", "y: f32[2, 4, 2, 2] = add(a, b)")),
    ("round the image more than once", body(X, *WIDE, *SCALED, SUM)),
    ("round the image more than once", body(X, *WIDE, SUM.replace("b", "x"))),
    ("differs within a channel", body(
        X, *DEPTHWISE, "c: f32[7] = const()", "b: f32[2, 4, 5, 7] = mul(x, c)", SUM)),
    ("not finite", body(
        X, *WIDE, PIXEL[0].replace("const()", "const(" + "inf, " * 15 + "inf)"), PIXEL[1], SUM)),
    ("not finite", body(
        X.replace("f32", "F32"), *(
            f"{v}: F32[4, 1, 1, 1] = const({', '.join(['3e38'] * 4)})" for v in "vw"),
        *(f"{r}: F32[2, 4, 5, 7] = conv(x, {v}, groups=4)" for r, v in ("av", "bw")),
        SUM.replace("f32", "F32"))),
    (APART, pair("4, 3, 1;, pads=(1, 0, 1, 0)", "4, 1, 3;, pads=(0, 1, 0, 1)", "2, 4, 5, 7")),
    (APART, pair("4, 3, 3;, pads=(2, 2, 2, 2), dilation=(2, 2)",
                 "4, 3, 3;, pads=(1, 1, 1, 1)", "2, 4, 5, 7")),
    (APART, pair("4, 2, 2;, pads=(1, 1, 1, 1), dilation=(2, 2)", "4, 1, 1;", "2, 4, 5, 7")),
    (APART, pair("4, 1, 1;, stride=(2, 2)", "4, 3, 3;", "2, 4, 3, 2").replace("5, 7]", "5, 4]")),
    (APART, pair("4, 3, 3;, pads=(1, 1, 1, 1)", "2, 1, 1;, groups=2", "2, 4, 5, 7")),
    (APART, body("x: f32[2, 4, 5, 5]", "v: f32[4, 1, 3, 3] = const()",
                 "a: f32[2, 4, 5, 5] = conv(x, v, pads=(3, 3, 3, 3), stride=(2, 2), groups=4)",
                 "y: f32[2, 4, 5, 5] = add(a, x)")),
)  # fmt: skip


@pytest.mark.parametrize(("reason", "text"), SEPARATE_BRANCHES)
def test_branches_stay_apart(reason, text):
    assert_refuses(RULE, reason, text)


@pytest.mark.parametrize(
    ("branches", "context", "reason"),
    [
        ("the image", PassContext(precision="medium"), "round the image"),
        ("a factor", PassContext(precision="high"), "round the image"),
        ("the image", PassContext(half=half_of("bf16")), "round the image"),
        ("two kernels", PassContext(precision="medium"), ""),
        ("two kernels", PassContext(Target(features=ENGINE)), "faster"),
        ("the image", PassContext(Target(features=ENGINE)), "faster"),
    ],
)
def test_branches_stay_apart_where_one_would_be_rounded(branches, context, reason):
    graph, refusals = read(BRANCHES[branches][0]), []
    if reason == "faster":
        graph = rounded(graph)
    after = rewrite_graph(graph, [branches_into_conv], context, lambda *why: refusals.append(why))
    assert (after is graph) is bool(reason)
    assert any(reason in why for *_, why in refusals) is bool(reason)
