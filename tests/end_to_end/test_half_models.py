"""Models of 16-bit floats on a CPU: float32 between operators, rounded where values leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from dlc.compiler import build
from dlc.runtime import load

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def run_text(text: str, folder: Path, feed: dict[str, Any], **constants: Any) -> dict[str, Any]:
    """What a model, built for this machine, makes of its inputs."""
    graph = parser.parse_graph(text)
    for name, array in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return load(build(model, folder / "model.so").path).run(feed)


@pytest.mark.parametrize("rows", [0, 1, 5, 37])
@pytest.mark.parametrize("half", sorted(HALVES))
def test_products_of_an_open_number_of_rows_are_exact(half, rows, tmp_path):
    dtype, random = HALVES[half], np.random.default_rng(0)
    w = random.integers(-1, 2, (11, 19)).astype(dtype)
    x = random.integers(-2, 3, (rows, 11)).astype(dtype)
    found = run_text(
        f"agraph ({half}[n,11] x) => ({half}[n,19] y) {{ p = MatMul(x, w)  y = Relu(p) }}",
        tmp_path, {"x": x}, w=w,
    )["y"]  # fmt: skip
    assert found.dtype == dtype
    wanted = np.maximum(x.astype(np.float32) @ w.astype(np.float32), 0)
    np.testing.assert_array_equal(found.astype(np.float32), wanted)


def test_what_is_too_large_between_two_operators_alone_is_no_infinity(tmp_path):
    found = run_text(
        "agraph (float16[5] x) => (float16[5] y, float16[5] z)"
        "{ a = Mul(x, x)  y = Mul(a, c)  z = Identity(a) }",
        tmp_path,
        {"x": np.array([1024, -300, np.inf, np.nan, -0.0], np.float16)},
        c=np.float16(2.0**-6),
    )
    wanted = np.array([16384, 1406, np.inf, np.nan, 0], np.float16)
    np.testing.assert_array_equal(found["y"], wanted)
    np.testing.assert_array_equal(found["z"][:2], [np.inf, np.inf])


@pytest.mark.parametrize("half", sorted(HALVES))
def test_moves_and_selections_keep_every_number(half, tmp_path):
    dtype = HALVES[half]
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    x = bits.view(dtype)
    with np.errstate(invalid="ignore"):
        x = np.where(np.isnan(x), dtype(np.nan), x)  # what a NaN carries may be lost
    found = run_text(
        f"agraph ({half}[256,256] x) => ({half}[256,256] y) "
        "{ t = Transpose(x)  a = Abs(t)  b = Neg(a)  c = Max(b, t)  d = Min(c, a)  y = Add(d, z) }",
        tmp_path, {"x": x}, z=np.asarray(-0.0, dtype),
    )["y"]  # fmt: skip
    np.testing.assert_array_equal(found.astype(np.float32), x.T.astype(np.float32))
    kept = ~np.isnan(x.T.astype(np.float32)) & (x.T != 0)
    np.testing.assert_array_equal(found.view(np.uint16)[kept], x.T.view(np.uint16)[kept])
