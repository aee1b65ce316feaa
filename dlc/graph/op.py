"""What an operator is: a frozen dataclass. Its fields are its attributes, its methods are its
meaning. One class is one place; nothing else names the operator.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from dlc.core.errors import ShapeError
from dlc.te.tensor import Tensor
from dlc.te.types import TensorType

Array = NDArray[Any]


class Fuse(enum.Enum):
    """How an operator joins a fused group."""

    ELEMENTWISE = "elementwise"  # one element of each (broadcast) input gives one output element
    INJECTIVE = "injective"  # an output element reads at most one element of each input
    REDUCTION = "reduction"  # combines many elements into one (sums, pools, softmax, norms)
    ANCHOR = "anchor"  # owns the loop nest others join (convolution, matmul)
    OPAQUE = "opaque"  # stands alone


class Op:
    """Base class of operators."""

    name: ClassVar[str]
    fuse: ClassVar[Fuse]
    onnx: ClassVar[str | None]
    signed: ClassVar[tuple[str, ...]] = ()
    """Fields of size expressions that may be negative; others must not be."""

    infer: ClassVar[Callable[..., TensorType | tuple[TensorType, ...]]]
    """(self, *operand types) -> result type(s). Raises `ShapeError`."""

    compute: ClassVar[Callable[..., Tensor | tuple[Tensor, ...]]]
    """(self, *operands) -> the result(s) as tensor expressions. Names inside are free: lowering
    makes them unique."""

    reference: ClassVar[Callable[..., Array | tuple[Array, ...]]]
    """(self, *arrays) -> the result(s) by NumPy, floats in float64: the oracle of tests, and
    constant folding. Static shapes only; attributes that are size expressions are constants."""

    def reject(self, reason: str, *operands: TensorType) -> ShapeError:
        """The error `infer` raises."""
        return ShapeError(op=self.name, reason=reason, operands=", ".join(map(str, operands)))


OPS: dict[str, type[Op]] = {}
T = TypeVar("T", bound=Op)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def op(name: str, *, fuse: Fuse, onnx: str | None = None) -> Callable[[type[T]], type[T]]:
    """Declare an operator.

    Args:
        name: The name in graph text.
        fuse: How it joins a fused group.
        onnx: The ONNX operator it equals one to one, attributes included (ONNX attribute names
            are the field names). Where the two differ, leave this out and write a converter.
    """

    def declare(cls: type[T]) -> type[T]:
        cls.name, cls.fuse, cls.onnx = name, fuse, onnx
        assert name not in OPS, f"operator '{name}' is declared twice"
        OPS[name] = frozen = dataclass(frozen=True, kw_only=True)(cls)
        return frozen

    return declare


def as_f64(*arrays: Array) -> tuple[Array, ...]:
    """The operands of a reference: floats in float64, integers in at least 8 bits."""
    return tuple(a.astype(_computed(a.dtype)) if a.dtype.kind in "fV" else a for a in arrays)


def _computed(dtype: np.dtype[Any]) -> type[np.generic]:
    """The type to compute in, of one that is a float or that NumPy does not know by itself."""
    name = dtype.name
    return np.int8 if name.startswith("int") else np.uint8 if name[0] == "u" else np.float64
