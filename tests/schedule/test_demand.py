"""How much work a kernel is: operations and bytes, with constant and with open sizes."""

from __future__ import annotations

import pytest

from dlc.core.types import DType
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.byte_products import MatMulBytes
from dlc.graph.ops.pairs import MatMulPairs
from dlc.graph.ops.planes_matmul import MatMulPlanes
from dlc.graph.ops.winograd import ConvWinograd
from dlc.schedule.demand import demand
from dlc.schedule.lower import lower_tensors
from dlc.schedule.text import parse_func
from dlc.te.expr import Const
from dlc.te.simplify import simplify
from dlc.te.tensor import placeholder
from dlc.te.transform import substitute
from dlc.te.types import TensorType

MATMUL = """
def matmul(n: size, A: f32[n, 5], B: f32[5, 3], *, C: f32[n, 3]):
    s = alloc(f32[n, 3], "local")
    for i in range(n):
        for j in range(3):
            s[i, j] = 0.0
            for k in range(5):
                s[i, j] += A[i, k] * B[k, j]
    for i2 in range(n):
        for j2 in range(3):
            C[i2, j2] = max(s[i2, j2], 0.0)
"""
PICK = """
def pick(x: f32[100, 8], *, y: f32[3, 8]):
    for i in range(3):
        for j in range(8):
            y[i, j] = x[i + 40, j] if i < 2 else 0.0
"""


def values(text: str, **sizes: int) -> tuple[object, object]:
    found = demand(parse_func(text))
    env = {name: Const(value, found.bytes.dtype) for name, value in sizes.items()}
    results = [simplify(substitute(e, env)) for e in (found.operations, found.bytes)]
    assert all(isinstance(r, Const) for r in results)
    return results[0].value, results[1].value  # type: ignore[union-attr]


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_product_and_what_follows_it(n):
    operations, moved = values(MATMUL, n=n)
    assert operations == n * 3 * (2 * 5 + 1)
    assert moved == 4 * (n * 5 + 15 + n * 3)


@pytest.mark.parametrize("planes", [1, 3])
def test_products_of_planes_count_as_those_of_floats(planes):
    x = placeholder("x", TensorType((37, 64), DType.F32))
    w = placeholder("w", TensorType((6, 2, planes, 16, 16, 2), DType.BF16))
    result = MatMulPlanes(n=80).compute(x, w)
    func = lower_tensors("product", (), (x, w), (result,))
    operations = demand(func).operations
    assert isinstance(operations, Const)
    of_floats = 37 * 80 * 64 * 2
    assert of_floats <= operations.value <= of_floats + 2 * 37 * 80  # and whether each is finite


def test_a_transformed_convolution_counts_as_what_it_stands_for():
    x = placeholder("x", TensorType((1, 2, 16, 18, 16)))
    u = placeholder("u", TensorType((4, 4, 3, 2, 16, 16)))
    w = placeholder("w", TensorType((3, 2, 3, 3, 16, 16)))
    result = ConvWinograd().compute(Relu().compute(x), u, w)
    operations = demand(lower_tensors("conv", (), (x, u, w), (result,))).operations
    assert isinstance(operations, Const)
    before, results = 2 * 16 * 18 * 16, 3 * 14 * 16 * 16
    direct = results * 2 * 3 * 3 * 16 * 2 + before
    assert direct <= operations.value <= direct + 2 * results  # and whether each is finite


def test_products_of_bytes_count():
    x = placeholder("x", TensorType((37, 64), DType.U8))
    w = placeholder("w", TensorType((5, 16, 16, 4), DType.I8))
    func = lower_tensors("product", (), (x, w), (MatMulBytes(n=80).compute(x, w),))
    operations = demand(func).operations
    assert isinstance(operations, Const)
    assert operations.value == 37 * 80 * 64 * 2


def test_products_of_pairs_count():
    x = placeholder("x", TensorType((37, 64), DType.F32))
    w = placeholder("w", TensorType((5, 32, 16, 2), DType.BF16))
    func = lower_tensors("product", (), (x, w), (MatMulPairs(n=80).compute(x, w),))
    operations = demand(func).operations
    assert isinstance(operations, Const)
    assert operations.value == 37 * 80 * 64 * 2


def test_only_what_is_read_counts():
    assert values(PICK) == (0, 4 * (24 + 24))
