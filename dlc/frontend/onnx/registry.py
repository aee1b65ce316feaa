"""Converters: functions whose signature is the schema of an ONNX operator.

Positional parameters are operands (a default of None makes one optional), keyword-only parameters
are attributes, and so are the keys of a `**attributes: Unpack[SomeTypedDict]`. What a node has and
the signature does not is refused by name, so nothing in a model is ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TypeVar, get_args, get_type_hints

import numpy as np

from dlc.core.errors import ModelError
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.model import OnnxGraph, OnnxNode
from dlc.graph.graph import Value
from dlc.graph.op import OPS, Op

Converter = Callable[..., Value | tuple[Value, ...]]
C = TypeVar("C", bound=Converter)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": int,
    "Array": np.ndarray,
    "OnnxGraph": OnnxGraph,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A converter and what its signature says."""

    fn: Converter
    required: int
    operands: int
    """How many operands have a parameter of their own."""
    variadic: bool
    """Whether any number of operands may follow; none of these may be absent."""
    attributes: dict[str, str]
    """The type of each attribute, as annotated."""
    needed: frozenset[str]
    """Attributes without a default."""
    numbers: dict[str, float]
    """Defaults that are no float32, rounded to one: as numbers that stand in a model are."""

    def why_not(self, node: OnnxNode) -> str:
        """Why the node's operands or attributes do not fit, or ""."""
        present = [i for i, name in enumerate(node.inputs, start=1) if name]
        if not self.variadic and present and present[-1] > self.operands:
            return f"operand {present[-1]} ('{node.inputs[present[-1] - 1]}') is not handled"
        if self.variadic and "" in node.inputs[self.operands : (present or [0])[-1]]:
            return "an operand is absent in the middle"
        for name, value in node.attributes.items():
            kind = self.attributes.get(name)
            if kind is None:
                return f"attribute '{name}' is not handled"
            if not _fits(value, kind):
                return f"attribute '{name}' has a value of type {type(value).__name__}, not {kind}"
        return ""

    def check_required(self, label: str, node: OnnxNode) -> None:
        """Refuse a node without what ONNX demands.

        Raises:
            ModelError: an operand or attribute is missing.
        """
        present = sum(map(bool, node.inputs[: self.required]))
        if present < self.required:
            reason = f"node '{node.label}': {node.operator} needs {self.required} operands"
            raise ModelError(model=label, reason=reason)
        if missing := self.needed - set(node.attributes):
            reason = f"node '{node.label}': {node.operator} needs the attribute '{min(missing)}'"
            raise ModelError(model=label, reason=reason)


CONVERTERS: dict[tuple[str, str], dict[int, Entry]] = {}


def converter(op_type: str, *, since: int, domain: str = "") -> Callable[[C], C]:
    """Declare how an ONNX operator becomes nodes, from one opset version on."""

    def declare(fn: C) -> C:
        versions = CONVERTERS.setdefault((domain, op_type), {})
        assert since not in versions, f"{op_type}-{since} is declared twice"
        versions[since] = _entry(fn)
        return fn

    return declare


def find(node: OnnxNode) -> Entry | None:
    """The newest converter that the node's opset allows; an operator of ours that is the same."""
    versions = CONVERTERS.get((node.domain, node.op_type), {})
    if fitting := [v for v in versions if v <= node.opset]:
        return versions[max(fitting)]
    if node.domain or versions:
        return None
    return _one_to_one().get(node.op_type)


def _entry(fn: Converter) -> Entry:
    parameters = list(inspect.signature(fn).parameters.values())[1:]  # without the context
    operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    attributes = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    types = {p.name: str(p.annotation) for p in attributes}
    needed = frozenset(p.name for p in attributes if p.default is p.empty)
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            (keys,) = get_args(get_type_hints(fn)[p.name])
            types |= {key: kind.__forward_arg__ for key, kind in keys.__annotations__.items()}
            needed |= keys.__required_keys__
    return Entry(
        fn,
        required=sum(p.default is p.empty for p in operands),
        operands=len(operands),
        variadic=any(p.kind is p.VAR_POSITIONAL for p in parameters),
        attributes=types,
        needed=needed,
        numbers=_numbers({p.name: p.default for p in attributes}),
    )


_ONE_TO_ONE: dict[str, Entry] = {}


def _one_to_one() -> dict[str, Entry]:
    """Entries of the operators that equal an ONNX operator."""
    if not _ONE_TO_ONE:
        _ONE_TO_ONE.update({op.onnx: _entry_of(op) for op in OPS.values() if op.onnx})
    return _ONE_TO_ONE


def _entry_of(op: type[Op]) -> Entry:
    def call_op(ctx: Context, *operands: Value, **attributes: object) -> Value:
        return ctx.call(op(**attributes), *operands)

    parameters = list(inspect.signature(op.infer).parameters.values())[1:]  # without self
    plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    attributes = {f.name: str(f.type) for f in fields(op)}  # type: ignore[arg-type]
    needed = (
        f.name
        for f in fields(op)  # type: ignore[arg-type]
        if f.default is MISSING and f.default_factory is MISSING
    )
    return Entry(
        call_op,
        required=sum(p.default is p.empty for p in plain),
        operands=len(plain),
        variadic=len(plain) < len(parameters),
        attributes=attributes,
        needed=frozenset(needed),
        numbers=_numbers({f.name: f.default for f in fields(op)}),  # type: ignore[arg-type]
    )


def _numbers(defaults: Mapping[str, object]) -> dict[str, float]:
    rounded = {n: float(np.float32(v)) for n, v in defaults.items() if isinstance(v, float)}
    return {name: value for name, value in rounded.items() if value != defaults[name]}


def _fits(value: object, kind: str) -> bool:
    kind = kind.removesuffix(" | None")
    if kind in _KINDS:
        return isinstance(value, _KINDS[kind])
    if not isinstance(value, tuple):
        return False
    item = float if "float" in kind else str if "str" in kind else int
    return all(isinstance(element, item) for element in value)
