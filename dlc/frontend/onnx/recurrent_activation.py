"""The activations of recurrent layers, which are named and may have numbers of their own.

Source: https://onnx.ai/onnx/operators/onnx__LSTM.html, and for the numbers that are not given the
defaults of the operators of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.matmul import scaled
from dlc.graph.graph import Value
from dlc.graph.op import Op
from dlc.graph.ops.activation import (
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    Sigmoid,
    Softplus,
    Softsign,
    ThresholdedRelu,
)
from dlc.graph.ops.binary import Add
from dlc.graph.ops.elementwise import Tanh


@dataclass(frozen=True, slots=True)
class Activation:
    """outer * function(inner * x) + shift."""

    function: Op | None = None
    inner: float = 1.0
    outer: float = 1.0
    shift: float = 0.0

    def of(self, ctx: Context, x: Value) -> Value:
        """The activation of a value."""
        y = scaled(ctx, x, self.inner)
        y = y if self.function is None else ctx.call(self.function, y)
        y = scaled(ctx, y, self.outer)
        return ctx.call(Add(), y, ctx.scalar(self.shift, y.type.dtype)) if self.shift else y


@dataclass(frozen=True, slots=True)
class _Kind:
    """How an activation is made of its numbers; None is a number that has no default."""

    make: Callable[..., Activation]
    defaults: tuple[float | None, ...] = ()


_KINDS: dict[str, _Kind] = {
    "sigmoid": _Kind(lambda: Activation(Sigmoid())),
    "tanh": _Kind(lambda: Activation(Tanh())),
    "relu": _Kind(lambda: Activation(Relu())),
    "softsign": _Kind(lambda: Activation(Softsign())),
    "softplus": _Kind(lambda: Activation(Softplus())),
    "leakyrelu": _Kind(lambda a: Activation(LeakyRelu(alpha=a)), (0.01,)),
    "thresholdedrelu": _Kind(lambda a: Activation(ThresholdedRelu(alpha=a)), (1.0,)),
    "elu": _Kind(lambda a: Activation(Elu(alpha=a)), (1.0,)),
    "hardsigmoid": _Kind(lambda a, b: Activation(HardSigmoid(alpha=a, beta=b)), (0.2, 0.5)),
    "affine": _Kind(lambda a, b: Activation(outer=a, shift=b), (1.0, 0.0)),
    "scaledtanh": _Kind(lambda a, b: Activation(Tanh(), inner=b, outer=a), (None, None)),
}


def read_activations(
    ctx: Context, names: Sequence[str], alpha: Sequence[float], beta: Sequence[float]
) -> list[Activation]:
    """The activations of these names, each of which takes the next numbers if it has any."""
    numbers = {"alpha": list(alpha), "beta": list(beta)}
    found: list[Activation] = []
    for name in names:
        kind = _KINDS.get(name.lower())
        if kind is None:
            ctx.refuse(f"activation '{name}' is not handled")
        own: list[float] = []
        for which, default in zip(numbers, kind.defaults, strict=False):
            number = numbers[which].pop(0) if numbers[which] else default
            if number is None:
                ctx.refuse(f"activation '{name}' has no {which}")
            own.append(number)
        found.append(kind.make(*own))
    return found
