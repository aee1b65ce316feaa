"""Winograd's convolution as machine code: what is not finite, and what is fused behind it."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.ops.activation import Silu
from dlc.graph.ops.binary import Add
from dlc.graph.ops.winograd import ConvWinograd, transform_weights
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import schedule_func, transform
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, NATIVE, Kernel


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("columns_outer", [0, 1])
def test_infinite_pixels_reach_their_own_results_only(target: Target, columns_outer: int) -> None:
    random, block = np.random.default_rng(0), target.lanes(4)

    def small(*shape: int) -> np.ndarray:
        return random.integers(-3, 4, shape).astype(np.float32)

    x, w, r = (
        small(1, 2, 9, 8, block),
        4 * small(3, 2, 3, 3, block, block),
        small(1, 3, 7, 6, block),
    )
    x[0, 0, 3, 3, 2], x[0, 1, 6, 5, 1], x[0, 1, 0, 0, 0] = np.inf, np.nan, 3e38
    w[0, 0, 1, 1, 2] = 0.0
    arrays = {"x": x, "u": transform_weights(w).astype(np.float32), "w": w, "r": r}
    *operands, residual = (placeholder(n, TensorType(a.shape)) for n, a in arrays.items())
    conv = ConvWinograd()
    result = Add().compute(Silu().compute(conv.compute(*operands)), residual)
    func = lower_tensors("f", (), (*operands, residual), (result,))
    assert transform.match(func, target) is not None
    steps = schedule_func(func, target, {"columns_outer": columns_outer}).steps
    found = Kernel(optimize(func, target, steps), target)({}, arrays)["out"]
    with np.errstate(all="ignore"):
        whole = conv.reference(x.astype(np.float64), arrays["u"], w).astype(np.float32)
        wanted = Silu().reference(whole.astype(np.float64)) + r
    np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=1e-5, atol=1e-6)
    assert np.isnan(wanted).any()
    assert np.isinf(wanted).any()
    assert np.isfinite(wanted).any()
