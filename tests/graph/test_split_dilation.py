"""split_dilation keeps results, and takes images apart only where that is faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Gpu, Target
from dlc.graph.evaluate import evaluate
from dlc.graph.fusion import groups
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import read, rounded, run

CONTEXT = PassContext(target=Target(features=frozenset({"avx512f"})))
CONV = """
def main(x: f32[1, 8, 37, 42, 16]):
    w: f32[8, 8, 3, 3, 16, 16] = const()
    y: f32[1, 8, 33, 36, 16] = conv_blocked(x, w, dilation=(2, 3))
    return y
"""
APART = ["split_phases", "conv_blocked", "join_phases"]


def operators(graph):
    return [node.op.name for node in graph.nodes]


def changed(text, context=CONTEXT):
    return run("split_dilation", read(text), context)


@pytest.mark.parametrize("batch", [1, 2])
def test_phases_give_the_dilated_convolution(batch):
    text = CONV.replace("f32[1, 8", f"f32[{batch}, 8")
    graph, found = read(text), changed(text)
    assert operators(found) == APART
    given = np.random.default_rng(0).integers(-4, 5, (batch, 8, 37, 42, 16)).astype(np.float32)
    wanted, got = evaluate(graph, {"x": given}), evaluate(found, {"x": given})
    np.testing.assert_array_equal(got["y"], wanted["y"])


def test_the_images_of_all_phases_are_transformed():
    assert operators(run("use_winograd", changed(CONV), CONTEXT))[1] == "conv_winograd"


def test_a_matrix_shared_by_convolutions_is_kept_once():
    (line,) = (line for line in CONV.splitlines() if "conv_blocked" in line)
    text = CONV.replace("    return y", line.replace("y:", "z:") + "\n    return y, z")
    found = changed(text)
    assert operators(found) == APART * 2
    assert found.nodes[1].inputs[1] == found.nodes[4].inputs[1]


@pytest.mark.parametrize(
    "text",
    [
        CONV.replace("f32[", "f64["),
        CONV.replace("(2, 3)", "(1, 1)").replace("33, 36", "35, 40"),
        CONV.replace("3, 3, 16,", "3, 2, 16,").replace("33, 36", "33, 39"),
        CONV.replace("(2, 3))", "(2, 3), stride=(1, 2))").replace("33, 36", "33, 18"),
        CONV.replace("8, 8, 3", "8, 4, 3").replace("(2, 3))", "(2, 3), groups=2)"),
        CONV.replace("(x:", "(n: size, x:").replace("f32[1,", "f32[n,"),
        CONV.replace("37, 42", "11, 13").replace("33, 36", "3, 1").replace("(2, 3)", "(4, 6)"),
        CONV.replace("8, 8, 3", "1, 1, 3").replace("f32[1, 8", "f32[1, 1"),
    ],
    ids=["f64", "plain", "kernel", "stride", "groups", "open", "few_pixels", "few_channels"],
)
def test_what_does_not_fit_or_pay_stays(text):
    assert operators(changed(text)) == ["conv_blocked"]


def test_whole_numbers_stay_whole():
    text = CONV.replace("x: f32[", "bytes: i8[").replace(
        "    w:", "    x: f32[1, 8, 37, 42, 16] = cast(bytes, to=f32)\n    w:")  # fmt: skip
    whole = run("split_dilation", rounded(read(text)), CONTEXT)
    assert operators(whole) == ["cast", "conv_blocked"]
    assert operators(changed(text)) == ["cast", *APART], "weights are no whole numbers"


def test_gpus_dilate_as_they_please():
    target = replace(CONTEXT.target, gpu=Gpu())
    assert operators(changed(CONV, replace(CONTEXT, target=target))) == ["conv_blocked"]


def test_what_is_behind_looks_its_pixels_up_in_the_phases():
    text = CONV.replace("    return y", """    s: f32[1, 8, 33, 36, 16] = relu(y)
    z: f32[1, 8, 35, 38, 16] = pad(s, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))
    return z""")  # fmt: skip
    found = groups(run("use_winograd", changed(text), CONTEXT))
    names = [[node.op.name for node in group] for group in found]
    assert names == [["split_phases"], ["conv_winograd"], ["join_phases", "relu", "pad"]]


def test_a_tuner_may_take_the_other_way():
    found: list[Fork] = []
    changed(CONV, replace(CONTEXT, on_fork=found.append))
    (fork,) = found
    assert (fork.options, fork.default) == (("whole", "phases"), "phases")
    ways = Choices({fork.key: Way("whole", fork.default)})
    assert operators(changed(CONV, replace(CONTEXT, choices=ways))) == ["conv_blocked"]
