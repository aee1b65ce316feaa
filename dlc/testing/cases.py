"""ONNX's own tests of single nodes, as the first nodes of a model: every operator there is."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from dlc.testing.draft import Draft, Spec

LARGEST_CASE = 20_000  # elements of an input


@dataclass(frozen=True, slots=True)
class Case:
    """A model of few nodes, and its inputs."""

    name: str
    model: ModelProto
    inputs: tuple[np.ndarray[Any, Any], ...]


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """The cases whose inputs are small arrays of numbers. Making them takes seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: list[Any] = list(collect_testcases(None))
    cases = []
    for case in found:
        arrays = [_as_array(value) for value in case.data_sets[0][0]]
        fits = all(a is not None and a.size <= LARGEST_CASE for a in arrays)
        outputs = all(v.type.HasField("tensor_type") for v in case.model.graph.output)
        if fits and outputs and not case.model.functions:
            cases.append(Case(case.name, case.model, tuple(a for a in arrays if a is not None)))
    return tuple(cases)


def add_case(draft: Draft) -> None:
    """Make a case the beginning of an empty model, at the opset of the case."""
    case = draft.rng.choice(all_cases())
    graph = case.model.graph
    domains = {o.domain: o.version for o in case.model.opset_import}
    if set(domains) - {""}:
        return
    before = draft.opset
    draft.opset = domains[""]
    for value, array in zip(graph.input, case.inputs, strict=True):
        draft.specs.append(_spec(value.name, array))
        draft._know(value.name, array, True)
    for tensor in graph.initializer:
        draft.constants[tensor.name] = numpy_helper.to_array(tensor)
    try:
        results = _evaluate(draft, case)
    except Exception:  # the reference cannot run some of its own cases
        _forget(draft, before)
        return
    if not all(_is_plain(a) for a in results):
        _forget(draft, before)
        return
    draft.nodes.extend(graph.node)
    for value, array in zip(graph.output, results, strict=True):
        draft._know(value.name, array, array.dtype.kind in "biu")


def _evaluate(draft: Draft, case: Case) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    feeds = dict(zip((v.name for v in case.model.graph.input), case.inputs, strict=True))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(case.model).run(None, feeds))


def _forget(draft: Draft, opset: int) -> None:
    draft.opset = opset
    draft.specs.clear()
    draft.values.clear()
    draft.constants.clear()


def _spec(name: str, array: np.ndarray[Any, Any]) -> Spec:
    return Spec(name, array.dtype.name, array.shape, 0, 0, array)


def _is_plain(array: object) -> bool:
    if not isinstance(array, np.ndarray):
        return False
    return array.dtype.kind in "fiub" and array.dtype.name in _NAMES


_NAMES = {
    np.dtype(t).name
    for t in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
}


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    return array if _is_plain(array) else None
