"""dlc behind ONNX's own backend interface, so that ONNX's test runner can drive it.

Source: https://github.com/onnx/onnx/blob/main/docs/ImplementingAnOnnxBackend.md
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, helper
from onnx.backend import base

from dlc.compiler import compile
from dlc.core.count import show_count, show_inputs
from dlc.core.errors import InputError, ModelError, UnsupportedModel, UserError
from dlc.frontend.onnx import import_model, load_model
from dlc.runtime import Module, why_no_gpu

Array = np.ndarray[Any, Any]


TARGETS = {"CPU": "native", "CUDA": "cuda"}
_MOST_MODULES = 16  # one for each set of values is kept, the latest ones


class DlcBackendRep(base.BackendRep):
    """A model, ready to run.

    A model that can only be compiled once some of its inputs are constants (the axes of a sum, for
    one, decide what is computed at all) is compiled for the values these have in a run; further
    runs with the same values use what was compiled. So it is with a sequence, for the shapes of its
    elements, and with an optional, for whether it has a value.
    """

    def __init__(self, model: ModelProto, target: str = "native") -> None:
        self._model = model
        self._target = target
        graph = model.graph
        constants = {tensor.name for tensor in graph.initializer}
        self._inputs = [v.name for v in graph.input if v.name not in constants]
        self._names = [v.name for v in graph.output]
        self._open = [v.name for v in graph.input if not v.type.HasField("tensor_type")]
        self._sequences = {v.name for v in graph.output if _holds_sequence(v.type)}
        self._pack: Any = base.namedtupledict("Outputs", self._names)
        self._fixed: dict[str, None] = {}
        self._modules: dict[Hashable, Module] = {}
        if self._open:
            return
        try:
            self._modules[()] = compile(model, target)
        except UnsupportedModel as error:
            self._fix(error)

    @property
    def fixed_inputs(self) -> tuple[str, ...]:
        """The inputs whose values the model is compiled for."""
        return tuple(self._fixed)

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Run on inputs by name, in order, or on one array; gives the outputs as a named tuple.

        Raises:
            InputError: a missing, unknown or ill-fitting input.
        """
        _refuse_options(kwargs)
        feeds = self._feeds(inputs)
        module = self._module(feeds)
        free = {name: value for name, value in feeds.items() if name not in self._fixed}
        found: dict[str, Any] = {name: [] for name in self._sequences}
        for name, array in module.run(_flat(free, self._open)).items():
            whole, bracket, _ = name.partition("[")
            if bracket and whole in self._sequences:
                found[whole].append(array)
            else:
                found[name] = array
        return self._pack(*[found.get(name) for name in self._names])

    def _module(self, feeds: Mapping[str, object]) -> Module:
        """The model compiled for these values of the inputs that have to be constants."""
        while True:
            missing = [name for name in self._fixed if name not in feeds]
            if missing:
                raise InputError(name=missing[0], reason="is missing")
            values = {name: np.asarray(feeds[name]) for name in self._fixed}
            shapes = {name: _structure(feeds.get(name)) for name in self._open}
            key: Hashable = tuple(
                [(n, a.shape, a.dtype.str, a.tobytes()) for n, a in values.items()]
                + list(shapes.items())
            )
            if key in self._modules:
                return self._modules[key]
            try:
                module = compile(self._model, self._target, values=values, shapes=shapes)
            except UnsupportedModel as error:
                self._fix(error)
                continue
            self._modules[key] = module
            while len(self._modules) > _MOST_MODULES:
                del self._modules[next(iter(self._modules))]
            return module

    def _fix(self, error: UnsupportedModel) -> None:
        """Note the inputs that have to be constants.

        Raises:
            UnsupportedModel: the error, where no constant would help.
        """
        found: dict[str, None] = {}
        for issue in error.issues:
            above = self._above(str(issue.fields["needs"]))
            if not above:
                raise error
            found |= dict.fromkeys(above)
        if found.keys() <= self._fixed.keys():
            raise error
        self._fixed |= found

    def _above(self, name: str) -> list[str]:
        """The inputs from which a value is computed, but those that have a structure instead."""
        makers = {o: node for node in self._model.graph.node for o in node.output}
        seen, pending = set[str](), [name]
        while pending:
            name = pending.pop()
            if name and name not in seen:
                seen.add(name)
                pending += makers[name].input if name in makers else ()
        return [name for name in self._inputs if name in seen and name not in self._open]

    def _feeds(self, inputs: Any) -> dict[str, object]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        names = self._inputs
        if len(values) != len(names):
            raise InputError(
                name=f"number {min(len(values), len(names))}",
                reason=f"{show_count(len(values), 'array')} given; {show_inputs(names)}",
            )
        return dict(zip(names, values, strict=True))


def _holds_sequence(type_: TypeProto) -> bool:
    inner = type_.optional_type.elem_type if type_.HasField("optional_type") else type_
    return bool(inner.HasField("sequence_type"))


def _structure(value: Any) -> Any:
    """The shape of a tensor, those of the elements of a sequence, or None of nothing."""
    if isinstance(value, list | tuple):
        return tuple(map(np.shape, value))
    return None if value is None else np.shape(value)


def _flat(feeds: Mapping[str, Any], open_inputs: Sequence[str]) -> dict[str, Any]:
    """The feeds with each element of a sequence by itself, and without what is absent."""
    flat: dict[str, Any] = {}
    for name, value in feeds.items():
        if name in open_inputs and isinstance(value, list | tuple):
            flat |= {f"{name}[{i}]": element for i, element in enumerate(value)}
        elif name not in open_inputs or value is not None:
            flat[name] = value
    return flat


class DlcBackend(base.Backend):
    """Compiles models for this machine: for its `CPU`, or for its GPU, `CUDA`."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> DlcBackendRep:
        """Compile a model.

        Raises:
            UserError: the device is unknown, or an option is given: there are none.
            ModelError: the model is not valid or not supported.
        """
        _refuse_options(kwargs)
        if not cls.supports_device(device):
            known = ", ".join(n for n in TARGETS if cls.supports_device(n))
            raise UserError(detail=f"there is no device '{device}'", hint=f"there is: {known}")
        return DlcBackendRep(model, TARGETS[_kind(device)])

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """Compile a model and run it once; see `prepare` and `DlcBackendRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compile a model of one node and run it; `outputs_info` is not needed.

        Raises:
            ModelError: the node is not valid or not supported.
        """
        opset = kwargs.pop("opset_version", None)
        names = [name for name in node.input if name]
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        arrays = {name: np.asarray(given[name]) for name in names}
        return cls.run_model(_model_of(node, arrays, opset), arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can be compiled for a device, which is spelled as `CPU` or `CPU:0`."""
        kind = _kind(device)
        return kind == "CPU" or (kind == "CUDA" and not why_no_gpu())

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether a model can be compiled; it is imported, which takes less than compiling it."""
        try:
            import_model(load_model(model))
        except ModelError:
            return False
        return cls.supports_device(device)


def _kind(device: str) -> str:
    return device.partition(":")[0].upper()


def _model_of(node: NodeProto, arrays: Mapping[str, Array], opset: int | None) -> ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in arrays.items()
    ]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    opsets = [helper.make_opsetid(node.domain, opset)] if opset else None
    return helper.make_model(graph, opset_imports=opsets)


def _refuse_options(options: Mapping[str, Any]) -> None:
    if options:
        raise UserError(detail=f"there is no option '{min(options)}'")


prepare = DlcBackend.prepare
run_model = DlcBackend.run_model
run_node = DlcBackend.run_node
supports_device = DlcBackend.supports_device
is_compatible = DlcBackend.is_compatible
