"""Transposed convolutions in blocked form: one convolution for each phase of the stride."""

from __future__ import annotations

from math import prod

import pytest

from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked
from dlc.te.types import const_size
from tests.graph.pass_cases import CONTEXT, read, run, same


def phases(text, sizes=None):
    """The convolutions that stand for a transposed one, which gives the same results."""
    graph = read(text)
    after = run("choose_layouts", graph, CONTEXT)
    same(graph, after, sizes)
    return [n for n in after.nodes if isinstance(n.op, ConvBlocked | DepthwiseBlocked)]


def pixels(node):
    return prod(const_size(n) for n in node.output.type.shape[2:-1])


@pytest.mark.parametrize(
    ("size", "stride", "pads", "out", "convs", "computed"),
    [
        ((6, 6), (1, 1), (2, 2, 2, 2), (6, 6), 1, 36),  # not 10 x 10
        ((6, 6), (1, 1), (4, 4, 4, 4), (2, 2), 1, 4),  # within the image
        ((6, 6), (1, 1), (0, 4, 4, 0), (6, 6), 1, 36),  # from one corner
        ((4, 4), (2, 2), (1, 1, 2, 2), (8, 8), 4, 64),  # as many taps begin at other pixels
        ((4, 4), (2, 1), (2, 2, 2, 2), (7, 4), 2, 32),  # a line that is not kept
        ((60, 60), (2, 2), (1, 1, 2, 2), (120, 120), 4, 4 * 62 * 62),  # they compute little else
    ],
)
def test_phases_begin_and_end_with_the_result(size, stride, pads, out, convs, computed):
    found = phases(f"""
def main(x: f32[1, 16, {size[0]}, {size[1]}]):
    w: f32[16, 24, 5, 5] = const()
    y: f32[1, 24, {out[0]}, {out[1]}] = conv_transpose(x, w, stride={stride}, pads={pads})
    return y
""")
    assert len(found) == convs
    joined = [const_size(n.output.type.shape[1]) // 3 for n in found]
    assert sum(pixels(n) * j for n, j in zip(found, joined, strict=True)) == computed


def test_phases_of_open_images_begin_together():
    text = """
def main(H: size, x: f32[1, 16, H, 4]):
    w: f32[16, 24, 4, 2] = const()
    y: f32[1, 24, H * 2, 8] = conv_transpose(x, w, stride=(2, 2), pads=(1, 0, 1, 0))
    return y
"""
    (conv,) = phases(text, {"H": 5})
    assert const_size(conv.output.type.shape[1]) == 4 * 3


@pytest.mark.parametrize(("results", "blocks"), [(2, 1), (6, 3), (8, 4)])
def test_phases_are_lanes_where_that_takes_fewer_blocks(results, blocks):
    found = phases(f"""
def main(x: f32[1, 16, 30, 30]):
    w: f32[16, {results}, 4, 4] = const()
    y: f32[1, {results}, 60, 60] = conv_transpose(x, w, stride=(2, 2), pads=(1, 1, 1, 1))
    return y
""")
    assert sum(const_size(n.output.type.shape[1]) for n in found) == blocks


@pytest.mark.parametrize(
    ("channels", "end", "blocks"),
    [(16, "conv(r, v)", 4), (64, "conv(r, v)", 3), (16, "neg(r)", 3)],
    ids=["apart", "many_channels", "planar"],
)
def test_phases_stay_apart_where_moving_pixels_takes_longer(channels, end, blocks):
    """They are blocked then, for a reader of blocks."""
    found = phases(f"""
def main(x: f32[1, {channels}, 30, 30]):
    w: f32[{channels}, 6, 2, 2] = const()
    v: f32[6, 6, 1, 1] = const()
    a: f32[1, 6, 60, 60] = conv_transpose(x, w, stride=(2, 2))
    r: f32[1, 6, 60, 60] = relu(a)
    y: f32[1, 6, 60, 60] = {end}
    return y
""")
    assert const_size(found[0].output.type.shape[1]) == blocks


def test_idle_lanes_of_a_block_are_not_moved():
    text = """
def main(x: f32[1, 16, 6, 5]):
    w: f32[16, 1, 2, 2] = const()
    y: f32[1, 1, 12, 10] = conv_transpose(x, w, stride=(2, 2))
    return y
"""
    assert len(phases(text)) == 1
    after = run("choose_layouts", read(text), CONTEXT)
    (turned,) = [n for n in after.nodes if n.op.name == "transpose"]
    assert prod(map(const_size, turned.output.type.shape)) == 12 * 10
