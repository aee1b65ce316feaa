"""A model while it is drawn: nodes, and the value of everything at one size of its dimensions.

Each node is evaluated by ONNX's own reference when it is added, so a recipe needs no rule for
shapes and types: it sees the arrays. What ONNX refuses, overflows or is not finite is not added.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from dlc.peer import OnnxRuntime

Array = np.ndarray[Any, Any]
Dim = int | str

IR_VERSION = 10
MICROSOFT = "com.microsoft"
DIMS = (0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 31, 33)
"""Awkward sizes: none, one, primes, and those around a vector."""
LARGEST = {"float16": 200.0, "bfloat16": 200.0}
MOST_ELEMENTS = 20_000
FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTS = ("int64", "int32", "int8", "uint8")


_BY_ONNXRUNTIME = frozenset(
    {"Scan", "GatherElements", "MaxPool", "AveragePool", "LpPool", "GlobalMaxPool"}
)
"""Operators of which ONNX's reference has parts only, or slow ones, or the wrong shape."""


class DiscardError(Exception):
    """What a recipe tried cannot be part of this model."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How an input's values are drawn, at any sizes of the dimensions with a name."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    low: float
    high: float
    fixed: Array | None = None
    grid: int = 64

    def draw(self, rng: np.random.Generator, sizes: dict[str, int]) -> Array:
        """An array of values from `low` to `high`; floats are multiples of 1/`grid`."""
        if self.fixed is not None:
            return self.fixed
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)
        return draw_array(rng, self.dtype, shape, self.low, self.high, self.grid)


@dataclass(frozen=True, slots=True)
class Known:
    """A value of the model: its name, what it is at the drawn sizes, whether without rounding.

    Operators that jump (floor, comparisons) are given exact values only: two correct engines may
    round others to different sides.
    """

    name: str
    array: Array
    exact: bool

    @property
    def kind(self) -> str:
        """The kind of the element type, as in NumPy; bfloat16 is a float."""
        return "f" if self.array.dtype.name == "bfloat16" else self.array.dtype.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape at the drawn sizes."""
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return int(self.array.ndim)


@dataclass
class Draft:
    """The model so far."""

    rng: random.Random
    opset: int
    symbolic: bool
    special: bool
    """Whether inputs may hold NaN, infinities and other values of special meaning."""
    sizes: dict[str, int] = field(default_factory=dict)
    specs: list[Spec] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    values: list[Known] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.numpy = np.random.default_rng(self.rng.getrandbits(32))
        self.sizes = {"n": self.rng.choice(DIMS), "m": self.rng.choice(DIMS[1:])}

    # --- drawing

    def name(self, base: str) -> str:
        """A new name."""
        self.count += 1
        return f"{base}{self.count}"

    def dim(self, smallest: int = 0) -> int:
        """A size, often one that other values have too."""
        used = [n for v in self.values for n in v.shape]
        pool = (*used, *self.sizes.values()) if self.rng.random() < 0.5 else DIMS
        found = self.rng.choice(pool or DIMS)
        return found if smallest <= found <= 64 else max(smallest, self.rng.choice((1, 2, 3, 5, 7)))

    def shape(self, rank: int | None = None, smallest: int = 0) -> tuple[int, ...]:
        """A shape of few elements."""
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5)) if rank is None else rank
        smallest = max(smallest, int(self.rng.random() < 0.95))
        while True:
            found = tuple(self.dim(smallest) for _ in range(rank))
            if np.prod(found, dtype=np.int64) <= 4000:
                return found

    def make(
        self,
        dtype: str,
        shape: Sequence[int],
        low: float = -2,
        high: float = 2,
        constant: bool | None = None,
    ) -> Known:
        """A new input or constant; some are whole numbers, so that values are equal often."""
        dims = tuple(self._named(n) for n in shape)
        if constant is None:
            constant = self.rng.random() < 0.4 and not any(isinstance(d, str) for d in dims)
        grid = 1 if (low, high) == (-2, 2) and self.rng.random() < 0.2 else 64
        spec = Spec(self.name("c" if constant else "x"), dtype, dims, low, high, grid=grid)
        array = spec.draw(self.numpy, self.sizes)
        if constant:
            return self.constant(array)
        if self.special and array.dtype.kind == "f" and array.size and (low, high) == (-2, 2):
            array = _with_special(array, self.rng)
            spec = Spec(spec.name, dtype, tuple(shape), low, high, array)
        self.specs.append(spec)
        return self._know(spec.name, array, True)

    def constant(self, array: Array) -> Known:
        """A new constant."""
        name = self.name("c")
        self.constants[name] = np.asarray(array)
        return self._know(name, self.constants[name], True)

    def data(self, array: Array) -> Known:
        """Numbers that tell an operator what to do: mostly a constant, sometimes an input."""
        if self.rng.random() < 0.85:
            return self.constant(array)
        spec = Spec(self.name("x"), array.dtype.name, array.shape, 0, 0, array)
        self.specs.append(spec)
        return self._know(spec.name, array, True)

    def _named(self, size: int) -> Dim:
        """The name of a dimension of this size, in models with open sizes."""
        names = [n for n, s in self.sizes.items() if s == size]
        return names[0] if self.symbolic and names and self.rng.random() < 0.7 else size

    def pick(
        self,
        kinds: str = "f",
        rank: int | None = None,
        exact: bool = False,
        smallest: int = 0,
        dtypes: Sequence[str] = (),
    ) -> Known:
        """A value of one of some kinds of element types: one of the model, or a new input."""
        fits = [
            v
            for v in self.values
            if v.kind in kinds
            and (rank is None or v.rank == rank)
            and (v.exact or not exact)
            and all(n >= smallest for n in v.shape)
            and (not dtypes or v.array.dtype.name in dtypes)
        ]
        if fits and self.rng.random() < 0.8:
            return fits[-1] if self.rng.random() < 0.3 else self.rng.choice(fits[-8:])
        pool = {"f": FLOATS, "i": INTS, "u": ("uint8",), "b": ("bool",)}
        kind = self.rng.choice([k for k in kinds if k in pool])
        return self.make(self.rng.choice(dtypes or pool[kind]), self.shape(rank, smallest))

    def like(self, value: Known, broadcast: bool = True) -> Known:
        """A second operand: of the same type, of a shape that broadcasts with the first one's."""
        dtype = value.array.dtype.name
        fits = [v for v in self.values if v.array.dtype.name == dtype and v.shape == value.shape]
        if fits and self.rng.random() < 0.5:
            return self.rng.choice(fits)
        shape = list(value.shape)
        if broadcast and self.rng.random() < 0.6:
            shape = [1 if self.rng.random() < 0.4 else n for n in shape]
            shape = shape[self.rng.randrange(len(shape) + 1) :]
        return self.make(dtype, shape)

    # --- adding

    def add(
        self,
        op_type: str,
        inputs: Sequence[Known | None],
        outputs: int = 1,
        domain: str = "",
        exact: bool = False,
        **attributes: Any,
    ) -> list[Known]:
        """Add a node.

        Raises:
            DiscardError: ONNX refuses it, or a result is not finite, too large or of no array.
        """
        given = {k: v for k, v in attributes.items() if v is not None}
        names = ["" if v is None else v.name for v in inputs]
        made = [self.name("v") for _ in range(outputs)]
        node = helper.make_node(
            op_type, names, made, self.name(op_type.lower()), None, domain, **given
        )
        return self.add_nodes([node], [v for v in inputs if v is not None], made, exact)

    def add_nodes(
        self,
        nodes: Sequence[NodeProto],
        reads: Sequence[Known],
        results: Sequence[str],
        exact: bool = False,
    ) -> list[Known]:
        """Add nodes that make no array each, or hold graphs that read values of the model.

        Raises:
            DiscardError: as for `add`.
        """
        arrays = self._evaluate(nodes, {v.name: v.array for v in reads}, results)
        for array in arrays:
            self._check(array)
        self.nodes.extend(nodes)
        sure = exact and all(v.exact for v in reads)
        return [
            self._know(name, array, sure or array.dtype.kind in "biu")
            for name, array in zip(results, arrays, strict=True)
        ]

    def _evaluate(
        self, nodes: Sequence[NodeProto], feeds: dict[str, Array], results: Sequence[str]
    ) -> list[Array]:
        graph = helper.make_graph(
            nodes,
            "nodes",
            [_info(name, array) for name, array in feeds.items()],
            [helper.make_empty_tensor_value_info(name) for name in results],
        )
        op = nodes[-1].op_type
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self._run(nodes[-1], graph, feeds)
        except DiscardError:
            raise
        except Exception as error:  # the reference has no errors of its own
            raise DiscardError(f"{op}: {type(error).__name__}: {error}") from error

    def _run(self, node: NodeProto, graph: Any, feeds: dict[str, Array]) -> list[Array]:
        model = self._model(graph)
        if node.domain != MICROSOFT and not any(a.HasField("g") for a in node.attribute):
            self._check_node(node)
        if node.domain == MICROSOFT or node.op_type in _BY_ONNXRUNTIME:
            found = list(OnnxRuntime(model, threads=1, optimize=False).run(feeds).values())
        else:
            found = cast(list[Any], ReferenceEvaluator(model).run(None, feeds))
        if not all(isinstance(a, np.ndarray | np.generic) for a in found):
            raise DiscardError(f"{node.op_type}: a result is no array")
        return [np.asarray(a) for a in found]

    def _check_node(self, node: NodeProto) -> None:
        """Raise unless the operator exists at the model's opset, with these attributes."""
        context = checker.C.CheckerContext()
        context.ir_version = IR_VERSION
        context.opset_imports = {"": self.opset}
        checker.check_node(node, context)

    def _check(self, array: Array) -> None:
        if array.size > MOST_ELEMENTS or array.dtype.kind in "OUSc":
            raise DiscardError("a result is too large, or not of numbers")
        if array.dtype.kind == "f" and not self.special:
            limit = LARGEST.get(array.dtype.name, 1e4)
            if not np.isfinite(array).all() or np.abs(array).max(initial=0) > limit:
                raise DiscardError("a result is not finite, or large")

    def _know(self, name: str, array: Array, exact: bool) -> Known:
        self.values.append(Known(name, array, exact))
        return self.values[-1]

    # --- the whole

    def _model(self, graph: Any) -> ModelProto:
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def finish(self) -> ModelProto:
        """The model: its results are what nobody reads, and a few values that somebody does."""
        read = {name for node in self.nodes for name in (*node.input, *captured(node))}
        made = [v for v in self.values if any(v.name in node.output for node in self.nodes)]
        results = [v for v in made if v.name not in read or self.rng.random() < 0.1]
        used = {*read, *(v.name for v in results)}
        inputs = [
            helper.make_tensor_value_info(s.name, _element_type(s.dtype), list(s.dims))
            for s in self.specs
            if s.name in used
        ]
        graph = helper.make_graph(
            self.nodes,
            "random",
            inputs,
            [
                helper.make_tensor_value_info(v.name, _type_of(v.array), [None] * v.rank)
                for v in results
            ],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items() if n in used],
        )
        return self._model(graph)


def draw_array(
    rng: np.random.Generator,
    dtype: str,
    shape: Sequence[int],
    low: float,
    high: float,
    grid: int = 64,
) -> Array:
    """Random values; floats are multiples of 1/`grid`: with 64, every float type holds them."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind in "iu":
        low = max(low, float(np.iinfo(dtype).min))
        return rng.integers(int(low), int(max(low, high)) + 1, shape).astype(dtype)
    return np.asarray(rng.integers(int(low * grid), int(high * grid) + 1, shape) / grid, dtype)


def captured(node: NodeProto) -> set[str]:
    """Names that the graphs inside of a node may read."""
    found: set[str] = set()
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for each in inner.node:
                found |= set(each.input) | captured(each)
            found |= {v.name for v in inner.output}
    return found


def _with_special(array: Array, rng: random.Random) -> Array:
    """Some elements replaced by values of special meaning."""
    found = array.copy()
    large = 1e4 if array.dtype.name == "float16" else 1e30  # sums of a few stay finite
    large = rng.choice((large, -large))  # of both signs, they leave nothing of a sum
    for value in (np.nan, np.inf, -np.inf, -0.0, 1e-40, large):
        if rng.random() < 0.5:
            found.flat[rng.randrange(found.size)] = value
    return found


def _element_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _type_of(array: Array) -> int:
    if array.dtype.name == "bfloat16":
        return int(TensorProto.BFLOAT16)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _info(name: str, array: Array) -> Any:
    return helper.make_tensor_value_info(name, _type_of(array), array.shape)
