"""share_halos gives tensors lines that keep their blocks apart in the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.graph.ops.attributes import constants
from dlc.graph.ops.shape import Pad
from tests.graph.pass_cases import CONTEXT, read, run, same

TARGET = replace(CONTEXT.target, l2_bytes=16 * 8192)
IMAGE = "f32[1, 20, 16, 16, 8]"  # blocks of 8 KB, after which the sets of that cache repeat
ODD = "f32[1, 20, 15, 16, 8]"
FEW = "f32[1, 8, 16, 16, 8]"
SMALL = "f32[1, 20, 14, 14, 8]"
HALO = "before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0)"


@pytest.mark.parametrize(
    ("image", "lines", "after"),
    [
        (IMAGE, ["z: f32[1, 1, 16, 16, 8] = conv_blocked(a, w)"], [1]),
        (ODD, ["z: f32[1, 1, 15, 16, 8] = conv_blocked(a, w)"], []),
        (FEW, ["z: f32[1, 1, 16, 16, 8] = conv_blocked(a, w)"], []),
        (IMAGE, ["z: f32[1, 20, 16, 16, 8] = exp(a)"], []),
        (
            SMALL,
            [
                f"p: f32[1, 20, 16, 16, 8] = pad(a, {HALO})",
                "z: f32[1, 1, 16, 16, 8] = conv_blocked(p, w)",
            ],
            [2],
        ),
        (
            IMAGE,
            [
                "r: f32[20, 16, 16, 8] = reshape(a, shape=(20, 16, 16, 8))",
                "b: f32[20, 16, 16, 8] = exp(r)",
                "c: f32[1, 20, 16, 16, 8] = reshape(b, shape=(1, 20, 16, 16, 8))",
                "z: f32[1, 1, 16, 16, 8] = conv_blocked(c, w)",
            ],
            [],
        ),
    ],
    ids=["crowded", "odd", "few", "no_product", "with_halo", "whole_memory"],
)
def test_blocks_begin_in_many_sets_of_the_cache(
    image: str, lines: list[str], after: list[int]
) -> None:
    blocks = 8 if image == FEW else 20
    text = [f"def main(x: {image}):", f"w: f32[1, {blocks}, 1, 1, 8, 8] = const()"]
    body = [f"a: {image} = relu(x)", *lines, "return z"]
    graph = read("\n    ".join([*text, *body]) + "\n")
    found = run("share_halos", graph, replace(CONTEXT, target=TARGET))
    pads = [n.op for n in found.nodes if isinstance(n.op, Pad)]
    assert [constants(op.after)[2] for op in pads] == after
    same(graph, found)
