"""Instance normalisation of channel-blocked tensors: the form `choose_layouts` makes."""

from __future__ import annotations

import numpy as np

from dlc.core.types import FLOATS
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.elementwise import check_dtype
from dlc.graph.ops.norm import exact_norm, moments
from dlc.graph.ops.precision import widen
from dlc.te import tensor as te
from dlc.te.expr import Expr, cast, const
from dlc.te.types import TensorType


@op("instance_norm_blocked", fuse=Fuse.REDUCTION)
class InstanceNormBlocked(Op):
    """Each channel of each image normalised over its pixels, then scaled.

    Shapes:
        x: [n, cb, *spatial, c]; scale, bias: [cb, c] -> [n, cb, *spatial, c]
    """

    epsilon: float = 1e-5

    def infer(self, x: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        check_dtype(self, FLOATS, x, scale, bias)
        if x.rank < 4 or scale.rank != 2 or bias.rank != 2:
            raise self.reject("needs a blocked image, and a scale and a bias of blocks", x, scale)
        for vector in (scale, bias):
            pairs = zip(vector.shape, (x.shape[1], x.shape[-1]), strict=True)
            if any(differs(a, b) for a, b in pairs):
                raise self.reject("needs one number for each channel", x, vector)
        return x

    def compute(self, x: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> te.Tensor:
        axes = tuple(range(2, x.type.rank - 1))
        mean, factor = moments(x, axes, self.epsilon)

        def element(*i: Expr) -> Expr:
            kept = (*i[:2], *(const(0, i[0].dtype) for _ in axes), i[-1])
            value = (widen(x[i]) - mean[kept]) * factor[kept]
            return cast(x.dtype, value * widen(scale[i[1], i[-1]]) + widen(bias[i[1], i[-1]]))

        return te.compute(self.name, x.shape, element, inputs=(x, mean, factor, scale, bias))

    def reference(self, x: Array, scale: Array, bias: Array) -> Array:
        x, scale, bias = as_f64(x, scale, bias)
        normal = exact_norm(x, tuple(range(2, x.ndim - 1)), self.epsilon)
        blocks, block = scale.shape
        shape = (blocks, *(1,) * (x.ndim - 3), block)
        return np.asarray(normal * scale.reshape(shape) + bias.reshape(shape))
