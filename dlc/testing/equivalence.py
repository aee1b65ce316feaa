"""Rewrite a model into one that means the same: both must give the same results.

Source: the idea of equality saturation fuzzing, Zhou et al., PolyJuice (OOPSLA 2024).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Emit = Callable[..., str]
Detour = Callable[[random.Random, Emit, str, Array], str]


def rewrite(model: ModelProto, values: Mapping[str, Array], rng: random.Random) -> ModelProto:
    """The model with one to three detours: readers of a value read it after a round trip.

    Args:
        model: what to rewrite; it is not changed.
        values: what each value of the model is for some inputs: their shapes choose the detours.
        rng: chooses.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    for number in range(rng.randint(1, 3)):
        _detour(copy, values, rng, f"detour{number}")
    return copy


def _detour(
    model: ModelProto, values: Mapping[str, Array], rng: random.Random, prefix: str
) -> None:
    readers = [
        (node, i)
        for node in model.graph.node
        for i, name in enumerate(node.input)
        if name in values and not any(a.HasField("g") for a in node.attribute)
    ]
    if not readers:
        return
    node, i = rng.choice(readers)
    made: list[NodeProto] = []

    def emit(op: str, *operands: str | Array, **attributes: Any) -> str:
        names = []
        for operand in operands:
            if isinstance(operand, str):
                names.append(operand)
                continue
            names.append(f"{prefix}_{len(made)}_{len(names)}")
            model.graph.initializer.append(numpy_helper.from_array(operand, names[-1]))
        made.append(helper.make_node(op, names, [f"{prefix}_{len(made)}"], **attributes))
        return str(made[-1].output[0])

    name = node.input[i]
    choices = [d for kinds, d in DETOURS if values[name].dtype.kind in kinds]
    node.input[i] = rng.choice(choices)(rng, emit, name, values[name])
    at = list(model.graph.node).index(node)
    for offset, new in enumerate(made):
        model.graph.node.insert(at + offset, new)


def _add_nothing(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    return emit("Sub", name, np.zeros((), value.dtype))


def _times_one(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    return emit("Mul", name, np.ones((), value.dtype))


def _twice_negative(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    return emit("Neg", emit("Neg", name))


def _turn_and_back(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    if not value.ndim:
        return emit("Identity", name)
    order = list(range(value.ndim))
    rng.shuffle(order)
    back = [order.index(i) for i in range(value.ndim)]
    return emit("Transpose", emit("Transpose", name, perm=order), perm=back)


def _flat_and_back(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    shape = emit("Shape", name)
    return emit("Reshape", emit("Reshape", name, np.asarray([-1])), shape, allowzero=1)


def _deep_and_back(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    axes = np.asarray([rng.randint(0, value.ndim)])
    return emit("Squeeze", emit("Unsqueeze", name, axes), axes)


def _choose(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    return emit("Where", np.ones((), bool), name, name)


def _pad_and_cut(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    if not value.ndim:
        return emit("Identity", name)
    axis = rng.randrange(value.ndim)
    pads = [0] * (2 * value.ndim)
    pads[axis] = rng.randint(0, 2)
    pads[axis + value.ndim] = end = rng.randint(1, 2)
    padded = emit("Pad", name, np.asarray(pads, np.int64))
    bounds = ([pads[axis]], [-end], [axis])
    return emit("Slice", padded, *(np.asarray(b, np.int64) for b in bounds))


def _cut_and_join(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    if not value.ndim:
        return emit("Identity", name)
    axis = rng.randrange(value.ndim)
    at = rng.randint(0, value.shape[axis])
    ends = ([0], [at], [axis]), ([at], [1 << 40], [axis])
    parts = [emit("Slice", name, *(np.asarray(e, np.int64) for e in end)) for end in ends]
    return emit("Concat", *parts, axis=axis)


def _wide_and_back(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    to = int(helper.np_dtype_to_tensor_dtype(value.dtype))
    return emit("Cast", emit("Cast", name, to=11), to=to)


def _gather_all(rng: random.Random, emit: Emit, name: str, value: Array) -> str:
    if not value.ndim:
        return emit("Identity", name)
    axis = rng.randrange(value.ndim)
    return emit("Gather", name, np.arange(value.shape[axis]), axis=axis)


DETOURS: tuple[tuple[str, Detour], ...] = (
    ("f", _add_nothing),
    ("f", _times_one),
    ("f", _twice_negative),
    ("f", _wide_and_back),
    ("fiub", _turn_and_back),
    ("fiub", _flat_and_back),
    ("fiub", _deep_and_back),
    ("fiub", _choose),
    ("f", _pad_and_cut),
    ("fiub", _cut_and_join),
    ("fiub", _gather_all),
)
"""Round trips, by the kinds of element types they work on. Sizes are those of the given values."""
