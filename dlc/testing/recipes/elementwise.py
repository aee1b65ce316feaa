"""Operators on each element by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlc.testing.draft import Draft
from dlc.testing.recipes.recipe import Recipe, axis_of

_ROUNDING = (
    "Exp", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign", "Sin", "Cos", "Sinh", "Cosh", "Asinh",
    "Atan", "Tan", "Selu", "Elu", "Celu", "Gelu", "Mish", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Swish",
)  # fmt: skip
_EXACT = ("Abs", "Neg", "Relu", "Identity", "Sign")
_ROUND_TO_INT = ("Ceil", "Floor", "Round")
_DOMAINS = {
    "Log": (0.25, 4), "Sqrt": (0, 4), "Reciprocal": (0.5, 3), "Acos": (-1, 1), "Asin": (-1, 1),
    "Acosh": (1, 4), "Atanh": (-0.75, 0.75),
}  # fmt: skip
_ALPHA = ("Elu", "Celu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu", "Swish")


def _unary(draft: Draft, op: str) -> None:
    attributes: dict[str, Any] = {}
    if op == "Swish" and draft.opset < 24:
        op = "Sigmoid"
    if op in _ALPHA and draft.rng.random() < 0.5:
        attributes["alpha"] = draft.rng.choice((0.5, 1.5, 0.25))
    if op == "Gelu":
        attributes["approximate"] = draft.rng.choice(("none", "tanh"))
    draft.add(op, [draft.pick()], **attributes)


def _exact(draft: Draft, op: str) -> None:
    draft.add(op, [draft.pick("ffi")], exact=True)


def _jump(draft: Draft, op: str) -> None:
    draft.add(op, [draft.pick(exact=True)], exact=True)


def _domain(draft: Draft, op: str) -> None:
    low, high = _DOMAINS[op]
    fits = [v for v in draft.values if v.kind == "f" and v.array.size]
    # Not at an end, where a rounding before would decide: Asin has no largest slope near 1.
    fits = [v for v in fits if v.array.min() >= low + 0.05 and v.array.max() <= high - 0.05]
    if fits and draft.rng.random() < 0.7:
        draft.add(op, [draft.rng.choice(fits)])
        return
    dtype = draft.rng.choice(("float32", "float32", "float64"))
    draft.add(op, [draft.make(dtype, draft.shape(), low, high)])


def _binary(draft: Draft, op: str) -> None:
    a = draft.pick("fffi")
    b = draft.like(a)
    a, b = (a, b) if draft.rng.random() < 0.5 else (b, a)
    draft.add(op, [a, b], exact=op in ("Max", "Min"))


def _variadic(draft: Draft, op: str) -> None:
    a = draft.pick("f")
    draft.add(op, [a, *(draft.like(a) for _ in range(draft.rng.randint(0, 3)))])


def _divide(draft: Draft, op: str) -> None:
    a = draft.pick("fi", exact=op == "Mod")
    b = draft.make(a.array.dtype.name, draft.like(a).shape, 1, 3)
    if op == "Mod":
        draft.add(op, [a, b], exact=True, fmod=int(a.kind == "f" or draft.rng.random() < 0.5))
    else:
        draft.add(op, [a, b])


def _pow(draft: Draft, op: str) -> None:
    a = draft.make("float32", draft.shape(), 0.25, 3)
    if draft.rng.random() < 0.5:
        a = draft.pick(dtypes=("float32",))
        b = draft.constant(np.asarray(draft.rng.choice((2.0, 3.0, 1.0, 0.0)), np.float32))
    else:
        b = draft.like(a)
    draft.add(op, [a, b])


def _compare(draft: Draft, op: str) -> None:
    """Of whole numbers half of the time: some of them are equal."""
    a = draft.pick("fi", exact=True)
    if draft.rng.random() < 0.5:
        a = draft.add("Floor" if a.kind == "f" else "Identity", [a], exact=True)[0]
        bound = float(draft.rng.randint(-2, 2))
        b = draft.make(a.array.dtype.name, draft.like(a).shape, bound, bound + 1)
        b = draft.add("Floor", [b], exact=True)[0] if a.kind == "f" else b
    else:
        fits = [v for v in draft.values if v.exact and v.array.dtype == a.array.dtype]
        b = draft.rng.choice([v for v in fits if v.shape == a.shape])
    draft.add(op, [a, b])


def _logic(draft: Draft, op: str) -> None:
    a = draft.pick("b")
    draft.add(op, [a] if op == "Not" else [a, draft.like(a)])


def _bits(draft: Draft, op: str) -> None:
    a = draft.pick("i")
    draft.add(op, [a] if op == "BitwiseNot" else [a, draft.like(a)])


def _shift(draft: Draft, op: str) -> None:
    dtype = draft.rng.choice(("uint8", "uint32", "uint64", "uint16"))
    shape = draft.shape()
    a = draft.make(dtype, shape, 0, 100)
    direction = draft.rng.choice(("LEFT", "RIGHT"))
    draft.add(op, [a, draft.make(dtype, shape, 0, 7)], direction=direction)


def _where(draft: Draft, op: str) -> None:
    a = draft.pick("fib")
    cond = draft.make("bool", draft.like(a).shape)
    draft.add(op, [cond, a, draft.like(a)], exact=True)


def _clip(draft: Draft, op: str) -> None:
    a = draft.pick("fi")
    bounds = [
        draft.data(np.asarray(v, a.array.dtype)) if draft.rng.random() < 0.8 else None
        for v in (0, 1)
    ]
    draft.add(op, [a, *bounds], exact=True)


def _prelu(draft: Draft, op: str) -> None:
    a = draft.pick()
    slope = [n if draft.rng.random() < 0.5 else 1 for n in a.shape]
    draft.add(op, [a, draft.make(a.array.dtype.name, slope)])


def _cast(draft: Draft, op: str) -> None:
    a = draft.pick("fib", exact=True)
    to = draft.rng.choice(("float32", "float64", "float16", "int32", "int64", "uint8", "bool"))
    if to == "uint8" and a.kind == "f":
        (a,) = draft.add("Abs", [a], exact=True)  # a negative float has no value as unsigned
    code = {
        "float32": 1,
        "float64": 11,
        "float16": 10,
        "int32": 6,
        "int64": 7,
        "uint8": 2,
        "bool": 9,
    }
    if op == "Cast":
        draft.add(op, [a], exact=True, to=code[to])
    else:
        draft.add(op, [a, draft.make(to, (1,), 0, 1)], exact=True)


def _test(draft: Draft, op: str) -> None:
    """Of values that mean something special, which only this node reads."""
    before = draft.special, len(draft.values)
    draft.special = True
    dtype = draft.rng.choice(("float32", "float64"))
    a = draft.make(dtype, draft.shape(smallest=1), constant=False)
    draft.special = before[0]
    if not draft.special:
        del draft.values[before[1] :]
    draft.add(op, [a])


def _cumulate(draft: Draft, op: str) -> None:
    a = draft.pick("f", smallest=1, dtypes=("float32", "float64"))
    if not a.rank:
        a = draft.make("float32", (5,))
    axis = draft.data(np.asarray(axis_of(draft, a.rank), np.int64))
    op = "CumSum" if draft.opset < 26 else op
    draft.add(op, [a, axis], exclusive=draft.rng.randint(0, 1), reverse=draft.rng.randint(0, 1))


def _dropout(draft: Draft, op: str) -> None:
    draft.add(op, [draft.pick()], outputs=draft.rng.randint(1, 2), exact=True)


def _shrink(draft: Draft, op: str) -> None:
    draft.add(op, [draft.pick(exact=True, dtypes=("float32",))], lambd=0.5, bias=0.25)


def _contrib(draft: Draft, op: str) -> None:
    name = op.removeprefix("com.microsoft:")
    a = draft.pick(dtypes=("float32",), smallest=1)
    if name == "BiasGelu":
        a = draft.make("float32", draft.shape(3, 1))
        draft.add(name, [a, draft.make("float32", a.shape[-1:])], domain="com.microsoft")
    else:
        draft.add(name, [a], domain="com.microsoft")


ELEMENTWISE = (
    Recipe(_ROUNDING, _unary, 4),
    Recipe(_EXACT, _exact, 2),
    Recipe(_ROUND_TO_INT, _jump),
    Recipe(tuple(_DOMAINS), _domain, 2),
    Recipe(("Add", "Sub", "Mul", "Max", "Min"), _binary, 7),
    Recipe(("Mean", "Sum"), _variadic),
    Recipe(("Div", "Mod"), _divide, 2),
    Recipe(("Pow",), _pow),
    Recipe(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _compare, 2),
    Recipe(("And", "Or", "Xor", "Not"), _logic),
    Recipe(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), _bits),
    Recipe(("BitShift",), _shift, 0.5),
    Recipe(("Where",), _where, 1.5),
    Recipe(("Clip",), _clip),
    Recipe(("PRelu",), _prelu),
    Recipe(("ThresholdedRelu",), _jump, 0.3),
    Recipe(("Shrink",), _shrink, 0.3),
    Recipe(("Cast", "CastLike"), _cast, 2),
    Recipe(("IsNaN", "IsInf"), _test, 0.5),
    Recipe(("CumSum", "CumProd"), _cumulate),
    Recipe(("Dropout",), _dropout, 0.5),
    Recipe(
        tuple(f"com.microsoft:{n}" for n in ("Gelu", "FastGelu", "QuickGelu", "BiasGelu")),
        _contrib,
        0.7,
    ),
)
