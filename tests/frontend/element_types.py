"""Which element types of an operator dlc takes, and where it runs, tried on models of tests.

The models are ONNX's own tests and those of dlc. Each is converted again with each type that the
list of ONNX, or of onnxruntime for its own operators, allows for an operand or a result; constants
among its inputs are converted along. A type is taken if it is in one of the models.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx

from dlc.codegen.cuda.emit import why_not_printable
from dlc.core.errors import DlcError
from dlc.core.target import Gpu, Target
from dlc.core.types import DType
from dlc.frontend.onnx import import_model, load_model
from dlc.frontend.onnx.dtypes import DTYPES
from dlc.frontend.onnx.registry import CONVERTERS
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.lower import lower_graph
from dlc.graph.pass_ import PassContext, run_passes
from dlc.graph.pipeline import PLAIN
from dlc.schedule.gpu_program import why_not_on_gpu
from tests.frontend.node_suite import all_cases, as_array, frozen
from tests.frontend.operator_table import Tried
from tests.frontend.recorded_models import recorded

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "com.microsoft")
BODIES = frozenset({"Loop", "Scan", "SequenceMap", "If"})
"""What types these take is up to their bodies."""
NAMES = {
    f"tensor({onnx.helper.tensor_dtype_to_string(number).partition('.')[2].lower()})": number
    for number in DTYPES
}


@dataclass(frozen=True)
class Example:
    """A model that is converted, its inputs, and how many of them stay inputs."""

    model: onnx.ModelProto
    given: dict[str, Any]
    kept: int


def try_all() -> dict[tuple[str, str], Tried]:
    """Every operator of which there is an example."""
    keys = {(s.domain, s.name) for s in onnx.defs.get_all_schemas()} | CONVERTERS.keys()
    return {
        key: Tried(_elements(*key), _targets(*key))
        for key in sorted(keys)
        if key[0] in DOMAINS and _examples(*key)
    }


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
    told = "; ".join(f"{variable}: {text}" for variable, text in texts.items() if text)
    return told or _fixed(domain, name) or "–"


def _fixed(domain: str, name: str) -> str:
    """The types of operands and results that have but one each."""
    schema = _schema(domain, name)
    formals = (*schema.inputs, *schema.outputs) if schema is not None else ()
    kinds = {NAMES[type_] for type_ in map(_type_text, formals) if type_ in NAMES}
    return shortened([DTYPES[number] for number in kinds])


def _type_text(formal: Any) -> str:
    return str(formal.type_str if hasattr(formal, "type_str") else formal.typeStr)


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
    """Where an operator's example runs, with its first operand as data and constants else."""
    gpu = Target(backend="cuda", gpu=Gpu())
    for example in _examples(domain, name):
        for kept in sorted({min(1, example.kept), example.kept}):
            try:
                model = load_model(frozen(example.model, example.given, kept))
                program, _ = lower_graph(
                    run_passes(import_model(model).graph, PLAIN, PassContext(target=gpu))
                )
            except (DlcError, KeyError):
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
    """Every type that the list allows for an operand or a result, tried by itself."""
    schema = _schema(domain, name)
    examples = _examples(domain, name)
    if schema is None:
        return
    for constraint in schema.type_constraints:
        variable = constraint.type_param_str
        for number in sorted(_allowed(constraint)):
            tried = [_tried(schema, example, variable, number, name) for example in examples]
            if any(found is not None for found in tried):
                yield Trial(variable, DTYPES[number], any(tried))


def _schema(domain: str, name: str) -> Any:
    """ONNX's, or onnxruntime's; both have the same fields, the types' names aside."""
    if onnx.defs.has(name, domain):
        return onnx.defs.get_schema(name, domain=domain)
    return _schemas_of_onnxruntime().get((domain, name))


@cache
def _schemas_of_onnxruntime() -> dict[tuple[str, str], Any]:
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    return {(s.domain, s.name): s for s in get_all_operator_schema()}


def _allowed(constraint: Any) -> list[int]:
    """The element types of a list, those of sequences and optionals included."""
    kinds = (re.search(r"tensor\([^()]*\)", text) for text in constraint.allowed_type_strs)
    return list({NAMES[kind[0]] for kind in kinds if kind and kind[0] in NAMES})


def _tried(schema: Any, example: Example, variable: str, number: int, name: str) -> bool | None:
    """Whether a type is taken in an example; None where nothing in it has the type's name."""
    nodes = example.model.graph.node
    if len(nodes) > 1:
        alike = _like_the_first(example.model)
        return _taken(example, number, alike) if alike else None
    formal = _variables(schema, nodes[0])
    names = {n for n, v in formal.items() if v == variable}
    if not names:
        return None
    lists = {c.type_param_str: _allowed(c) for c in schema.type_constraints}
    together = {n for n in formal if number in lists.get(formal[n], ())}
    return _taken(example, number, names) or _taken(example, number, together)


def _like_the_first(model: onnx.ModelProto) -> set[str]:
    """The inputs and outputs of the type of the first input."""
    values = [v for v in (*model.graph.input, *model.graph.output) if v.type.tensor_type.elem_type]
    return {
        v.name
        for v in values
        if v.type.tensor_type.elem_type == values[0].type.tensor_type.elem_type
    }


def _taken(example: Example, number: int, names: set[str]) -> bool:
    """Whether a model is converted if some of its values have another type."""
    changed = onnx.ModelProto()
    changed.CopyFrom(example.model)
    arrays = dict(example.given)
    dtype = DTYPES[number]
    for value in (*changed.graph.input, *changed.graph.output):
        if value.name in names and value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = number
            if isinstance(arrays.get(value.name), np.ndarray):
                arrays[value.name] = _converted(arrays[value.name], dtype)
    for attribute in (
        a for n in changed.graph.node if n.op_type == "SequenceEmpty" for a in n.attribute
    ):
        attribute.i = number
    if names & set(changed.graph.node[0].output):
        _say_type(changed.graph.node[0], number)
    try:
        import_model(load_model(frozen(changed, arrays, example.kept)))
    except DlcError:
        return False
    return True


def _say_type(node: onnx.NodeProto, number: int) -> None:
    """Have the attributes of a node say the type of its output, where they do."""
    given = {a.name: a for a in node.attribute}
    if onnx.defs.has(node.op_type, node.domain):
        known = onnx.defs.get_schema(node.op_type, node.domain).attributes
        for name in {"output_datatype", "stash_type"} & known.keys() - given.keys():
            node.attribute.append(onnx.helper.make_attribute(name, number))
    for name in given.keys() & {"to", "dtype", "output_dtype", "output_datatype", "stash_type"}:
        given[name].i = number
    if "value" in given and node.op_type in ("Constant", "ConstantOfShape"):
        array = _converted(onnx.numpy_helper.to_array(given["value"].t), DTYPES[number])
        given["value"].t.CopyFrom(onnx.numpy_helper.from_array(array))


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
def _recorded() -> dict[tuple[str, str], list[Example]]:
    """Models of dlc's tests that have one node, by its operator; those of sequences have more."""
    found: dict[tuple[str, str], list[Example]] = {}
    for model in recorded():
        nodes = [n for n in model.graph.node if len(model.graph.node) == 1 or _of_sequences(n)]
        for key in dict.fromkeys((node.domain, node.op_type) for node in nodes):
            found.setdefault(key, []).append(_with_constants_as_inputs(model))
    return found


def _of_sequences(node: onnx.NodeProto) -> bool:
    return "Sequence" in node.op_type or "Optional" in node.op_type


def _with_constants_as_inputs(model: onnx.ModelProto) -> Example:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.initializer[:]
    given = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in given]
    del copy.graph.input[:]
    copy.graph.input.extend(inputs)
    copy.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in model.graph.initializer
    )
    return Example(copy, given, len(inputs))


@cache
def _examples(domain: str, name: str) -> tuple[Example, ...]:
    """A test of ONNX's that is converted, and what dlc's tests have."""
    found = [e for e in (_first_case(domain, name),) if e is not None]
    found += [e for e in _recorded().get((domain, name), []) if _converts(e)]
    return tuple(found)


def _first_case(domain: str, name: str) -> Example | None:
    for case in _cases().get((domain, name), []):
        inputs = case.data_sets[0][0]
        pairs = zip((v.name for v in case.model.graph.input), inputs, strict=True)
        given = {name: as_array(v) for name, v in pairs}
        for kept in (len(given), 1, 0):
            if _converts(example := Example(case.model, given, kept)):
                return example
    return None


def _converts(example: Example) -> bool:
    try:
        import_model(load_model(frozen(example.model, example.given, example.kept)))
    except DlcError:
        return False
    return True


def _variables(schema: Any, node: onnx.NodeProto) -> dict[str, str]:
    """The schema's type of each value that a node reads or makes."""
    found: dict[str, str] = {}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for i, value in enumerate(names):
            if value:
                type_ = _type_text(formals[min(i, len(formals) - 1)])
                if "(" not in type_:  # else the type is fixed
                    found[value] = type_
    return found
