"""What a converter sees of the graph under construction, and how it adds to it.

Besides nodes, the context knows elements: of constants, and of small integer tensors whose
elements are size expressions (what `Shape` gives). Such values have no node until a kernel needs
them, so the chain `Shape`, `Gather`, `Concat`, `Reshape` becomes one `Reshape`.
"""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlc.core.errors import InternalError, UnsupportedOperator
from dlc.core.types import INDEX, DType
from dlc.frontend.onnx.data import DataSizes
from dlc.frontend.onnx.dtypes import dtype_of
from dlc.frontend.onnx.limits import Limits
from dlc.frontend.onnx.model import OnnxGraph, OnnxNode
from dlc.frontend.onnx.names import Names
from dlc.frontend.onnx.only_size import OnlySize as OnlySize
from dlc.frontend.onnx.only_size import only_solution
from dlc.frontend.onnx.stretch import Stretcher
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Array, Fuse, Op
from dlc.graph.ops.elementwise import Cast
from dlc.graph.ops.from_sizes import SizeTensor
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.text import takes_texts
from dlc.graph.sizes import attribute_exprs
from dlc.te.expr import ONE, ZERO, Const, Expr, Select, Var, cast, const
from dlc.te.simplify import Bounds, simplify, surely_differ, surely_equal
from dlc.te.transform import walk
from dlc.te.types import TensorType

Elements = NDArray[np.object_]
"""An array of `Expr`: index expressions, or bool expressions where the tensor is one of bools."""
_MAX_ELEMS = 1024
_MAX_NODES = 256
_CHEAP = frozenset({Fuse.ELEMENTWISE, Fuse.INJECTIVE})  # time and memory go with the result
T = TypeVar("T")
RunGraph = Callable[["Context", OnnxGraph, Sequence[Value]], tuple[Value, ...]]


class Context:
    """Builds one graph; while a node is converted, knows that node."""

    def __init__(self, names: Names, limits: Limits) -> None:
        self.names = names
        self.limits = limits
        self.run_graph: RunGraph = _no_subgraphs
        """Converts the nodes of a subgraph into a context, and gives its results."""
        self.bounds: Bounds = {}
        """What the caller promised about size variables."""
        self.least: dict[str, int] = {}
        """What nodes need of them."""
        self.stretcher = Stretcher(decides=False)
        """What becomes of sizes that broadcast only if a run finds a 1."""
        self.conditional = False
        """Whether a run may skip its nodes: then they fix no size of the model."""
        self.node = OnnxNode("", "", "", 1, (), (), {})
        self.nodes: list[Node] = []
        self.operators: dict[str, str] = {}
        """The operator of each node of the model that made a node, by its label."""
        self.constants: dict[Value, Array] = {}
        self._arrays: ChainMap[str, Array] = ChainMap()
        self._elements: ChainMap[str, Elements] = ChainMap()
        self._made: dict[str, Value] = {}
        self.data = DataSizes(self)
        """Sizes that are known only from data."""

    @property
    def opset(self) -> int:
        """The opset version of the node."""
        return self.node.opset

    @property
    def output_count(self) -> int:
        """How many results of the node are wanted, absent ones in between included."""
        return len(self.node.outputs)

    def refuse(self, reason: str, hint: str = "", needs: str = "") -> NoReturn:
        """Say why the node cannot be converted; `needs` is a value that has to be constant."""
        raise UnsupportedOperator(
            node=self.node.label, op=self.node.operator, reason=reason, hint=hint, needs=needs
        )

    def refuse_variable(self, what: str, value: Value) -> NoReturn:
        """Say that a value has to be constant, and is not."""
        reason = f"{what} must be constant, and '{value.name}' is computed at run time"
        self.refuse(reason, "an input becomes a constant with values=", value.name)

    def call(self, op: Op, *inputs: Value, name: str = "") -> Value:
        """The result of an operator that has one; computed now where that is cheap."""
        (result,) = self.call_all(op, *inputs, name=name)
        return result

    def call_all(self, op: Op, *inputs: Value, name: str = "", count: int = 1) -> tuple[Value, ...]:
        """All `count` results of an operator."""
        if any(v.type.dtype is DType.STR for v in inputs) and not takes_texts(op):
            self.refuse("it is not handled for texts")
        op = self.data.bound(op)
        inputs = self.stretcher.stretch(self, op, inputs)
        hint = name or self._hint(op)
        names = tuple(self.names.fresh(hint if i == 0 else f"{hint}_{i}") for i in range(count))
        node = call(op, *inputs, name=names if count > 1 else names[0], source=self.node.label)
        for size in (s for v in node.outputs for s in v.type.shape):
            if isinstance(size, Const) and not 0 <= size.value <= self.limits.tensor_bytes:
                self.refuse(f"a result would have the size {size}")
        if any(v.type.rank > self.limits.rank for v in node.outputs):
            self.refuse(f"a result would have more than {self.limits.rank} dimensions")
        if self._folds(node):
            return self._fold(node)
        self.emit(node)
        return node.outputs

    def emit(self, node: Node) -> None:
        """Add a node, whatever it is."""
        operands = tuple(self.materialise(v) for v in node.inputs)
        self._emit(Node(node.op, operands, node.outputs, node.source))

    def _emit(self, node: Node) -> None:
        self.operators[self.node.label] = self.node.op_type
        self.nodes.append(node)

    def adopt(self, value: Value, array: Array) -> None:
        """Take over a constant that another context made."""
        self._arrays[value.name] = array

    def constant(self, array: Array, name: str = "") -> Value:
        """A value of known elements; it enters the graph once a node reads it."""
        dtype = dtype_of(array)
        value = Value(self.names.fresh(name or self._hint()), TensorType(array.shape, dtype))
        self._arrays[value.name] = array
        return value

    def scalar(self, number: float, dtype: DType) -> Value:
        """A constant without dimensions."""
        return self.constant(round_to(np.array(number), dtype))

    def size_tensor(self, elements: Elements, dtype: DType = DType.I64) -> Value:
        """A value whose elements are expressions over sizes."""
        known = np.empty(elements.shape, np.object_)
        if elements.size:
            known[...] = np.vectorize(self._short, otypes=[np.object_])(elements)
        if all(isinstance(e, Const) for e in known.flat):
            numbers = np.array([e.value for e in known.ravel().tolist()]).reshape(known.shape)
            return self.constant(round_to(numbers, dtype))
        value = Value(self.names.fresh(self._hint()), TensorType(known.shape, dtype))
        self._elements[value.name] = known
        return value

    def require_equal(self, have: Expr, need: Expr, reason: str) -> None:
        """Refuse sizes that surely differ; `reason` says why they must not.

        Sizes that may differ are left for the run to compare: an operator assumes them equal.

        Raises:
            OnlySize: they are equal for one value of a size variable, and for no other.
        """
        if surely_equal(have, need, self.bounds):
            return
        if self.data.reads_any(have - need):
            return
        if not self.conditional and (found := only_solution(have - need)) is not None:
            raise OnlySize(self.node.label, *found)
        if surely_differ(have, need, self.bounds):
            self.refuse(reason)

    def require_least(self, size: Expr, least: int) -> None:
        """Say that a size variable is never below a number: nobody need try less."""
        if isinstance(size, Var) and not self.conditional:
            self.least[size.name] = max(least, self.least.get(size.name, 0))

    def simplify(self, size: Expr) -> Expr:
        """The simplest form of a size, given what the caller promised."""
        return simplify(size, self.bounds)

    def _short(self, element: Expr) -> Expr:
        """The simplest form of an element; of a formula too long to follow, what a run finds."""
        found = self.simplify(element)
        if next(itertools.islice(walk(found), _MAX_NODES, None), None) is None:
            return found
        if found.dtype is DType.BOOL:
            return self.data.found(cast(INDEX, found)) > 0
        return self.data.found(found)

    def array(self, value: Value) -> Array | None:
        """The elements of a constant; None for anything else."""
        if value.type.is_static and 0 in value.type.static_shape:
            return np.zeros(value.type.static_shape, NUMPY_DTYPES[value.type.dtype])
        return self._arrays.get(value.name)

    def elements(self, value: Value) -> Elements | None:
        """The elements of a small tensor of whole numbers or bools, where they are known."""
        if self.is_symbolic(value):
            return self._elements[value.name]
        array = self.array(value)
        if array is None or array.size > _MAX_ELEMS or value.type.dtype is DType.STR:
            return None
        whole = array.dtype.kind in "iub" or (
            np.isfinite(array).all() and np.array_equal(array, np.trunc(array))
        )
        if not whole:
            return None
        kind = DType.BOOL if array.dtype.kind == "b" else INDEX
        result = np.empty(array.shape, np.object_)
        result[...] = np.vectorize(lambda e: const(e, kind), otypes=[object])(array)
        return result

    def sizes(self, value: Value) -> tuple[Expr, ...] | None:
        """The elements of a vector (or scalar) of whole numbers, where they are known."""
        found = self.elements(value)
        return None if found is None else tuple(found.ravel().tolist())

    def is_symbolic(self, value: Value) -> bool:
        """Whether a value's elements are known as expressions over sizes."""
        return value.name in self._elements

    def on_elements(
        self, fn: Callable[..., Elements], *values: Value, dtype: DType | None = None
    ) -> Value | None:
        """Apply a function to known elements.

        None unless all elements are known and at least one operand has symbolic elements:
        constants are left to the operators, which know about rounding and overflow.
        """
        if not any(self.is_symbolic(v) for v in values):
            return None
        operands = [self._elements_or_loads(v) for v in values]
        if any(o is None for o in operands):
            return None
        return self.size_tensor(np.asarray(fn(*operands)), dtype or values[0].type.dtype)

    def _elements_or_loads(self, value: Value) -> Elements | None:
        known = self.elements(value)
        if known is not None or self.array(value) is not None:
            return known
        loaded = self.data.elements(value)
        if loaded is None:
            return None
        if value.type.dtype is DType.BOOL:
            loaded = tuple(e > 0 for e in loaded)
        result = np.empty(len(loaded), np.object_)
        result[...] = loaded
        return result.reshape(value.type.static_shape)

    def ints(self, value: Value, what: str) -> tuple[int, ...]:
        """The elements of a constant vector of integers; others are refused."""
        array = self.array(value)
        if array is None:
            self.refuse_variable(what, value)
        if array.dtype.kind not in "iu":
            self.refuse(f"{what} must be whole numbers, and '{value.name}' is {array.dtype}")
        return tuple(int(e) for e in array.flat)

    def data_only(self, value: Value) -> tuple[Expr, ...] | None:
        """The elements of a small tensor of integers of which nothing is known before the run."""
        return None if self.elements(value) is not None else self.data.elements(value)

    def one_int(self, value: Value, what: str) -> int:
        """The element of a constant that has one."""
        return self.only(self.ints(value, what), what)

    def one_size(self, value: Value, what: str) -> Expr:
        """The element of a tensor of one size."""
        return self.only(self.need_sizes(value, what), what)

    def one_number(self, value: Value, what: str) -> float:
        """The element of a constant that has one: an int, or a float."""
        exact = value.type.dtype.is_int
        return self.only(self.ints(value, what) if exact else self.floats(value, what), what)

    def only(self, values: Sequence[T], what: str) -> T:
        """The one of some values that have to be one."""
        if len(values) != 1:
            self.refuse(f"{what}: {len(values)} elements, not one")
        return values[0]

    def floats(self, value: Value, what: str) -> tuple[float, ...]:
        """The elements of a constant; others are refused."""
        array = self.array(value)
        if array is None:
            self.refuse_variable(what, value)
        return tuple(float(e) for e in array.flat)

    def need_sizes(self, value: Value, what: str) -> tuple[Expr, ...]:
        """The elements of a vector as size expressions, which may load them at run time."""
        if value.type.dtype in (DType.BOOL, DType.STR):
            self.refuse(f"{what}: {value.type}, and no whole numbers")
        found = self.sizes(value)
        if found is None:
            whole = value
            if value.type.dtype.is_float and self.array(value) is None:
                whole = self.call(Cast(to=DType.I64), value)
            found = self.data.elements(whole)
        if found is None:
            reason = f"{what} depends on data that is known only at run time"
            self.refuse(reason, "an input becomes a constant with values=", value.name)
        return found

    def materialise(self, value: Value) -> Value:
        """Give a known value a constant or a node, so that a node can read it."""
        if value.name in self._made:
            return self._made[value.name]
        if value.name in self._arrays:
            self.constants[value] = self._arrays[value.name]
        elif value.name in self._elements:
            self._made[value.name] = made = self._compute_sizes(value)
            return made
        return value

    def graph(
        self,
        name: str,
        sizes: Sequence[str],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        ranges: dict[str, tuple[int, int | None]] | None = None,
    ) -> Graph:
        """The finished graph: everything that was called, in order."""
        results = tuple(self.materialise(v) for v in outputs)
        return Graph(
            name=name,
            sizes=tuple(sizes),
            inputs=tuple(inputs),
            nodes=tuple(self.nodes),
            outputs=results,
            constants=dict(self.constants),
            size_ranges=ranges or {},
            operators=dict(self.operators),
        )

    def rename(self, value: Value, hint: str, since: int) -> Value:
        """Call a result of a node made since position `since` by the name ONNX gives it."""
        if value.name in self._arrays or value.name in self._elements:
            return value
        if not any(value in node.outputs for node in self.nodes[since:]):
            return value
        self.names.free(value.name)
        renamed = Value(self.names.fresh(hint), value.type)
        self.data.rename(value, renamed)
        swap = {value: renamed}
        self.nodes[since:] = [
            Node(
                node.op,
                tuple(swap.get(v, v) for v in node.inputs),
                tuple(swap.get(v, v) for v in node.outputs),
                node.source,
            )
            for node in self.nodes[since:]
        ]
        return renamed

    def _hint(self, op: Op | None = None) -> str:
        first = next((o for o in self.node.outputs if o), self.node.op_type)
        return f"{first}_{op.name}" if op else f"{first}_value"  # its own name is the result's

    def _folds(self, node: Node) -> bool:
        limit = self.limits.folded_elems
        arrays = [self.array(v) for v in node.inputs]
        return (
            bool(arrays)
            and (node.op.fuse in _CHEAP or isinstance(node.op, Reduce))
            and all(a is not None and a.size <= 16 * limit for a in arrays)
            and not any(_is_quantized(v) for v in node.inputs)  # graph passes look for them
            and all(v.type.is_static for v in node.outputs)
            and all(isinstance(s, Const) for s in attribute_exprs(node.op))
            and all(math.prod(v.type.static_shape) <= limit for v in node.outputs)
        )

    def _fold(self, node: Node) -> tuple[Value, ...]:
        with np.errstate(all="ignore"):
            made = node.op.reference(*(self.array(v) for v in node.inputs))
        results = made if isinstance(made, tuple) else (made,)
        for value, array in zip(node.outputs, results, strict=True):
            self._arrays[value.name] = round_to(array, value.type.dtype)
        return node.outputs

    def _compute_sizes(self, value: Value) -> Value:
        """A node that writes size expressions into a tensor."""
        flat = tuple(
            Select(e, ONE, ZERO) if e.dtype is DType.BOOL else e
            for e in self._elements[value.name].ravel().tolist()
        )
        whole = value.type.dtype if value.type.dtype.is_int else DType.I64
        op = SizeTensor(values=flat, shape=value.type.shape, dtype=whole)
        op = self.data.bound(op)
        name = value.name if whole is value.type.dtype else self.names.fresh(value.name)
        node = call(op, name=name, source=self.node.label)
        self._emit(node)
        if whole is not value.type.dtype:
            node = call(Cast(to=value.type.dtype), node.output, name=value.name)
            self._emit(node)
        return node.output


def _no_subgraphs(ctx: Context, graph: OnnxGraph, operands: Sequence[Value]) -> NoReturn:
    raise InternalError(detail=f"nobody converts the subgraph '{graph.name}'")


def _is_quantized(value: Value) -> bool:
    """Whether a constant may be weights of eight bits or less."""
    return value.type.rank > 1 and value.type.dtype.is_int and value.type.dtype.bits <= 8
