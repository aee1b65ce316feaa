"""Operators that ONNX defines by other operators: the definition, as nodes."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnx import helper

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.decode import Decoder
from dlc.frontend.onnx.dtypes import ELEM_TYPES
from dlc.frontend.onnx.external import ExternalData
from dlc.frontend.onnx.inline import expand
from dlc.frontend.onnx.limits import DEFAULT_LIMITS
from dlc.frontend.onnx.model import Attribute, OnnxGraph, OnnxNode, Unreadable
from dlc.frontend.onnx.reshape import each_repeated, reshape_to
from dlc.frontend.onnx.tensors import TensorReader
from dlc.graph.graph import Value
from dlc.te.expr import Const, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType


@dataclass(frozen=True, slots=True)
class Twin:
    """An operator of another domain that a standard one equals, where some attributes are neutral.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """

    opset: int
    neutral: Mapping[str, int]

    def standard(self, node: OnnxNode) -> OnnxNode:
        """The node of the standard operator."""
        attributes = {k: v for k, v in node.attributes.items() if k not in self.neutral}
        return replace(node, domain="", opset=self.opset, attributes=attributes)

    def why_not(self, node: OnnxNode) -> str:
        """Which attribute tells the operators apart, or nothing."""
        for name, neutral in self.neutral.items():
            if (found := node.attributes.get(name, neutral)) != neutral:
                return f"{name} = {found!r} is not handled"
        return ""


TWINS = {
    ("com.microsoft", "CausalConvWithState"): Twin(
        27,
        {
            "channels_last": 0, "dilation": 1, "input_channel_offset": 0, "input_channels": 0,
            "ndim": 1, "state_channels_last": -1, "state_length": 0, "state_update_capacity": 0,
            "state_window": 0,
        },
    ),
    ("com.microsoft", "LinearAttention"): Twin(27, {"state_window": 0}),
}  # fmt: skip


def as_standard(ctx: Context, values: MutableMapping[str, Any], node: OnnxNode) -> OnnxNode:
    """The node of the standard operator that a node's equals, if there is one.

    `values` are those that nodes have made, by name.
    """
    twin = TWINS.get((node.domain, node.op_type))
    if twin is None:
        return node
    if reason := twin.why_not(node):
        ctx.refuse(reason)
    return _with_all_queries(ctx, values, twin.standard(node))


def _with_all_queries(ctx: Context, values: MutableMapping[str, Any], node: OnnxNode) -> OnnxNode:
    """A node that has no more heads of keys than of queries: those are repeated."""
    heads, keys = (node.attributes.get(name, 0) for name in ("q_num_heads", "kv_num_heads"))
    query = values.get(node.inputs[0])
    if not isinstance(heads, int) or not isinstance(keys, int) or heads >= keys:
        return node
    if not isinstance(query, Value):
        return node  # what it could not be made of is told once
    if heads < 1 or keys % heads:
        ctx.refuse(f"{heads} heads of queries do not share {keys} of keys")
    name = f"{node.inputs[0]} of each key"
    *lead, width = query.type.shape
    apart = reshape_to(ctx, query, (*lead, index(heads), canonical(width // heads)))
    many = each_repeated(ctx, apart, len(lead), index(keys // heads))
    values[name] = reshape_to(ctx, many, (*lead, canonical(width * (keys // heads))))
    attributes = {**node.attributes, "q_num_heads": keys}
    return replace(node, inputs=(name, *node.inputs[1:]), attributes=attributes)


def is_standard(node: OnnxNode) -> bool:
    """Whether ONNX has such an operator at the opset of the node."""
    return onnx.defs.has(node.op_type, node.opset, node.domain)


def function_body(
    node: OnnxNode, types: Sequence[TensorType | None], opset: int
) -> tuple[OnnxNode, ...] | None:
    """The nodes that mean the same as a node of an operator ONNX defines, or None.

    Args:
        node: The node.
        types: Of its operands, None for absent ones.
        opset: The version of the standard operators that the definition of one in another
            domain is written with.
    """
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, node.opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    if any(isinstance(value, OnnxGraph | Unreadable) for value in node.attributes.values()):
        return None
    function = None
    if schema.has_function:
        function = schema.function_body
    elif schema.has_context_dependent_function:
        proto = helper.make_node(
            node.op_type, list(node.inputs), list(node.outputs), domain=node.domain
        )
        given = ((k, v) for k, v in node.attributes.items() if v != ())
        proto.attribute.extend(helper.make_attribute(k, v) for k, v in given)
        protos = [_type_proto(t).SerializeToString() for t in types]
        data = schema.get_context_dependent_function(proto.SerializeToString(), protos)
        function = onnx.FunctionProto.FromString(data) if data else None
    if function is None or not function.node:
        return None
    return _expanded(node, function, schema, opset if node.domain else node.opset)


def _expanded(
    node: OnnxNode, function: onnx.FunctionProto, schema: Any, opset: int
) -> tuple[OnnxNode, ...]:
    reader = TensorReader("a definition of ONNX", ExternalData(None), DEFAULT_LIMITS)
    decoder = Decoder(reader.label, reader, DEFAULT_LIMITS)
    found = decoder.function(function, {"": opset})
    defaults: dict[str, Attribute] = {
        name: decoder.attribute(attribute.default_value, {"": opset}, 1)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    whole = OnnxNode(
        node.name,
        node.domain,
        node.op_type,
        node.opset,
        node.inputs,
        node.outputs,
        {**defaults, **node.attributes},
    )
    return expand(reader.label, whole, found)


def _type_proto(type_: TensorType | None) -> onnx.TypeProto:
    if type_ is None:
        return onnx.TypeProto()
    shape = [int(s.value) if isinstance(s, Const) else str(s) for s in type_.shape]
    return helper.make_tensor_type_proto(ELEM_TYPES[type_.dtype], shape)
