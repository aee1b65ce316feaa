"""How many units in the last place is each float32 function of one operand off, at most?

Run: python benchmarks/ulp.py [--stride 997] [--only Exp,Log] [--alone] [--markdown FILE]

Every float32 in a function's range is tried, or every `--stride`-th: with 1 all of them, which
takes minutes each. The exact value is computed in float64 by other formulas. onnxruntime is
measured on the same values, but for `--alone`. Three functions of many operands follow, by the
error that is usual for each. Exits with 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from onnx import ModelProto, TensorProto, helper

import dlc
from dlc.peer import OnnxRuntime, has_onnxruntime

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(bfloat16)
CHUNK = 1 << 14  # float64 temporaries stay in a cache
OPSET = 22


@dataclass(frozen=True, slots=True)
class Function:
    """A function, the range it is tried on, what it is exactly, and the aim in ULP (0: none)."""

    op: str
    low: float
    high: float
    exact: Callable[[Array], Array]
    aim: float = 0.0


def _vectorized(function: Callable[[float], float]) -> Callable[[Array], Array]:
    many = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(many(x), np.float64)


_erf, _erfc = _vectorized(math.erf), _vectorized(math.erfc)
_LARGE = float(np.finfo(np.float32).max)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1.0) / (1 + e))


def _mish(x: Array) -> Array:
    """x * tanh(log(1 + e)), e = exp(x), without the difference of two ones."""
    e = np.exp(np.minimum(x, 30))
    return np.where(x > 20, x, x * (e * (e + 2)) / (e * (e + 2) + 2))


FUNCTIONS = (
    Function("Exp", -80, 80, np.exp, 1.0),
    Function("Log", 1e-38, _LARGE, np.log, 1.0),
    Function("Tanh", -9, 9, np.tanh, 3.0),
    Function("Sigmoid", -40, 40, _sigmoid, 3.0),
    Function("Erf", -6, 6, _erf, 1.5),
    Function("Sqrt", 0, _LARGE, np.sqrt, 0.51),
    Function("Reciprocal", 1e-30, 1e30, lambda x: 1 / x, 0.51),
    Function("Sin", -100, 100, np.sin, 1.5),
    Function("Cos", -100, 100, np.cos, 1.5),
    Function("Gelu", -6, 6, lambda x: 0.5 * x * _erfc(-x / math.sqrt(2)), 76.0),
    Function("Softplus", -80, 80, _softplus, 2.0),
    Function("Mish", -40, 40, _mish, 4.0),
    Function("HardSwish", -6, 6, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 1.0),
    Function("Elu", -80, 10, lambda x: np.where(x < 0, np.expm1(x), x)),
    Function("Sinh", -80, 80, np.sinh),
    Function("Cosh", -80, 80, np.cosh),
    Function("Tan", -1.5, 1.5, np.tan),
    Function("Asin", -1, 1, np.arcsin),
    Function("Acos", -1, 1, np.arccos),
    Function("Atan", -1e6, 1e6, np.arctan),
    Function("Asinh", -1e6, 1e6, np.arcsinh),
    Function("Acosh", 1, 1e6, np.arccosh),
    Function("Atanh", -0.999, 0.999, np.arctanh),
    Function("Softsign", -1e6, 1e6, lambda x: x / (1 + np.abs(x))),
)


def values(low: float, high: float, stride: int) -> Iterator[Array]:
    """Every `stride`-th float32 from `low` to `high`, in chunks; both zeros are there."""
    for begin, end, negative in ((low, min(high, 0.0), True), (max(low, 0.0), high, False)):
        if begin > end or (begin == end == 0.0):
            continue
        edges = sorted(int(np.float32(abs(v)).view(np.uint32)) for v in (begin, end))
        for first in range(edges[0], edges[1] + 1, stride * CHUNK):
            last = min(first + stride * CHUNK, edges[1] + 1)
            bits = np.arange(first, last, stride, dtype=np.uint64)
            found = bits.astype(np.uint32).view(np.float32)
            yield -found if negative else found


def ulps(found: Array, exact: Array) -> Array:
    """Errors in units of the last place of the float32 nearest to the exact value."""
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(found.astype(np.float64) - exact) / unit
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def node_model(op: str, inputs: Sequence[tuple[str, list[Any]]], **attributes: Any) -> ModelProto:
    """A model of one node; shapes may name sizes."""
    node = helper.make_node(op, [name for name, _ in inputs], ["y"], **attributes)
    rank = 0 if op == "ReduceSum" else len(inputs[0][1])
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs],
        [helper.make_tensor_value_info("y", 1, [None] * rank)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


@dataclass
class Worst:
    """The largest error, where it is, and the mean."""

    ulp: float = 0.0
    at: float = 0.0
    total: float = 0.0
    count: int = 0

    def add(self, x: Array, errors: Array) -> None:
        """Take the errors at some values into account."""
        at = int(np.argmax(errors))
        if errors[at] > self.ulp:
            self.ulp, self.at = float(errors[at]), float(x[at])
        self.total += float(errors.sum())
        self.count += errors.size

    def __str__(self) -> str:
        return f"{self.ulp:.3g} | {self.total / max(1, self.count):.2f}"


def all_halves(low: float, high: float, dtype: Any) -> Array:
    """Every number of a type of 16 bits in a range, both zeros among them."""
    every: Array = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = every.astype(np.float32)
    return every[(low <= wide) & (wide <= high)]


def half_ulps(found: Array, exact: Array, digits: int, lowest: int) -> Array:
    """Errors in units of the last of `digits` bits; below 2**`lowest` units stay as small."""
    exponents = np.frexp(exact)[1] - 1
    unit = np.ldexp(1.0, np.maximum(exponents, lowest) - digits + 1)
    largest = np.ldexp(2.0 - np.ldexp(1.0, 1 - digits), 127 if digits == 8 else 15)
    wide = found.astype(np.float64)
    same = (wide == exact) | (np.isinf(wide) & (np.abs(exact) > largest))
    return np.where(same, 0.0, np.abs(wide - exact) / unit)


def measure_halves(function: Function) -> tuple[float, float]:
    """The largest errors of dlc for float16 and bfloat16, over every number in the range."""
    errors = []
    kinds = ((np.float16, TensorProto.FLOAT16, 11, -14), (BFLOAT16, TensorProto.BFLOAT16, 8, -126))
    for dtype, element, digits, lowest in kinds:
        model = node_model(function.op, [("x", ["n"])])
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = element
        x = all_halves(function.low, function.high, dtype)
        exact = function.exact(x.astype(np.float64))
        found = dlc.compile(model).run({"x": x})["y"]
        errors.append(float(half_ulps(found, exact, digits, lowest).max()))
    return errors[0], errors[1]


def measure(function: Function, stride: int, alone: bool = False) -> tuple[Worst, Worst]:
    """The errors of dlc and of onnxruntime; those of the latter stay 0 where it is not there."""
    model = node_model(function.op, [("x", ["n"])])
    module = dlc.compile(model)
    peer = None if alone else _peer(model)
    ours, theirs = Worst(), Worst()
    for x in values(function.low, function.high, stride):
        exact = function.exact(x.astype(np.float64))
        ours.add(x, ulps(module.run({"x": x})["y"], exact))
        if peer is not None:
            theirs.add(x, ulps(peer.run({"x": x})["y"], exact))
    return ours, theirs


def _peer(model: ModelProto) -> OnnxRuntime | None:
    if not has_onnxruntime():
        return None
    try:
        return OnnxRuntime(model, threads=1)
    except dlc.UserError:
        return None


def sums() -> Iterator[tuple[str, float, float, float]]:
    """Name, our error, onnxruntime's, and the aim, for functions of many operands."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 1000)).astype(np.float32)
    wide = np.exp(x.astype(np.float64))
    exact = wide / wide.sum(1, keepdims=True)
    model = node_model("Softmax", [("x", list(x.shape))], axis=1)
    yield "Softmax of 1000, ULP", *_both(model, {"x": x}, lambda y: ulps(y, exact).max()), 4.0
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((128, 8192), (8192, 128)))
    product = a.astype(np.float64) @ b.astype(np.float64)
    scale = 2.0**-23 * math.sqrt(8192)  # ε is the distance from 1 to the next float32
    model = node_model("MatMul", [("a", [128, 8192]), ("b", [8192, 128])])
    error = _both(model, {"a": a, "b": b}, lambda y: np.abs(y - product).max() / scale)
    yield "MatMul, K = 8192, in ε√K", *error, 12.0
    long = rng.standard_normal(1 << 22).astype(np.float32)
    total = float(long.astype(np.float64).sum())
    model = node_model("ReduceSum", [("x", [1 << 22])], keepdims=0)
    yield "ReduceSum of 4 M, absolute", *_both(model, {"x": long}, lambda y: abs(y - total)), 1e-3


def _both(
    model: ModelProto, feeds: dict[str, Array], error: Callable[[Array], Any]
) -> tuple[float, float]:
    peer = _peer(model)
    ours = float(error(dlc.compile(model).run(feeds)["y"].astype(np.float64)))
    return ours, float(error(peer.run(feeds)["y"].astype(np.float64))) if peer else 0.0


HEAD = """# Accuracy

Errors of float32 functions against float64, in units in the last place (ULP) of the exact result:
the largest and the mean, over every {stride} float32 in the range. 0.5 is correctly rounded.
Made by `python benchmarks/ulp.py --stride {stride_number} --markdown docs/accuracy.md`.

A probability of a float32 Softmax that would be denormal is 0: a multiply-add with one takes a
hundred times as long.

| function | range | aim | dlc max | mean | onnxruntime max | mean | worst at |
|---|---|---:|---:|---:|---:|---:|---:|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it; 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description="Measure the accuracy of float32 functions.")
    parser.add_argument("--stride", type=int, default=997)
    parser.add_argument("--only", default="", help="functions, with commas")
    parser.add_argument("--alone", action="store_true", help="without onnxruntime")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args(arguments)
    chosen = [f for f in FUNCTIONS if not args.only or f.op in args.only.split(",")]
    missed: list[str] = []
    every = "" if args.stride == 1 else f"{args.stride}th"
    lines = [HEAD.format(stride=every, stride_number=args.stride)]
    print(lines[0], end="")
    for function in chosen:
        ours, theirs = measure(function, args.stride, args.alone)
        bad = bool(function.aim) and not ours.ulp <= function.aim
        missed += [function.op] * bad
        span = f"{function.low:g} … {function.high:.3g}"
        aim = f"{function.aim:g}{' (missed)' if bad else ''}" if function.aim else "–"
        peer = str(theirs) if theirs.count else "– | –"
        lines.append(f"| {function.op} | {span} | {aim} | {ours} | {peer} | {ours.at:.6g} |\n")
        print(lines[-1], end="", flush=True)
    lines.append("\n| every number of 16 bits | dlc float16 | dlc bfloat16 |\n|---|---:|---:|\n")
    for function in chosen:
        half, brain = measure_halves(function)
        lines.append(f"| {function.op} | {half:.3g} | {brain:.3g} |\n")
        print(lines[-1], end="", flush=True)
    if not args.only:
        lines.append("\n| many operands | aim | dlc | onnxruntime |\n|---|---:|---:|---:|\n")
        for name, our, their, limit in sums():
            missed += [name] * (our > limit)
            mark = " (missed)" if our > limit else ""
            lines.append(f"| {name} | {limit:g}{mark} | {our:.3g} | {their:.3g} |\n")
            print(lines[-1], end="", flush=True)
    if args.markdown:
        args.markdown.write_text("".join(lines))
    print(f"missed: {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
