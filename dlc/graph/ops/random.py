"""Random numbers: each element is a function of a seed and of its position, and of nothing else.

So a result is the same on every machine, in every run and for any number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from dlc.core.types import FLOATS, DType
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import constants, set_sizes
from dlc.graph.ops.precision import wide
from dlc.te import tensor as te
from dlc.te.expr import ZERO, BinOp, Expr, UnOp, binary, cast, const, unary
from dlc.te.types import TensorType

_STEP = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST = 31
"""SplitMix64. Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014, figure 16, with the constants of D. Stafford's variant 13."""


class Random(Op):
    """What the distributions share."""

    shape: tuple[Expr, ...]
    seed: int
    dtype: DType = DType.F32

    def __post_init__(self) -> None:
        set_sizes(self, "shape")

    def infer(self) -> TensorType:
        if self.dtype not in FLOATS:
            raise self.reject(f"elements of type {self.dtype} are no real numbers")
        return TensorType(self.shape, self.dtype)

    def uniform(self, i: tuple[Expr, ...], stream: int) -> Expr:
        """A number from 0 up to, but not, 1; `stream` tells numbers of one element apart."""
        flat: Expr = ZERO
        for at, size in zip(i, self.shape, strict=True):
            flat = flat * size + at
        start = const(_start(self.seed, stream), DType.U64)
        z = cast(DType.U64, flat) * const(_STEP, DType.U64) + start
        for shift, factor in _MIX:
            z = _xor_shifted(z, shift) * const(factor, DType.U64)
        kind, digits = wide(self.dtype), _digits(self.dtype)
        top = binary(BinOp.SHR, _xor_shifted(z, _LAST), const(64 - digits, DType.U64))
        whole = cast(DType.I32 if digits < 32 else DType.I64, top)
        return cast(kind, whole) * const(2.0**-digits, kind)

    def exact_uniform(self, stream: int) -> Array:
        """All numbers that `uniform` gives, in NumPy."""
        shape = constants(self.shape)
        with np.errstate(over="ignore"):
            z = np.arange(math.prod(shape), dtype=np.uint64) * np.uint64(_STEP)
            z = z + np.uint64(_start(self.seed, stream))
            for shift, factor in _MIX:
                z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        digits = _digits(self.dtype)
        top = (z ^ (z >> np.uint64(_LAST))) >> np.uint64(64 - digits)
        return np.asarray(top.astype(np.float64) * 2.0**-digits).reshape(shape)


def _digits(dtype: DType) -> int:
    return 53 if dtype is DType.F64 else 24


def _start(seed: int, stream: int) -> int:
    return (seed + (stream << 62)) % (1 << 64)


def _xor_shifted(z: Expr, shift: int) -> Expr:
    return binary(BinOp.BITXOR, z, binary(BinOp.SHR, z, const(shift, DType.U64)))


@op("random_uniform", fuse=Fuse.INJECTIVE)
class RandomUniform(Random):
    """Numbers between `low` and `high`, all as likely.

    Source: https://onnx.ai/onnx/operators/onnx__RandomUniform.html
    """

    shape: tuple[Expr, ...]
    seed: int
    low: float = 0.0
    high: float = 1.0
    dtype: DType = DType.F32

    def compute(self) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            return cast(self.dtype, self.uniform(i, 0) * (self.high - self.low) + self.low)

        return te.compute(self.name, self.shape, element, inputs=())

    def reference(self) -> Array:
        return self.exact_uniform(0) * (self.high - self.low) + self.low


@op("random_normal", fuse=Fuse.INJECTIVE)
class RandomNormal(Random):
    """Numbers of a normal distribution, by the Box-Muller transform.

    Source: https://onnx.ai/onnx/operators/onnx__RandomNormal.html
    """

    shape: tuple[Expr, ...]
    seed: int
    mean: float = 0.0
    scale: float = 1.0
    dtype: DType = DType.F32

    def compute(self) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            far = unary(UnOp.SQRT, unary(UnOp.LOG, 1.0 - self.uniform(i, 0)) * -2.0)
            turn = unary(UnOp.COS, self.uniform(i, 1) * (2 * math.pi))
            return cast(self.dtype, far * turn * self.scale + self.mean)

        return te.compute(self.name, self.shape, element, inputs=())

    def reference(self) -> Array:
        far = np.sqrt(-2 * np.log1p(-self.exact_uniform(0)))
        turn = np.cos(2 * math.pi * self.exact_uniform(1))
        return np.asarray(far * turn * self.scale + self.mean)
