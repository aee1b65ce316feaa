"""turn_lines keeps results, and turns only what is transformed then, and faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Gpu, Target
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import read, run, same_of_whole_numbers

CONTEXT = PassContext(target=Target(features=frozenset({"avx512f"}), in_halves=True))
COLUMNS = """
def main(x: f32[1, 8, 38, 33, 16]):
    w: f32[8, 8, 7, 1, 16, 16] = const()
    y: f32[1, 8, 32, 33, 16] = conv_blocked(x, w)
    return y
"""
VOLUME = """
def main(x: f32[2, 4, 10, 9, 11, 16]):
    w: f32[4, 4, 3, 1, 1, 16, 16] = const()
    y: f32[2, 4, 8, 9, 11, 16] = conv_blocked(x, w, stride=(1, 1, 1), dilation=(1, 1, 1))
    return y
"""
ROWS_OF_A_VOLUME = """
def main(x: f32[1, 4, 8, 9, 18, 16]):
    w: f32[4, 4, 1, 1, 3, 16, 16] = const()
    y: f32[1, 4, 8, 9, 16, 16] = conv_blocked(x, w, stride=(1, 1, 1), dilation=(1, 1, 1))
    return y
"""
TURNED = {
    COLUMNS: ["transpose", "conv_blocked", "transpose"],
    VOLUME: ["transpose", "reshape", "conv_blocked", "reshape", "transpose"],
    ROWS_OF_A_VOLUME: ["reshape", "conv_blocked", "reshape", "transpose"],
}


def operators(graph):
    return [node.op.name for node in graph.nodes]


def changed(text, context=CONTEXT):
    return run("turn_lines", read(text), context)


@pytest.mark.parametrize("text", TURNED, ids=["columns", "volume", "rows_of_a_volume"])
def test_turned_lines_give_the_same_results(text):
    graph, found = read(text), changed(text)
    assert operators(found) == TURNED[text]
    same_of_whole_numbers(graph, found)
    assert "conv_winograd" in operators(run("use_winograd", found, CONTEXT))


def test_several_images_may_be_as_many_as_a_run_has():
    text = COLUMNS.replace("(x: f32[1", "(n: size, x: f32[n").replace("y: f32[1", "y: f32[n")
    graph, found = read(text), changed(text)
    assert operators(found) == TURNED[COLUMNS]
    same_of_whole_numbers(graph, found, (3, 8, 38, 33, 16))


LEFT = {
    "strided": (("conv_blocked(x, w)", "conv_blocked(x, w, stride=(2, 1))"), ("32, 33", "16, 33")),
    "both axes": (("7, 1, 16", "7, 3, 16"), ("32, 33", "32, 31")),
    "rows": (("7, 1, 16", "1, 7, 16"), ("32, 33", "38, 27")),
    "a pixel": (("7, 1, 16", "1, 1, 16"), ("32, 33", "38, 33")),
    "short": (("7, 1, 16", "2, 1, 16"), ("32, 33", "37, 33")),
    "dilated": (("(x, w)", "(x, w, dilation=(2, 1))"), ("32, 33", "26, 33")),
    "whole numbers": (("f32[8", "i8[8"), ("x: f32", "x: u8"), ("y: f32", "y: i32")),
    "few": (("1, 8, 38, 33", "1, 8, 9, 2"), ("1, 8, 32, 33", "1, 8, 3, 2")),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_as_they_are(name):
    text = COLUMNS
    for old, new in LEFT[name]:
        text = text.replace(old, new)
    assert operators(changed(text)) == ["conv_blocked"]


def test_sizes_that_a_run_tells_stay_as_they_are():
    text = COLUMNS.replace("(x: f32[1, 8, 38, 33", "(n: size, x: f32[1, 8, 38, n")
    assert operators(changed(text.replace("32, 33", "32, n"))) == ["conv_blocked"]


def test_a_gpu_turns_nothing():
    context = PassContext(target=replace(CONTEXT.target, gpu=Gpu((90,))))
    assert operators(changed(COLUMNS, context)) == ["conv_blocked"]


def test_the_decision_is_a_fork():
    forks: list[Fork] = []
    changed(COLUMNS, replace(CONTEXT, on_fork=forks.append))
    (fork,) = forks
    assert (fork.kind, fork.default) == ("lines", "turned")
    ways = Choices({fork.key: Way(fork.others[0], fork.default)})
    assert operators(changed(COLUMNS, replace(CONTEXT, choices=ways))) == ["conv_blocked"]
