"""split_dilation keeps results, and takes images apart only where that is faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Gpu, Target
from dlc.graph.fusion import groups
from dlc.graph.ops.scan import Scan
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import read, rounded, run, same_of_whole_numbers

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


@pytest.mark.parametrize("batch", ["1", "2", "n"])
def test_phases_give_the_dilated_convolution(batch):
    text = CONV.replace("f32[1, 8", f"f32[{batch}, 8")
    text = text.replace("(x:", "(n: size, x:") if batch == "n" else text
    graph, found = read(text), changed(text)
    assert operators(found) == APART
    count = 3 if batch == "n" else int(batch)
    same_of_whole_numbers(graph, found, (count, 8, 37, 42, 16))


def test_phases_of_a_line_are_the_lines_of_an_image():
    text = """
def main(x: f32[2, 8, 1005, 16]):
    w: f32[8, 8, 3, 16, 16] = const()
    y: f32[2, 8, 999, 16] = conv_blocked(x, w, stride=(1,), dilation=(3,))
    return y
"""
    graph, found = read(text), changed(text)
    assert operators(found) == APART
    assert operators(run("use_winograd", found, CONTEXT))[1] == "conv_winograd"
    same_of_whole_numbers(graph, found)


def test_the_images_of_all_phases_are_transformed():
    assert operators(run("use_winograd", changed(CONV), CONTEXT))[1] == "conv_winograd"


def test_an_image_is_taken_apart_once_for_each_dilation():
    text = CONV.replace(
        "    return y",
        """\
    z: f32[1, 8, 33, 36, 16] = conv_blocked(x, w, dilation=(2, 3))
    u: f32[1, 8, 33, 38, 16] = conv_blocked(x, w, dilation=(2, 2))
    return y, z, u""",
    )
    found = changed(text)
    assert operators(found) == [*APART, *APART[1:], *APART]
    _, first, _, second, _, _, third, _ = found.nodes
    assert first.inputs == second.inputs
    assert first.inputs[1] == third.inputs[1]


@pytest.mark.parametrize(
    "text",
    [
        CONV.replace("f32[", "f64["),
        CONV.replace("(2, 3)", "(1, 1)").replace("33, 36", "35, 40"),
        CONV.replace("3, 3, 16,", "3, 1, 16,").replace("33, 36", "33, 42"),
        CONV.replace("(2, 3))", "(2, 3), stride=(1, 2))").replace("33, 36", "33, 18"),
        CONV.replace("8, 8, 3", "8, 4, 3").replace("(2, 3))", "(2, 3), groups=2)"),
        CONV.replace("[1, 8, 37, 42", "[1, 8, 1, 37, 42").replace("8, 8, 3, 3", "8, 8, 1, 3, 3")
        .replace("(2, 3)", "(1, 2, 3), stride=(1, 1, 1)").replace("[1, 8, 33", "[1, 8, 1, 33"),
        CONV.replace("(x:", "(h: size, x:").replace("37, ", "h + 4, ").replace("33, ", "h, "),
    ],
    ids=["f64", "plain", "kernel", "stride", "groups", "volume", "open"],
)  # fmt: skip
def test_what_does_not_fit_is_no_question(text):
    found: list[Fork] = []
    graph = changed(text, replace(CONTEXT, on_fork=found.append))
    assert (operators(graph), found) == (["conv_blocked"], [])


SMALL = CONV.replace("8, 8, 3", "4, 4, 3").replace("f32[1, 8", "f32[1, 4")


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        (CONV.replace("37, 42", "20, 30").replace("33, 36", "12, 18").replace("(2, 3)", "(4, 6)"),
         1.0, 2.0),
        (SMALL.replace("37, 42", "16, 16").replace("33, 36", "12, 12").replace("(2, 3)", "(2, 2)"),
         0.8, 0.9),
        (SMALL.replace("37, 42", "41, 41").replace("33, 36", "33, 33").replace("(2, 3)", "(4, 4)"),
         0.9, 1.0),
    ],
    ids=["few_pixels", "little_gain", "copies"],
)  # fmt: skip
def test_what_does_not_pay_stays(text, least, most):
    found: list[Fork] = []
    graph = changed(text, replace(CONTEXT, on_fork=found.append))
    assert operators(graph) == ["conv_blocked"]
    whole, phases = found[0].cycles
    assert least < phases / whole < most


def test_bodies_of_loops_are_changed():
    text = """
def main(x: f32[2, 1, 8, 36, 36, 16]):
    def step(x: f32[1, 8, 36, 36, 16]):
        w: f32[8, 8, 3, 3, 16, 16] = const()
        y: f32[1, 8, 32, 32, 16] = conv_blocked(x, w, dilation=(2, 2))
        return y
    all: f32[2, 1, 8, 32, 32, 16] = scan(x, body=step, carries=0)
    return all
"""
    (scan,) = changed(text).nodes
    assert isinstance(scan.op, Scan)
    assert operators(scan.op.body) == APART


def test_whole_numbers_stay_whole():
    text = CONV.replace("x: f32[", "bytes: i8[").replace(
        "    w:", "    x: f32[1, 8, 37, 42, 16] = cast(bytes, to=f32)\n    w:")  # fmt: skip
    whole = run("split_dilation", rounded(read(text)), CONTEXT)
    assert operators(whole) == ["cast", "conv_blocked"]
    assert operators(changed(text)) == ["cast", *APART], "weights are no whole numbers"


def test_gpus_dilate_as_they_please():
    target = replace(CONTEXT.target, gpu=Gpu())
    text = CONV.replace(", 16, 16]", ", 32, 32]").replace(", 16]", ", 32]")  # as their warps have
    found: list[Fork] = []
    graph = changed(text, replace(CONTEXT, target=target, on_fork=found.append))
    assert (operators(graph), found) == (["conv_blocked"], [])


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


@pytest.mark.parametrize(("dilation", "ways"), [(8, APART), (12, ["conv_blocked"])])
def test_phases_are_compared_with_what_leaves_zeros_out(dilation, ways):
    size, zeros = 48 + 2 * dilation, (dilation,) * 4
    text = f"""
def main(x: f32[1, 8, {size}, {size}, 16]):
    w: f32[8, 8, 3, 3, 16, 16] = const()
    y: f32[1, 8, 48, 48, 16] = conv_blocked(x, w, dilation={zeros[:2]}, zeros={zeros})
    return y
"""
    assert operators(changed(text)) == ways
