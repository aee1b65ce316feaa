"""Make a failing model small: as few nodes, attributes and elements as still fail the same way.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (IEEE TSE 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from dlc.testing.check import _onnx_reference, _values
from dlc.testing.draft import captured
from dlc.testing.generate import Sample

Array = np.ndarray[Any, Any]
Fails = Callable[[Sample], bool]


def reduce_sample(sample: Sample, fails: Fails, tries: int = 400) -> Sample:
    """The smallest model found that still fails; `fails` is asked at most `tries` times."""
    left = tries
    changed = True
    while changed and left > 0:
        changed = False
        for candidate in _smaller(sample):
            if left <= 0:
                break
            left -= 1
            if fails(candidate):
                sample, changed = candidate, True
                break
    return sample


def _smaller(sample: Sample) -> Iterator[Sample]:
    """Smaller models, the smallest first."""
    if sample.others:
        yield replace(sample, others=())
    for make in (_one_result, _cut_half, _cut_node, _drop_attribute, _close_sizes, _constants_out):
        yield from (s for s in make(sample) if _is_valid(s))
    yield from (s for s in _fewer_elements(sample) if _is_valid(s))


def _is_valid(sample: Sample) -> bool:
    return _onnx_reference(sample.model, sample.feeds) is not None


def _copy(model: ModelProto) -> ModelProto:
    found = ModelProto()
    found.CopyFrom(model)
    return found


def _one_result(sample: Sample) -> Iterator[Sample]:
    outputs = list(sample.model.graph.output)
    if len(outputs) < 2:
        return
    for output in outputs:
        model = _copy(sample.model)
        del model.graph.output[:]
        model.graph.output.append(output)
        yield _tidied(sample, model, sample.feeds)


def _cut_half(sample: Sample) -> Iterator[Sample]:
    nodes = sample.model.graph.node
    if len(nodes) > 3:
        yield from _cut(sample, set(range(len(nodes) // 2)))


def _cut_node(sample: Sample) -> Iterator[Sample]:
    for i in range(len(sample.model.graph.node)):
        yield from _cut(sample, {i})


def _cut(sample: Sample, gone: set[int]) -> Iterator[Sample]:
    """Make the results of some nodes inputs; or, of the last nodes, drop them."""
    values = _values(sample)
    model = _copy(sample.model)
    kept = [n for i, n in enumerate(model.graph.node) if i not in gone]
    made = {name for i in gone for name in model.graph.node[i].output if name}
    read = {name for node in kept for name in (*node.input, *captured(node))}
    if not kept or not made & read <= values.keys():
        return
    del model.graph.node[:]
    model.graph.node.extend(kept)
    results = [v for v in model.graph.output if v.name not in made]
    last = {name for node in kept for name in node.output if name} - read
    names = {v.name for v in results}
    results += [_info(n, values[n]) for n in sorted(last - names) if n in values]
    del model.graph.output[:]
    model.graph.output.extend(results)
    feeds = dict(sample.feeds)
    for name in sorted(made & read):
        model.graph.input.append(_info(name, values[name]))
        feeds[name] = values[name]
    if results:
        yield _tidied(sample, model, feeds)


def _drop_attribute(sample: Sample) -> Iterator[Sample]:
    for i, node in enumerate(sample.model.graph.node):
        for j in range(len(node.attribute)):
            model = _copy(sample.model)
            del model.graph.node[i].attribute[j]
            yield replace(sample, model=model)


def _close_sizes(sample: Sample) -> Iterator[Sample]:
    model = _copy(sample.model)
    changed = False
    for value in model.graph.input:
        shape = sample.feeds[value.name].shape
        for dim, n in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            changed = changed or dim.HasField("dim_param")
            dim.dim_value = n
    if changed:
        yield replace(sample, model=model)


def _constants_out(sample: Sample) -> Iterator[Sample]:
    """Make a constant an input."""
    for i, tensor in enumerate(sample.model.graph.initializer):
        model = _copy(sample.model)
        array = numpy_helper.to_array(tensor)
        del model.graph.initializer[i]
        model.graph.input.append(_info(tensor.name, array))
        yield replace(sample, model=model, feeds={**sample.feeds, tensor.name: array})


def _fewer_elements(sample: Sample) -> Iterator[Sample]:
    """Take a size out of the model wherever it is a size of an input or constant, or halve it."""
    arrays = {**sample.feeds, **_constants(sample.model)}
    sizes = sorted({n for a in arrays.values() for n in a.shape if n > 1}, reverse=True)
    for size in sizes:
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
            if smaller < size:
                yield _resized(sample, arrays, size, smaller)
    for name, array in sample.feeds.items():
        if array.dtype.kind == "f" and len(np.unique(array)) > 2:
            yield replace(sample, feeds={**sample.feeds, name: np.sign(array)})


def _resized(sample: Sample, arrays: dict[str, Array], size: int, smaller: int) -> Sample:
    cut = {
        name: array[tuple(slice(smaller if n == size else None) for n in array.shape)]
        for name, array in arrays.items()
    }
    model = _copy(sample.model)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == size:
                dim.dim_value = smaller
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(cut[tensor.name], tensor.name))
    for value in model.graph.output:
        value.CopyFrom(_free(value))
    feeds = {name: np.ascontiguousarray(cut[name]) for name in sample.feeds}
    return replace(sample, model=model, feeds=feeds)


def _constants(model: ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _tidied(sample: Sample, model: ModelProto, feeds: dict[str, Array]) -> Sample:
    """Without nodes, inputs and constants that no result needs."""
    graph = model.graph
    needed = {v.name for v in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= {n for n in node.input if n} | captured(node)
    nodes = kept[::-1]
    inputs = [v for v in graph.input if v.name in needed]
    constants = [t for t in graph.initializer if t.name in needed]
    for field, values in (
        (graph.node, nodes),
        (graph.input, inputs),
        (graph.initializer, constants),
    ):
        copies = [type(v).FromString(v.SerializeToString()) for v in values]
        del field[:]
        field.extend(copies)
    used = {v.name: feeds[v.name] for v in graph.input}
    return replace(sample, model=model, feeds=used, others=())


def _info(name: str, array: Array) -> Any:
    kind = int(helper.np_dtype_to_tensor_dtype(array.dtype))
    return helper.make_tensor_value_info(name, kind, array.shape)


def _free(value: Any) -> Any:
    type_ = value.type.tensor_type
    return helper.make_tensor_value_info(value.name, type_.elem_type, [None] * len(type_.shape.dim))
