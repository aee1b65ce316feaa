"""An ONNX model as plain immutable data: what the protobuf says, without protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.types import DType
from dlc.graph.op import Array


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute inside a function body that takes its value from the function's caller."""

    name: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A constant or an attribute of a kind that dlc does not represent, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """A declared value: a dimension is a number, a name, or None where nothing is known."""

    name: str
    dtype: DType | Unreadable
    dims: tuple[int | str | None, ...] | None
    sequence: bool = False
    """Whether it is a sequence; type and dimensions are those of its elements."""
    optional: bool = False
    """Whether it may have no value."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A call of an operator; an absent operand or result has the name ""."""

    name: str
    domain: str
    op_type: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    @property
    def label(self) -> str:
        """What error messages call the node: its name, or that of its first result."""
        return self.name or next((o for o in self.outputs if o), self.op_type)

    @property
    def operator(self) -> str:
        """The operator with its version, as in `Conv-11`."""
        return f"{self.domain}.{self.op_type}" if self.domain else f"{self.op_type}-{self.opset}"


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """Nodes in an order in which they can run, and the constants they read."""

    name: str
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Array | Unreadable]
    values: Mapping[str, OnnxValue]
    """Declared types of values between nodes; hints, never trusted."""


@dataclass(frozen=True, slots=True)
class OnnxFunction:
    """A function of the model: an operator defined by other operators."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    defaults: Mapping[str, Attribute]
    nodes: tuple[OnnxNode, ...]


FunctionKey = tuple[str, str]  # domain, name
Attribute = (
    int
    | float
    | str
    | bytes
    | Array
    | OnnxGraph
    | Reference
    | Unreadable
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[str, ...]
)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model without functions: those have been inlined."""

    label: str
    """What error messages call the model: its path."""
    graph: OnnxGraph
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    metadata: Mapping[str, str]
