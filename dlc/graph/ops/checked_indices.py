"""Indices from data that a run refuses where they lead outside of a tensor."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from dlc.core.errors import InputError, InternalError
from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import constants, set_sizes
from dlc.te import tensor as te
from dlc.te.expr import Expr
from dlc.te.types import TensorType, is_const


@op("checked_indices", fuse=Fuse.OPAQUE)
class CheckedIndices(Op):
    """The indices as they are; a run fails with `message` where one lies outside.

    There is one size, or one for each element of the last axis: element i must be below size i,
    and not below 0, or where `negative` is set, which counts from the end, not below -size. The
    host looks before any kernel reads them, or a kernel on a GPU that does; all kernels stay within
    bounds by themselves.
    """

    sizes: tuple[Expr, ...]
    negative: bool = True
    message: str = "an index from the data lies outside"

    def __post_init__(self) -> None:
        set_sizes(self, "sizes")

    def infer(self, indices: TensorType) -> TensorType:
        if indices.dtype not in (DType.I32, DType.I64):
            raise self.reject("indices are i32 or i64", indices)
        fits = len(self.sizes) == 1 or (
            indices.rank > 0 and is_const(indices.shape[-1], len(self.sizes))
        )
        if not fits:
            raise self.reject("needs one size, or one for each element of a row", indices)
        return indices

    def compute(self, indices: te.Tensor) -> NoReturn:
        raise InternalError(detail="indices are checked by the host, not by a kernel")

    def reference(self, indices: Array) -> Array:
        sizes = np.array(constants(self.sizes))
        if (indices >= sizes).any() or (indices < (-sizes if self.negative else 0)).any():
            raise InputError(name="indices", reason=self.message)
        return indices
