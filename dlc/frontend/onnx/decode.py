"""Protobuf messages to plain data, every claim of the file checked.

No other module but `load`, `tensors` and `fallback` sees protobuf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorShapeProto,
    ValueInfoProto,
)

from dlc.core.errors import LimitError, ModelError
from dlc.frontend.onnx.dtypes import DTYPES, elem_type_name
from dlc.frontend.onnx.inline import inline_functions
from dlc.frontend.onnx.limits import Limits
from dlc.frontend.onnx.model import (
    Attribute,
    FunctionKey,
    OnnxFunction,
    OnnxGraph,
    OnnxModel,
    OnnxNode,
    OnnxValue,
    Reference,
    Unreadable,
)
from dlc.frontend.onnx.order import check_names, in_order, without_repeats
from dlc.frontend.onnx.tensors import TensorReader
from dlc.graph.op import Array

LATEST_OPSET = 28  # ai.onnx as of onnx 1.23
_DOMAIN_ALIASES = {"ai.onnx": ""}


class Decoder:
    """Protobuf messages of one model to plain data."""

    def __init__(
        self,
        label: str,
        tensors: TensorReader,
        limits: Limits,
        weights: Mapping[int, Array] | None = None,
    ) -> None:
        """`weights` are the raw data of initializers of the model's graph, by position."""
        self.label = label
        self.tensors = tensors
        self.limits = limits
        self.weights = weights or {}
        self.nodes = 0

    def model(self, proto: ModelProto) -> OnnxModel:
        """A whole model, functions inlined, nodes in order."""
        if proto.ir_version < 1:
            raise ModelError(model=self.label, reason="not an ONNX model: it has no ir_version")
        opsets = self.opsets(proto.opset_import) or {"": 1}
        if not proto.opset_import and proto.ir_version >= 3:  # before, there was one opset
            raise ModelError(model=self.label, reason="not an ONNX model: it states no opset")
        if (version := opsets.get("", 1)) > LATEST_OPSET:
            reason = f"opset {version} is newer than the newest that dlc knows, {LATEST_OPSET}"
            raise ModelError(model=self.label, reason=reason)
        if len(proto.functions) > self.limits.functions:
            raise self.limit(f"{len(proto.functions)} functions, above {self.limits.functions}")
        functions: dict[FunctionKey, OnnxFunction] = {}
        for function in proto.functions:
            key = (_domain(function.domain), function.name)
            if key in functions:
                raise self.bad(f"function '{function.name}' is defined twice")
            functions[key] = self.function(function, opsets)
        graph = self.graph(proto.graph, opsets, 1)
        if functions:
            graph = inline_functions(self.label, graph, functions, self.limits)
        graph = without_repeats(self.label, graph)
        check_names(self.label, graph)
        graph = in_order(self.label, graph)
        return OnnxModel(
            label=self.label,
            graph=graph,
            ir_version=proto.ir_version,
            opsets=opsets,
            producer=f"{proto.producer_name} {proto.producer_version}".strip(),
            metadata={entry.key: entry.value for entry in proto.metadata_props},
        )

    def opsets(self, imports: Iterable[object]) -> dict[str, int]:
        """Domain -> version."""
        found: dict[str, int] = {}
        for entry in imports:
            domain, version = _domain(getattr(entry, "domain", "")), getattr(entry, "version", 0)
            if version < 1:
                raise self.bad(f"opset {version} of domain '{domain}' does not exist")
            found[domain] = max(found.get(domain, 0), version)
        return found

    def function(self, proto: FunctionProto, model_opsets: Mapping[str, int]) -> OnnxFunction:
        """A function of the model."""
        opsets = {**model_opsets, **self.opsets(proto.opset_import)}
        return OnnxFunction(
            name=proto.name,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes=tuple(proto.attribute),
            defaults={a.name: self.attribute(a, opsets, 1) for a in proto.attribute_proto},
            nodes=tuple(self.node(node, opsets, 1) for node in proto.node),
        )

    def graph(self, proto: GraphProto, opsets: Mapping[str, int], depth: int) -> OnnxGraph:
        """A graph, at a depth of nesting."""
        if depth > self.limits.nesting:
            raise self.limit(f"graphs are nested more than {self.limits.nesting} deep")
        if not all(v.name for v in proto.output):
            raise self.bad(f"an output of graph '{proto.name}' has no name")
        return OnnxGraph(
            name=proto.name,
            inputs=tuple(self.value(v) for v in proto.input),
            outputs=tuple(self.value(v) for v in proto.output),
            nodes=tuple(self.node(node, opsets, depth) for node in proto.node),
            constants=self.constants(proto, self.weights if depth == 1 else {}),
            values={v.name: self.value(v) for v in proto.value_info},
        )

    def constants(
        self, proto: GraphProto, weights: Mapping[int, Array]
    ) -> dict[str, Array | Unreadable]:
        """The initializers of a graph, by name."""
        stored = (*proto.initializer, *(sparse.values for sparse in proto.sparse_initializer))
        names = [tensor.name for tensor in stored]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise self.bad(f"constant '{twice[0]}' is defined twice")
        dense = [self.tensors.read(t, weights.get(i)) for i, t in enumerate(proto.initializer)]
        sparse = map(self.tensors.read_sparse, proto.sparse_initializer)
        return dict(zip(names, [*dense, *sparse], strict=True))

    def value(self, proto: ValueInfoProto) -> OnnxValue:
        """A declared value."""
        declared = proto.type
        if optional := declared.WhichOneof("value") == "optional_type":
            declared = declared.optional_type.elem_type
        if sequence := declared.WhichOneof("value") == "sequence_type":
            declared = declared.sequence_type.elem_type
        kind = declared.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            return OnnxValue(proto.name, Unreadable(f"it is a {str(kind)[:-5]}, no tensor"), None)
        tensor = declared.tensor_type
        dtype = DTYPES.get(tensor.elem_type)
        if not tensor.HasField("shape"):
            dims = None
        else:
            if len(tensor.shape.dim) > self.limits.rank:
                raise self.limit(f"'{proto.name}' has rank {len(tensor.shape.dim)}")
            dims = tuple(map(_dim, tensor.shape.dim))
        name = elem_type_name(tensor.elem_type)
        kept = dtype or Unreadable(f"element type {name}")
        return OnnxValue(proto.name, kept, dims, sequence, optional)

    def node(self, proto: NodeProto, opsets: Mapping[str, int], depth: int) -> OnnxNode:
        """One call of an operator."""
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise self.limit(f"more than {self.limits.nodes} nodes")
        if not proto.op_type:
            raise self.bad(f"node '{proto.name}' has no operator")
        domain = _domain(proto.domain)
        attributes: dict[str, Attribute] = {}
        for attribute in proto.attribute:
            if attribute.name in attributes:
                raise self.bad(
                    f"node '{proto.name}' has the attribute '{attribute.name}' more than once"
                )
            attributes[attribute.name] = self.attribute(attribute, opsets, depth)
        return OnnxNode(
            name=proto.name,
            domain=domain,
            op_type=proto.op_type,
            opset=opsets.get(domain, 1),
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes=attributes,
        )

    def attribute(self, proto: AttributeProto, opsets: Mapping[str, int], depth: int) -> Attribute:
        """The value of an attribute."""
        if proto.ref_attr_name:
            return Reference(proto.ref_attr_name)
        self.check_length(proto)
        match proto.type or _guessed_type(proto):
            case AttributeProto.GRAPH:
                return self.graph(proto.g, opsets, depth + 1)
            case AttributeProto.TENSOR:
                return self.tensors.read(proto.t)
            case AttributeProto.SPARSE_TENSOR:
                return self.tensors.read_sparse(proto.sparse_tensor)
            case kind if kind in _PLAIN:
                return _PLAIN[kind](proto)
            case kind:
                return Unreadable(f"attributes of type {kind} are not supported")

    def check_length(self, proto: AttributeProto) -> None:
        """Refuse an attribute that is too long."""
        numbers, letters = len(proto.floats) + len(proto.ints), map(len, (proto.s, *proto.strings))
        if (length := numbers + sum(letters)) > self.limits.attribute_elems:
            raise self.limit(f"attribute '{proto.name}' has length {length}")

    def bad(self, reason: str) -> ModelError:
        """The error for a model that is not valid."""
        return ModelError(model=self.label, reason=reason)

    def limit(self, reason: str) -> LimitError:
        """The error for a model that asks for too much."""
        return LimitError(what=self.label, reason=reason)


def _domain(domain: str) -> str:
    return _DOMAIN_ALIASES.get(domain, domain)


def _dim(dim: TensorShapeProto.Dimension) -> str | int | None:
    """A name, a number, or None where nobody tells."""
    if dim.HasField("dim_param"):
        return dim.dim_param
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


_PLAIN: Mapping[int, Callable[[AttributeProto], Attribute]] = {
    AttributeProto.FLOAT: lambda proto: float(proto.f),
    AttributeProto.INT: lambda proto: int(proto.i),
    AttributeProto.STRING: lambda proto: _text(proto.s),
    AttributeProto.FLOATS: lambda proto: tuple(map(float, proto.floats)),
    AttributeProto.INTS: lambda proto: tuple(map(int, proto.ints)),
    AttributeProto.STRINGS: lambda proto: tuple(
        s.decode("utf-8", "replace") for s in proto.strings
    ),
}
"""Attributes of numbers and texts, by type."""


def _guessed_type(proto: AttributeProto) -> int:
    """The type of an attribute that does not state it, as files before IR version 2 do not."""
    fields = {
        "f": AttributeProto.FLOAT,
        "i": AttributeProto.INT,
        "s": AttributeProto.STRING,
        "t": AttributeProto.TENSOR,
        "g": AttributeProto.GRAPH,
    }
    for field, kind in fields.items():
        if proto.HasField(field):
            return kind
    if proto.floats:
        return AttributeProto.FLOATS
    if proto.strings:
        return AttributeProto.STRINGS
    return AttributeProto.INTS
