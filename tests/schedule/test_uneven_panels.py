"""Reductions along vectors whose neighbours do not fill whole vectors, beside other reductions."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.types import INDEX
from dlc.graph.ops.roi import MaxRoiPool
from dlc.schedule.loop import Func, LoopKind, loops
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import ranks, rules_for
from dlc.schedule.rules.prepare import inline_moves
from dlc.schedule.trace import Trace
from dlc.te.expr import Const
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, NATIVE, check


def pooled(width: int, lines: int = 5) -> Func:
    """The largest element of each column of some lines, and then of some columns."""
    x = placeholder("x", TensorType((1, 2, lines, width)))
    rois = placeholder("r", TensorType((3, 5)))
    return lower_tensors("f", (), (x, rois), (MaxRoiPool(out=(2, 2)).compute(x, rois),))


@pytest.mark.thorough
@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("width", [31, 33, 41, 67, 72, 96])
def test_neighbours_are_reduced_along_vectors(width: int, target: Target) -> None:
    func = pooled(width)
    trace = Trace(func)
    inline_moves(trace)
    assert tuple(rules_for(trace.func, target)) == (ranks,)
    nest = optimize(func, target)
    inits = [f for name, f in loops(nest.body).items() if name.startswith("z") and "init" in name]
    assert any(f.kind is LoopKind.VECTOR for f in inits)
    rng = np.random.default_rng(0)
    ends = np.sort(rng.integers(-3, width + 3, (3, 2, 2)), axis=1)  # also outside of the image
    rois = np.concatenate([np.zeros((3, 1)), ends[:, 0], ends[:, 1]], axis=1)
    image = rng.standard_normal((1, 2, 5, width))
    image[0, 0, 2, 7] = np.nan
    arrays = {"x": image.astype(np.float32), "r": rois.astype(np.float32)}
    check(nest, target=target, arrays=arrays)


@pytest.mark.thorough
@pytest.mark.parametrize(("lines", "kind"), [(32, LoopKind.UNROLL), (33, LoopKind.SERIAL)])
def test_only_few_terms_are_written_out(lines: int, kind: LoopKind) -> None:
    found = loops(optimize(pooled(41, lines), AVX2).body).values()
    assert [f.kind for f in found if f.extent == Const(lines, INDEX)] == [kind]
