"""Idle lanes of blocks hold what harms nobody: a mask keeps away what may not be finite."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.graph.evaluate import evaluate
from dlc.graph.pass_ import PASSES
from tests.graph.pass_cases import CONTEXT, read

# Two parts with other numbers in their idle lanes, beside each other.
TEXT = """
def main(x: f32[1, 16, 6, 6], s: f32[1, 40, 6, 6]):
    v: f32[20, 16, 1, 1] = const()
    w: f32[16, 40, 1, 1] = const()
    one: f32[()] = const(1.0)
    three: f32[()] = const({number})
    p: f32[1, 20, 6, 6] = conv(x, v)
    a: f32[1, 20, 6, 6] = add(p, one)
    b: f32[1, 20, 6, 6] = sub(p, one)
    i: u8[1, 20, 6, 6] = cast(a, to=u8)
    j: u8[1, 20, 6, 6] = cast(b, to=u8)
    {concat}
    e: f32[1, 40, 6, 6] = {move}(d, three)
    y: f32[1, 16, 6, 6] = conv(e, w)
    return y
"""
BYTES = "c: u8[1, 40, 6, 6] = concat(i, j, axis=1)\n    d: f32[1, 40, 6, 6] = cast(c, to=f32)"
HALVES = """c: u8[1, 40, 6, 6] = concat(i, j, axis=1)
    f: f16[1, 40, 6, 6] = cast(c, to=f16)
    d: f32[1, 40, 6, 6] = cast(f, to=f32)"""
COMPUTED = """c: u8[1, 40, 6, 6] = concat(i, j, axis=1)
    f: f32[1, 40, 6, 6] = cast(c, to=f32)
    d: f32[1, 40, 6, 6] = add(f, s)"""
FLOATS = "d: f32[1, 40, 6, 6] = concat(a, b, axis=1)"


@pytest.mark.parametrize(
    ("concat", "number", "move", "masks"),
    [
        (BYTES, 3.0, "sub", 0),
        (FLOATS, 3.0, "sub", 1),
        (BYTES, 1e38, "sub", 1),  # more of them would be infinite
        (BYTES, 3.0, "mul", 1),  # as some products may be
        (HALVES, 3.0, "sub", 1),  # infinite above 65504
        (COMPUTED, 3.0, "sub", 1),  # something computed is added
    ],
)
def test_what_is_made_of_integers_needs_no_mask(concat, number, move, masks):
    before = read(TEXT.format(concat=concat, number=number, move=move))
    after = PASSES["choose_layouts"](before, CONTEXT)
    operators = [n.op.name for n in after.nodes]
    assert operators.count("conv_blocked") == 2
    assert operators.count("where") == 1 + masks  # one behind the first convolution
    rng = np.random.default_rng(0)
    shapes = {v.name: v.type.static_shape for v in before.inputs}
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    want, got = evaluate(before, feeds), evaluate(after, feeds)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=1e-4)
