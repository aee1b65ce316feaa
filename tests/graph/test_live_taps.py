"""Zeros around an image are no summands where many taps read them."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target_parse import parse_target
from dlc.graph.live_taps import live_share, worth_leaving_out
from dlc.graph.transformed import direct_cycles
from tests.graph.pass_cases import CONTEXT, read, run, same

DILATED = """
def main(x: f32[n, 8, 13, 15]):
    w: f32[8, 8, 3, 3] = const()
    y: f32[n, 8, 13, 15] = conv(x, w, pads=(6, 5, 6, 5), dilation=(6, 5))
    return y
""".replace("main(x", "main(n: size, x")


def conv_of(graph):
    return next(n for n in graph.nodes if n.op.name == "conv_blocked")


def test_zeros_of_dilated_kernels_are_no_summands():
    graph = run("choose_layouts", read(DILATED), CONTEXT)
    same(read(DILATED), graph, {"n": 2})
    assert conv_of(graph).op.zeros == (6, 5, 6, 5)


def test_infinite_weights_stay_summands():
    """Infinity times 0 is NaN."""
    graph = read(DILATED)
    w = next(iter(graph.constants))
    graph.constants[w][0, 0, 0, 0] = np.inf
    assert conv_of(run("choose_layouts", graph, CONTEXT)).op.zeros == ()


def test_what_is_left_of_the_taps():
    # Of 13 results, 7 see the first row of taps, all the second one, and 7 the third one.
    assert live_share((13,), (3,), (1,), (6,), (6, 6)) == pytest.approx((7 + 13 + 7) / 39)
    assert live_share((13,), (3,), (2,), (6,), (6, 6)) == pytest.approx((4 + 7 + 4) / 21)
    assert live_share((13, 8), (3, 1), (1, 1), (6, 1), (6, 0, 6, 0)) == pytest.approx(27 / 39)


@pytest.mark.parametrize(
    ("sizes", "dilation", "zeros"),
    [
        ((33, 33), (12, 12), (12, 12, 12, 12)),
        ((33, 33), (2, 2), ()),  # a few taps
        ((33, 33), (12, 2), (12, 0, 12, 0)),
        ((33, 10), (12, 4), (12, 0, 12, 0)),  # columns 4 and 5 have taps of their own
        ((9, 3), (4, 1), ()),  # tiles of one row of three results
        ((17,), (12,), (12, 12)),
        ((13,), (7,), (7, 7)),  # one result that has all taps
    ],
)
def test_where_they_are_told_from_pixels(sizes, dilation, zeros):
    ones = (1,) * len(sizes)
    kernel, pads = (3,) * len(sizes), dilation * 2
    assert worth_leaving_out(sizes, kernel, ones, dilation, pads, 2, CONTEXT.target) == zeros


@pytest.mark.parametrize(
    ("blocks", "cpu", "zeros"),
    [
        (1, "skylake-avx512", ()),  # five sums, where eight begin before the first is done
        (2, "skylake-avx512", (1, 0, 1, 0)),
        (1, "znver4", (1, 0, 1, 0)),  # one multiply-add begins in a cycle
    ],
)
def test_tiles_of_one_row_need_enough_sums(blocks, cpu, zeros):
    target = parse_target(f"llvm -mcpu={cpu}")
    assert worth_leaving_out((4, 5), (3, 3), (1, 1), (1, 1), (1,) * 4, blocks, target) == zeros


def test_estimates_know_which_taps_are_summands():
    text = DILATED.replace("n: size, ", "").replace("[n", "[1")
    conv = conv_of(run("choose_layouts", read(text), CONTEXT))
    plain = type(conv)(type(conv.op)(dilation=conv.op.dilation), conv.inputs, conv.outputs)
    share = (7 + 13 + 7) / 39 * (10 + 15 + 10) / 45
    moved = 8 * 8 * 9 * 4 / 8.0  # bytes of the weights
    assert direct_cycles(conv, CONTEXT) - moved == pytest.approx(
        (direct_cycles(plain, CONTEXT) - moved) * share
    )
