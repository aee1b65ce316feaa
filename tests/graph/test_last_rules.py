"""The last rules, which let operators change places, keep the results and refuse what they must."""

from __future__ import annotations

import pytest

from dlc.core.target import Target
from dlc.graph.pass_ import PassContext
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules import LAST_RULES
from tests.graph.pass_cases import CONTEXT, ENGINE, read
from tests.graph.rule_cases import ON_GPU, assert_refuses, assert_rewrites, body, ops

POOLED = (
    "x: f32[2, 40, 4, 6]", "w: f32[20, 40, 1, 1] = const()", "a: f32[2, 20, 4, 6] = conv(x, w)",
    "y: f32[2, 20, 2, 3] = average_pool(a, kernel=(2, 2), stride=(2, 2))",
)  # fmt: skip
POOLED_BIASED = (
    *POOLED[:3], "b: f32[20, 1, 1] = const()", "c: f32[2, 20, 4, 6] = add(b, a)",
    POOLED[3].replace("(a,", "(c,"),
)  # fmt: skip
RESIZED_ALONE = (
    "x: f32[2, 40, 2, 3]",
    "a: f32[2, 40, 4, 6] = resize(x, sizes=(2, 40, 4, 6), mode='linear')",
    "w: f32[6, 40, 1, 1] = const()", "y: f32[2, 6, 4, 6] = conv(a, w)",
)  # fmt: skip
RESIZED = (
    "x: f32[2, 40, 2, 3], z: f32[2, 5, 4, 6], c: f32[2, 20, 2, 2]",
    "a: f32[2, 40, 4, 6] = resize(x, sizes=(2, 40, 4, 6), mode='nearest')",
    "b: f32[2, 20, 4, 6] = resize(c, sizes=(2, 20, 4, 6), mode='nearest')",
    "s: f32[2, 65, 4, 6] = concat(a, z, b, axis=1)", "w: f32[6, 65, 1, 1] = const()",
    "y: f32[2, 6, 4, 6] = conv(s, w)",
)  # fmt: skip
FIRES = [
    ("pool_before_conv", body(*POOLED), ["average_pool", "conv"]),
    ("pool_before_conv", body(*POOLED).replace("stride=(2, 2)", "stride=(2, 2), pads=(1, 0, 0, 1), "
                                               "count_include_pad=True"), ["average_pool", "conv"]),
    ("pool_before_conv", body(*POOLED_BIASED), ["average_pool", "conv", "add"]),
    ("pool_before_conv", body(*POOLED_BIASED).replace(
        "stride=(2, 2)", "stride=(2, 2), pads=(1, 0, 0, 1), ceil_mode=True").replace(
            "2, 20, 2, 3]", "2, 20, 3, 3]"), ["average_pool", "conv", "add"]),
    ("conv_before_resize", body(*RESIZED_ALONE), ["conv", "resize"]),
    ("conv_before_resize", body(*RESIZED),
     ["conv", "conv", "resize", "add", "conv", "resize", "add"]),
    ("conv_before_resize", body(*RESIZED).replace("conv(s, w)", "conv(s, w)\n    v: f32[2, 6, 4, 6]"
     " = conv(s, w)").replace("return y", "return y, v"),
     ["conv", "conv", "resize", "add", "conv", "resize", "add"] * 2),
    ("conv_before_resize", body(*(line.replace("c: f32[2, 20, 2, 2]", "c: f32[2, 20, 2, 3]")
                                  for line in RESIZED)),
     ["conv", "concat", "conv", "resize", "add"]),
    ("conv_before_resize", body(*(
        line.replace("c: f32[2, 20, 2, 2]", "c: f32[2, 20, 2, 3]")
        .replace("resize(c, sizes=(2, 20, 4, 6), mode='nearest'", "resize(c, sizes=(2, 20, 4, 6), "
                 "mode='linear'") for line in RESIZED)),
     ["conv", "conv", "resize", "add", "conv", "resize", "add"]),
    ("conv_before_resize", body(*RESIZED).replace("z: f32[2, 5,", "z: f32[2, 0,").replace(
        "2, 65, 4", "2, 60, 4").replace("6, 65, 1", "6, 60, 1"),
     ["conv", "resize", "conv", "resize", "add"]),
    ("conv_before_resize", body(
        "h: size, x: f32[2, 40, h, 3]",
        "a: f32[2, 40, 2 * h, 6] = resize(x, sizes=(2, 40, 2 * h, 6), "
        "scales=(1.0, 1.0, 2.0, 2.0))", "w: f32[6, 40, 1, 1] = const()",
        "y: f32[2, 6, 2 * h, 6] = conv(a, w)"), ["conv", "resize"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "text", "left"), FIRES, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(FIRES)]
)
def test_a_rule_rewrites(rule, text, left):
    assert_rewrites(rule, text, left)


REFUSES = [
    ("pool_before_conv", "more than a pixel", body(*POOLED).replace(
        "conv(x, w)", "conv(x, w, groups=2)").replace("20, 40, 1", "20, 20, 1")),
    ("pool_before_conv", "within a channel", body(*POOLED_BIASED).replace(
        "b: f32[20, 1, 1]", "b: f32[4, 1]")),
    ("pool_before_conv", "within a channel", body(*POOLED_BIASED).replace(
        "b: f32[20, 1, 1]", "b: f32[6]")),
    *(("pool_before_conv", "within a channel", body(*POOLED_BIASED).replace(
        "b: f32[20, 1, 1]", f"b: f32[{of_images}, 1, 1]"))
      for of_images in ("2, 1", "2, 20")),
    ("pool_before_conv", "within a channel", body(
        *POOLED_BIASED[:3], "b: f32[1, 1, 20, 1, 1] = const()",
        "c: f32[1, 2, 20, 4, 6] = add(b, a)",
        "y: f32[1, 2, 10, 2, 6] = average_pool(c, kernel=(2, 2), stride=(2, 2))")),
    ("pool_before_conv", "added to pads", body(*POOLED_BIASED).replace(
        "stride=(2, 2)", "stride=(2, 2), pads=(1, 0, 1, 0), count_include_pad=True")
     .replace("y: f32[2, 20, 2", "y: f32[2, 20, 3")),
    ("pool_before_conv", "takes longer", body(*POOLED).replace(
        "stride=(2, 2)", "stride=(1, 1)").replace("y: f32[2, 20, 2, 3]", "y: f32[2, 20, 3, 5]")),
    ("conv_before_resize", "more than a pixel", body(*RESIZED_ALONE).replace(
        "40, 1, 1]", "40, 1, 3]").replace("y: f32[2, 6, 4, 6]", "y: f32[2, 6, 4, 4]")),
    ("conv_before_resize", "more than a pixel", body(*RESIZED_ALONE).replace(
        "conv(a, w)", "conv(a, w, stride=(2, 1))").replace("y: f32[2, 6, 4", "y: f32[2, 6, 2")),
    ("conv_before_resize", "more than a pixel", body(*RESIZED_ALONE).replace(
        "conv(a, w)", "conv(a, w, pads=(0, 1, 0, 1))").replace(
            "y: f32[2, 6, 4, 6", "y: f32[2, 6, 4, 8")),
    ("conv_before_resize", "more than a pixel", body(*RESIZED_ALONE).replace(
        "conv(a, w)", "conv(a, w, groups=2)").replace("6, 40, 1", "6, 20, 1")),
    ("conv_before_resize", "whole numbers", body(*RESIZED_ALONE).replace("f32", "i32").replace(
        "mode='linear'", "mode='nearest'").replace("const()", "const(2)")),
    ("conv_before_resize", "reads the whole image", body(*RESIZED, outputs="y, s")),
    ("conv_before_resize", "reads the whole image", body(
        *RESIZED, "v: f32[2, 65, 4, 6] = relu(s)", outputs="y, v")),
    ("conv_before_resize", "reads the whole image", body(
        "k: f32[6, 65, 1, 1], " + RESIZED[0], *RESIZED[1:-1], "v: f32[2, 6, 4, 6] = conv(s, k)",
        RESIZED[-1], outputs="y, v")),
    ("conv_before_resize", "reads the whole image", body(
        RESIZED[0], *RESIZED[1:-1], "k: f32[3, 6, 1, 1] = const()", RESIZED[-1],
        "v: f32[2, 65, 1, 1] = reduce(s, kind='mean', axes=(2, 3))", outputs="y, v")),
    ("conv_before_resize", "gains less", body(
        *RESIZED[:-1], "k: f32[300, 65, 1, 1] = const()", RESIZED[-1],
        "v: f32[2, 300, 4, 6] = conv(s, k)", outputs="y, v").replace("40, ", "8, ").replace(
            "65, ", "33, ")),
    ("conv_before_resize", "several sizes", body(
        "h: size, p: size, x: f32[2, 40, h, 3], z: f32[2, 25, p + 1, 6]",
        "a: f32[2, 40, 2 * h, 6] = resize(x, sizes=(2, 40, 2 * h, 6), "
        "scales=(1.0, 1.0, 2.0, 2.0))", "s: f32[2, 65, 2 * h, 6] = concat(a, z, axis=1)",
        "w: f32[6, 65, 1, 1] = const()", "y: f32[2, 6, 2 * h, 6] = conv(s, w)")),
    ("conv_before_resize", "from fewer pixels", body(
        "x: f32[2, 40, 1, 3], z: f32[2, 40, 2, 6]",
        "a: f32[2, 40, 2, 6] = resize(x, sizes=(2, 40, 2, 6))",
        "s: f32[2, 40, 4, 6] = concat(a, z, axis=2)", "w: f32[6, 40, 1, 1] = const()",
        "y: f32[2, 6, 4, 6] = conv(s, w)")),
    ("conv_before_resize", "from fewer pixels", body(*RESIZED_ALONE).replace(
        "mode=", "scales=(1.0, 1.02, 2.0, 2.0), mode=")),
    ("conv_before_resize", "channels is not known", body(
        "k: size, x: f32[2, 40, 2, 3], z: f32[2, k, 4, 6]", RESIZED[1],
        "s: f32[2, 40 + k, 4, 6] = concat(a, z, axis=1)", "w: f32[6, 42, 1, 1] = const()",
        "y: f32[2, 6, 4, 6] = conv(s, w)")),
    ("conv_before_resize", "from fewer pixels", body(*RESIZED_ALONE, outputs="y, a")),
    ("conv_before_resize", "from fewer pixels", body(
        "x: f32[2, 40, 8, 9]", *RESIZED_ALONE[1:])),
    ("conv_before_resize", "from fewer pixels", body(
        "x: f32[2, 20, 2, 3]", *RESIZED_ALONE[1:])),
    ("conv_before_resize", "from fewer pixels", body(
        "h: size, x: f32[2, 40, h, 3]", *RESIZED_ALONE[1:])),
    ("conv_before_resize", "gains less", body(
        "x: f32[2, 4, 2, 3]", "a: f32[2, 4, 4, 6] = resize(x, sizes=(2, 4, 4, 6), mode='linear')",
        "w: f32[60, 4, 1, 1] = const()", "y: f32[2, 60, 4, 6] = conv(a, w)")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "reason", "text"), REFUSES, ids=[f"{r}: {why}" for r, why, _ in REFUSES]
)
def test_a_rule_refuses(rule, reason, text):
    assert_refuses(rule, reason, text)


def test_engines_multiply_large_images_faster_than_they_are_added_up():
    """Sixty results of as many channels, at fifteen times the rate of multiply-adds."""
    text = body(*(line.replace("[6, ", "[60, ") for line in RESIZED))
    graph, chosen = read(text.replace("y: f32[2, 6,", "y: f32[2, 60,")), LAST_RULES
    engine = PassContext(target=Target(features=ENGINE), precision="medium")
    assert ops(rewrite_graph(graph, chosen, CONTEXT)).count("conv") == 3
    assert ops(rewrite_graph(graph, chosen, engine)).count("conv") == 1


@pytest.mark.parametrize("text", [RESIZED, POOLED], ids=["resized", "pooled"])
def test_what_has_not_been_measured_on_a_gpu_stays(text):
    graph, refusals = read(body(*text)), []
    assert rewrite_graph(graph, LAST_RULES, ON_GPU, lambda *why: refusals.append(why[2])) is graph
    assert set(refusals) == {"what it gains on a GPU has not been measured"}


def test_every_rule_has_a_case_that_fires():
    assert {r.name for r in LAST_RULES} == {r for r, _, _ in FIRES}
