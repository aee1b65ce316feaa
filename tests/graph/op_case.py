"""A call of an operator that the tests run: its types, its operands, its ONNX equivalent."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.op import Op
from dlc.graph.sizes import attribute_exprs
from dlc.te.expr import Var
from dlc.te.text import parse_type
from dlc.te.transform import free_vars
from dlc.te.types import TensorType

N = Var("n")
SIZES = ({"n": 3}, {"n": 1}, {"n": 0})
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, -0.5, 1.5, 2.5, -3.0, 80.0, -80.0, 1e-4)
LOOSE = 2e-6
"""A few roundings of f32: the interpreter rounds each step, the reference none."""


@dataclass(frozen=True)
class Onnx:
    """The same call in ONNX."""

    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    extra: tuple[np.ndarray | None, ...] = ()  # operands after ours; None leaves one out
    opset: int = 22
    order: tuple[int, ...] = ()  # which of our operands, if not all in order
    rtol: float = 1e-5  # against their float32 arithmetic
    by_runtime: bool = False  # ONNX's own evaluator cannot; ask onnxruntime


@dataclass(frozen=True)
class Case:
    """A call of an operator."""

    op: Op
    types: tuple[TensorType, ...]
    sizes: tuple[Mapping[str, int], ...] = ({},)
    data: str = "small"  # small integers; or "special", "unit", "positive", "bits"
    values: tuple[Sequence[Any] | None, ...] = ()  # spelled-out operands
    rtol: float = 0.0
    onnx: Onnx | None = None

    def __str__(self) -> str:
        return f"{self.op.name}-{'-'.join(map(str, self.types))}"

    def arrays(self, sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The operands."""
        random = np.random.default_rng(7)
        result = []
        for position, type_ in enumerate(self.types):
            dims = tuple(_dim(str(n), sizes) for n in type_.shape)
            given = self.values[position] if position < len(self.values) else None
            dtype = NUMPY_DTYPES[type_.dtype]
            if given is not None:
                result.append(np.resize(np.array(given), dims).astype(dtype))
            else:
                result.append(_random(random, self.data, dims, type_.dtype).astype(dtype))
        return result


def _dim(text: str, sizes: Mapping[str, int]) -> int:
    return int(eval(text, {"__builtins__": {}}, dict(sizes)))


def _random(
    random: np.random.Generator, data: str, dims: tuple[int, ...], dtype: DType
) -> np.ndarray:
    if dtype is DType.BOOL:
        return random.integers(0, 2, dims)
    if data == "special":
        return np.resize(random.permutation(np.array(SPECIAL)), dims)
    if data == "unit":
        return random.uniform(-2, 2, dims)
    if data == "positive":
        return random.uniform(0.1, 3, dims)
    if data == "ratio":
        return random.uniform(-1, 1, dims)
    if data == "bits":
        return random.integers(0, 1 << 62, dims)
    return random.integers(-4 if dtype.is_signed else 0, 5, dims)


def case(op: Op, *types: str, **settings: Any) -> Case:
    """A call; types are written as in graph text."""
    parsed = tuple(parse_type(ast.parse(t, mode="eval").body) for t in types)
    sizes = [n for t in parsed for n in t.shape] + list(attribute_exprs(op))
    symbolic = any(free_vars(n) for n in sizes)
    settings.setdefault("sizes", SIZES if symbolic else ({},))
    return Case(op, parsed, **settings)


def both(*cases: Case) -> list[Case]:
    """The cases, and each as it is in f16."""
    halves = [
        replace(c, types=tuple(TensorType(t.shape, DType.F16) for t in c.types), onnx=None)
        for c in cases
    ]
    return [*cases, *(replace(c, rtol=max(c.rtol, 2e-3)) for c in halves)]


def same(name: str, **attributes: Any) -> Onnx:
    return Onnx(name, attributes)
