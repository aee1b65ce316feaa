"""The bytes of matrices that single rows meet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.graph.evaluate import evaluate
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import AVX512, ENGINE, PAIRS, read, run

MEDIUM = PassContext(target=Target(features=ENGINE), precision="medium")
SLOW = Target(features=PAIRS, slow_pairs=True)


def narrowed(rows, width, weights, context):
    """The type of the weights behind the pass; results may not change if they are whole."""
    graph = read(f"""
def main(x: f32[{rows}, {width}]):
    w: f32[3, {width}, 16] = const()
    y: f32[{rows}, 40] = matmul_packed(x, w, n=40)
    return y
""")
    (w,) = graph.constants
    if weights is not None:
        values = np.random.default_rng(0).choice(weights, (3, width, 16)).astype(np.float32)
        graph = replace(graph, constants={w: values})
    found = run("narrow_weights", graph, context)
    x = np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)
    if weights is not None:
        wanted, got = (evaluate(g, {"x": x})["y"] for g in (graph, found))
        np.testing.assert_array_equal(got, wanted)
    (node,) = found.nodes
    return node.inputs[1].type.dtype


@pytest.mark.parametrize(("weights", "dtype"), [
    ([-128, -1, 0, 127], DType.I8), ([-129, 1], DType.BF16), ([128, 0], DType.BF16),
    ([0.5, 3], DType.BF16), ([-0.0, 1], DType.BF16), ([257, 1], DType.F16), ([0.1], DType.F32),
    ([2049, 1], DType.F32), ([2.0**-24, 2.0**15 + 32], DType.F16), ([2.0**-25, 257], DType.F32),
    ([np.inf, 257], DType.F16), ([1e6, 257], DType.F32),
])  # fmt: skip
def test_weights_that_are_exact_in_fewer_bytes_take_no_more(weights, dtype):
    assert narrowed(1, 450, weights, AVX512) is dtype


@pytest.mark.parametrize(("rows", "width", "dtype"), [
    (2, 450, DType.F32), (2, 9000, DType.F16), (3, 9000, DType.F16), (4, 9000, DType.F32),
])  # fmt: skip
def test_few_rows_take_fewer_bytes_of_what_no_cache_holds(rows, width, dtype):
    assert AVX512.target.l2_bytes < 3 * 9000 * 16 * 4
    assert narrowed(rows, width, [257, 1], AVX512) is dtype


@pytest.mark.parametrize(("rows", "width", "weights", "context", "name"), [
    (1, 448, [0.5, 3], MEDIUM, "matmul_pairs"),
    (1, 448, [0.5, 3], PassContext(target=SLOW, precision="medium"), "matmul_pairs"),
    (1, 448, [0.5, 3], PassContext(target=SLOW, precision="high"), "matmul_packed"),
    (1, 448, [0.5, 3], replace(AVX512, precision="medium"), "matmul_packed"),
    (1, 450, [0.5, 3], MEDIUM, "matmul_packed"),  # rows are rounded by whole vectors
    (2, 9008, [0.5, 3], MEDIUM, "matmul_packed"),
    (1, 448, [127, -128], MEDIUM, "matmul_packed"),  # a byte is less
])  # fmt: skip
def test_a_row_meets_pairs_where_these_are_what_is_read(rows, width, weights, context, name):
    graph = read(f"""
def main(x: f32[{rows}, {width}]):
    w: f32[3, {width}, 16] = const()
    y: f32[{rows}, 40] = matmul_packed(x, w, n=40)
    return y
""")
    random = np.random.default_rng(0)
    (w,) = graph.constants
    values = random.choice(weights, (3, width, 16)).astype(np.float32)
    graph = replace(graph, constants={w: values})
    found = run("narrow_weights", graph, context)
    assert [node.op.name for node in found.nodes] == [name]
    x = random.integers(-4, 5, (rows, width)).astype(np.float32)
    wanted, got = (evaluate(g, {"x": x})["y"] for g in (graph, found))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("rows", "width", "context", "dtype"), [
    (1, 450, MEDIUM, DType.BF16), (1, 450, replace(MEDIUM, precision="high"), DType.F32),
    (2, 450, MEDIUM, DType.F32), (1, 45, MEDIUM, DType.F32),
])  # fmt: skip
def test_others_are_rounded_at_medium_alone(rows, width, context, dtype):
    assert narrowed(rows, width, None, context) is dtype
