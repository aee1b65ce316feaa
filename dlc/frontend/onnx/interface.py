"""The inputs of a model: their types once the caller's dimensions and shapes are applied.

Its outputs have the types that their nodes give them; what it declares of these is compared.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from dlc.core.count import show_inputs
from dlc.core.errors import ModelError, UserError
from dlc.core.types import INDEX, LARGEST_INDEX, DType
from dlc.frontend.onnx.model import OnnxModel, OnnxValue, Unreadable
from dlc.frontend.onnx.names import Names
from dlc.frontend.onnx.structure import Shape, Structure, spread
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.te.expr import Const, Expr, Var
from dlc.te.types import TensorType

_LOG = logging.getLogger(__name__)
Dim = int | tuple[int, int | None]
"""A dimension fixed to a number, or bounded: (smallest, largest or None)."""


@dataclass(frozen=True, slots=True)
class Interface:
    """How the caller knows a graph: the model's own names beside the graph's."""

    inputs: tuple[str, ...]
    """Names of the inputs in the model, in the order of the graph's inputs."""
    outputs: tuple[str, ...]
    sizes: Mapping[str, str]
    """Size variable -> name of the dimension in the model."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a graph, its size variables and their ranges."""

    values: tuple[Value, ...]
    names: tuple[str, ...]
    sizes: Mapping[str, str]
    ranges: dict[str, tuple[int, int | None]]
    parts: Mapping[str, tuple[str, ...] | None]
    """Sequence -> the inputs that are its elements; optional without a value -> None."""

    def ranges_from(self, least: Mapping[str, int]) -> dict[str, tuple[int, int | None]]:
        """The ranges, cut off below what is needed; where nothing is left, a run says what is."""
        found = dict(self.ranges)
        for name, need in least.items():
            low, high = found.get(name, (0, None))
            if high is None or need <= high:
                found[name] = (max(low, need), high)
        return found


def plain_dims(dims: Mapping[str, Dim]) -> dict[str, Dim]:
    """Dimensions with numbers of Python, whatever integers they were given as.

    Raises:
        UserError: one is neither a number nor a range.
    """

    def plain(name: str, dim: Dim) -> Dim:
        try:
            if isinstance(dim, Sequence) and not isinstance(dim, str):
                low, high = dim
                return operator.index(low), None if high is None else operator.index(high)
            return operator.index(dim)
        except (TypeError, ValueError) as error:
            hint = f"give a number, or the least and the largest: {{'{name}': (1, 512)}}"
            raise UserError(detail=f"dimension '{name}' cannot be {dim!r}", hint=hint) from error

    return {name: plain(name, dim) for name, dim in dims.items()}


def resolve_inputs(
    model: OnnxModel,
    names: Names,
    dims: Mapping[str, Dim],
    shapes: Mapping[str, Structure],
    known: Mapping[str, str],
) -> Inputs:
    """Give every input its type; each element of a sequence is an input of its own.

    `known` are the size variables of dimensions that have one already.

    Raises:
        ModelError: an input without a known rank or of a type dlc lacks.
        UserError: a dimension or a shape for something the model does not have, or one that
            contradicts the model.
    """
    declared = [v for v in model.graph.inputs if v.name not in model.graph.constants]
    if unknown := set(shapes) - {v.name for v in declared}:
        reason = f"there is no input '{min(unknown)}'"
        raise refused(model.label, reason, show_inputs(v.name for v in declared))
    declared, flat, parts = spread(model.label, declared, shapes)
    resolver = _Resolver(model.label, dims, [v.dims or () for v in declared])
    found = [(v, resolver.shape(v, flat.get(v.name))) for v in declared]
    resolver.check_dims()
    variables: dict[str, str] = {}  # name of the dimension -> size variable
    for _, shape in found:
        for dim in shape:
            if isinstance(resolver.value(dim), str) and dim not in variables:
                variables[str(dim)] = known.get(str(dim)) or names.fresh(str(dim))
    values = []
    for value, shape in found:
        sizes = tuple(_size(resolver.value(dim), variables) for dim in shape)
        assert not isinstance(value.dtype, Unreadable)
        values.append(Value(names.fresh(value.name), TensorType(sizes, value.dtype)))
    return Inputs(
        tuple(values),
        tuple(v.name for v in declared),
        {variable: dim for dim, variable in variables.items()},
        {v: resolver.ranges[d] for d, v in variables.items() if d in resolver.ranges},
        parts,
    )


def with_values(model: OnnxModel, values: Mapping[str, ArrayLike]) -> OnnxModel:
    """The model with some of its inputs as constants.

    Raises:
        UserError: no such input, or a value whose type or shape does not fit it.
    """
    declared = {v.name: v for v in model.graph.inputs if v.name not in model.graph.constants}
    constants = dict(model.graph.constants)
    for name, given in values.items():
        if name not in declared:
            reason = f"there is no input '{name}'"
            raise refused(model.label, reason, show_inputs(declared))
        try:
            constants[name] = _constant(declared[name], given)
        except ValueError as error:
            raise refused(model.label, str(error)) from error
    return replace(model, graph=replace(model.graph, constants=constants))


def _constant(value: OnnxValue, given: ArrayLike) -> Array:
    """What is given for an input, in its element type: floats are rounded, all else is exact.

    Raises:
        ValueError: it does not fit the input.
    """
    if value.sequence:
        raise ValueError(f"the input '{value.name}' is a sequence; it cannot be made a constant")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"the value of the input '{value.name}' is no array: {error}") from error
    dims = value.dims if value.dims is not None else array.shape
    fits = array.ndim == len(dims) and all(
        n == d for n, d in zip(array.shape, dims, strict=True) if isinstance(d, int)
    )
    if isinstance(value.dtype, Unreadable) or not fits:
        reason = f"a value of shape {array.shape} does not fit the input '{value.name}' of {dims}"
        raise ValueError(reason)
    found = _converted(array, value.dtype)
    if found is None:
        reason = f"the value {array.tolist()} of the input '{value.name}' is no {value.dtype}"
        raise ValueError(reason)
    return found


def _converted(array: Array, dtype: DType) -> Array | None:
    """The same elements in another type, or None where that cannot hold them."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found = array.astype(NUMPY_DTYPES[dtype])
    except (OverflowError, TypeError, ValueError):  # of objects: huge integers, texts, None
        return None
    if dtype.is_float and array.dtype.kind == "f":
        same = np.array_equal(np.isfinite(found), np.isfinite(array))
    else:
        same = np.array_equal(found, array)
    return found if same else None


def _size(dim: int | str, variables: Mapping[str, str]) -> Expr:
    return Var(variables[dim]) if isinstance(dim, str) else Const(dim, INDEX)


class _Resolver:
    """Names every open dimension, and collects what is known about each."""

    def __init__(
        self, label: str, dims: Mapping[str, Dim], declared: Sequence[Sequence[int | str | None]]
    ) -> None:
        self.label = label
        self.dims = dims
        self.fixed: dict[str, int] = {}
        self.ranges: dict[str, tuple[int, int | None]] = {}
        self.seen: dict[str, None] = {}
        self.named = {d for shape in declared for d in shape if isinstance(d, str)}
        self.unnamed = 0
        for name, dim in dims.items():
            self._set(name, dim)

    def shape(self, value: OnnxValue, given: Shape | None) -> tuple[int | str, ...]:
        """The dimensions of one input: numbers, or names."""
        if isinstance(value.dtype, Unreadable):
            raise self.bad(f"input '{value.name}' cannot be compiled: {value.dtype.reason}")
        if value.dims is None and given is None:
            hint = f"pass shapes={{'{value.name}': (...)}}"
            raise self.bad(f"input '{value.name}' has no shape", hint)
        dims = value.dims if value.dims is not None else (None,) * len(given or ())
        if given is not None and len(given) != len(dims):
            raise self.refused(f"input '{value.name}' has rank {len(dims)}, not {len(given)}")
        wanted = given if given is not None else (None,) * len(dims)
        return tuple(
            self._dim(value.name, axis, dim, want)
            for axis, (dim, want) in enumerate(zip(dims, wanted, strict=True))
        )

    def value(self, dim: int | str) -> int | str:
        """A dimension after the caller's choices."""
        return self.fixed.get(dim, dim) if isinstance(dim, str) else dim

    def check_dims(self) -> None:
        """Refuse a dimension the model does not have."""
        if unknown := set(self.dims) - set(self.seen):
            listed = (
                f"the open dimensions are {', '.join(self.seen)}" if self.seen else "none is open"
            )
            raise self.refused(f"there is no dimension '{min(unknown)}'", listed)

    def _dim(
        self, name: str, axis: int, dim: int | str | None, want: int | str | None
    ) -> int | str:
        if isinstance(want, int) and want < 0:
            raise self.refused(f"input '{name}': size {want} of axis {axis} is negative")
        if isinstance(want, int) and want > LARGEST_INDEX:
            raise self.refused(f"input '{name}': size {want} of axis {axis} is too large")
        if isinstance(dim, int):
            if want is not None and want != dim:
                raise self.refused(f"input '{name}' has size {dim} at axis {axis}, not {want}")
            return dim
        if isinstance(want, str):
            dim = want
        elif dim is None or not _is_name(dim):
            if isinstance(want, int):
                return want
            dim = self._fresh()
        self.seen[dim] = None
        if isinstance(want, int):
            self._set(dim, want)
        return dim

    def _set(self, name: str, dim: Dim) -> None:
        if isinstance(dim, int):
            self._check_fits(name, dim)
            if dim < 0 or self.fixed.get(name, dim) != dim:
                raise self.refused(f"dimension '{name}' cannot be {dim}")
            self.fixed[name] = dim
            return
        low, high = dim
        if low < 0 or (high is not None and high < low):
            raise self.refused(f"dimension '{name}' cannot range from {low} to {high}")
        self._check_fits(name, low if high is None else high)
        self.ranges[name] = (low, high)

    def _check_fits(self, name: str, size: int) -> None:
        if size > LARGEST_INDEX:
            raise self.refused(f"dimension '{name}' cannot be {size}: that is too large")

    def _fresh(self) -> str:
        name = f"d{self.unnamed}"
        while name in self.named:
            self.unnamed += 1
            name = f"d{self.unnamed}"
        self.unnamed += 1
        return name

    def bad(self, reason: str, hint: str = "") -> ModelError:
        return ModelError(model=self.label, reason=reason, hint=hint)

    def refused(self, reason: str, hint: str = "") -> UserError:
        return refused(self.label, reason, hint)


def refused(label: str, reason: str, hint: str = "") -> UserError:
    """What the caller chose does not fit the model, which is right."""
    return UserError(detail=f"{label}: {reason}", hint=hint)


def _is_name(text: str) -> bool:
    """Whether a dim_param says anything: exporters write "?" and "None" for nothing known."""
    return text != "None" and re.search("[A-Za-z]", text) is not None


def check_outputs(model: OnnxModel, found: Mapping[str, Value]) -> None:
    """Compare outputs with what the model declares of them; sizes that differ are a warning.

    Raises:
        ModelError: an output has another element type.
    """
    for declared in model.graph.outputs:
        value = found.get(declared.name)
        if value is None or declared.dims is None or isinstance(declared.dtype, Unreadable):
            continue
        name, type_ = declared.name, value.type
        if declared.dtype is not type_.dtype:
            reason = f"output '{name}' is declared as {declared.dtype}, and is {type_.dtype}"
            raise ModelError(model=model.label, reason=reason)
        if _contradict(declared.dims, type_):
            shape = ", ".join("?" if d is None else str(d) for d in declared.dims)
            text = "%s: output '%s' is declared as %s[%s], and is %s"
            _LOG.warning(text, model.label, name, type_.dtype, shape, type_)


def _contradict(declared: Sequence[int | str | None], found: TensorType) -> bool:
    """Whether numbers, of axes or in a place, differ; names say nothing."""
    return len(declared) != found.rank or any(
        isinstance(d, int) and isinstance(size, Const) and 0 <= d != size.value
        for d, size in zip(declared, found.shape, strict=True)
    )
