"""Which element types of an operator dlc takes, and where it runs, tried on ONNX's own tests.

The node of a test is converted again with each type that ONNX's list for one of its operands or
results allows; constants among its inputs are converted along.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx

from dlc.codegen.cuda.emit import why_not_printable
from dlc.core.errors import DlcError
from dlc.core.target import Target
from dlc.core.types import DType
from dlc.frontend.onnx import import_model, load_model
from dlc.frontend.onnx.dtypes import DTYPES
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.lower import lower_graph
from dlc.graph.pass_ import PassContext, run_passes
from dlc.graph.pipeline import PLAIN
from dlc.schedule.gpu_program import why_not_on_gpu
from tests.frontend.node_suite import all_cases, as_array, frozen
from tests.frontend.operator_table import Tried

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview")
BODIES = frozenset({"Loop", "Scan", "SequenceMap", "If"})
"""What types these take is up to their bodies."""
NAMES = {
    f"tensor({onnx.helper.tensor_dtype_to_string(number).partition('.')[2].lower()})": number
    for number in DTYPES
}


def try_all() -> dict[tuple[str, str], Tried]:
    """Every operator of which ONNX has a test of one node."""
    found = {}
    for schema in onnx.defs.get_all_schemas():
        key = (schema.domain, schema.name)
        if schema.domain in DOMAINS and not schema.deprecated and _example(*key) is not None:
            found[key] = Tried(_elements(*key), _targets(*key))
    return found


def _elements(domain: str, name: str) -> str:
    """The types that are taken, and those that are not, for each type of the schema."""
    if name in BODIES:
        return "what its body takes"
    taken: dict[str, list[DType]] = {}
    refused: dict[str, list[DType]] = {}
    for trial in trials(domain, name):
        for which, wanted in ((taken, True), (refused, False)):
            which.setdefault(trial.variable, []).extend([trial.dtype] * (trial.taken is wanted))
    texts = {
        variable: shortened(taken[variable])
        + (f", *not* {shortened(refused[variable])}" if refused[variable] else "")
        for variable in taken
    }
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{variable}: {text}" for variable, text in texts.items()) or "–"


_FAMILIES = (
    (DType.F16, DType.F32, DType.F64),
    (DType.BF16,),
    (DType.I2, DType.I4, DType.I8, DType.I16, DType.I32, DType.I64),
    (DType.U2, DType.U4, DType.U8, DType.U16, DType.U32, DType.U64),
)
_BYTES = (DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ)


def shortened(dtypes: Sequence[DType]) -> str:
    """A list of types; neighbours of a family are named by the first and the last, as `i8-64`."""
    words = [word for family in _FAMILIES for word in _runs(family, dtypes)]
    left = [d for d in DType if d in dtypes and not any(d in family for family in _FAMILIES)]
    if set(_BYTES) <= set(left):
        left = [d for d in left if d not in _BYTES]
        words.append("f8")
    return " ".join([*words, *map(str, left)])


def _runs(family: Sequence[DType], dtypes: Sequence[DType]) -> Iterator[str]:
    for held, run in itertools.groupby(family, lambda dtype: dtype in dtypes):
        group = list(run)
        if held:
            yield f"{group[0]}-{group[-1].bits}" if len(group) > 1 else str(group[0])


def _targets(domain: str, name: str) -> str:
    """Where an operator's test runs, with its first operand as data and constants else."""
    model, given, _ = _example(domain, name) or (None, {}, 0)
    assert model is not None, "there is a test"
    for kept in (1, len(given)):
        try:
            graph = import_model(load_model(frozen(model, given, kept))).graph
            program, _ = lower_graph(run_passes(graph, PLAIN, PassContext(target=Target())))
        except DlcError:
            continue
        on_host = why_not_on_gpu(program) or any(map(why_not_printable, program.kernels))
        return "CPU" if on_host else "CPU, GPU"
    return "–"


@dataclass(frozen=True)
class Trial:
    """A node with one of its types changed."""

    variable: str
    """The schema's name of the type, as `T`."""
    dtype: DType
    taken: bool


def trials(domain: str, name: str) -> Iterator[Trial]:
    """Every type that ONNX's list allows for an operand or a result, tried by itself."""
    schema: Any = onnx.defs.get_schema(name, domain=domain)
    example = _example(domain, name)
    if example is None:
        return
    model, given, kept = example
    formal = _variables(schema, model.graph.node[0])
    lists = {
        c.type_param_str: [NAMES[t] for t in c.allowed_type_strs if t in NAMES]
        for c in schema.type_constraints
    }
    for constraint in schema.type_constraints:
        variable = constraint.type_param_str
        names = {n for n, v in formal.items() if v == variable}
        numbers = sorted(lists[variable])
        if not names or not numbers:
            continue
        for number in numbers:
            taken = _taken(model, given, kept, number, names) or _taken(
                model, given, kept, number, {n for n in formal if number in lists[formal[n]]}
            )
            yield Trial(variable, DTYPES[number], taken)


def _taken(
    model: onnx.ModelProto, given: dict[str, Any], kept: int, number: int, names: set[str]
) -> bool:
    """Whether a model is converted if some of its values have another type."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    arrays = dict(given)
    dtype = DTYPES[number]
    for value in (*changed.graph.input, *changed.graph.output):
        if value.name in names and value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = number
            if isinstance(arrays.get(value.name), np.ndarray):
                arrays[value.name] = _converted(arrays[value.name], dtype)
    for attribute in changed.graph.node[0].attribute:
        if attribute.name in ("to", "dtype", "output_dtype") and names & set(
            changed.graph.node[0].output
        ):
            attribute.i = number
    try:
        import_model(load_model(frozen(changed, arrays, kept)))
    except DlcError:
        return False
    return True


def _converted(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.STR:
        return array.astype(str).astype(object)
    if array.dtype == object:
        return np.zeros(array.shape, NUMPY_DTYPES[dtype])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return array.astype(np.float64).astype(NUMPY_DTYPES[dtype])


@cache
def _cases() -> dict[tuple[str, str], list[Any]]:
    """The tests that have one node, by its operator."""
    found: dict[tuple[str, str], list[Any]] = {}
    for case in all_cases():
        nodes = case.model.graph.node
        if len(nodes) == 1 and not case.model.functions:
            found.setdefault((nodes[0].domain, nodes[0].op_type), []).append(case)
    return found


@cache
def _example(domain: str, name: str) -> tuple[onnx.ModelProto, dict[str, Any], int] | None:
    """A test that is converted, its inputs, and how many of them stay inputs."""
    for case in _cases().get((domain, name), []):
        inputs = case.data_sets[0][0]
        pairs = zip((v.name for v in case.model.graph.input), inputs, strict=True)
        given = {name: as_array(v) for name, v in pairs}
        for kept in (len(given), 1):
            try:
                import_model(load_model(frozen(case.model, given, kept)))
                return case.model, given, kept
            except DlcError:
                continue
    return None


def _variables(schema: Any, node: onnx.NodeProto) -> dict[str, str]:
    """The schema's type of each value that a node reads or makes."""
    found: dict[str, str] = {}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for i, value in enumerate(names):
            if value:
                type_ = formals[min(i, len(formals) - 1)].type_str
                if "(" not in type_:  # else the type is fixed
                    found[value] = type_
    return found
