"""dlc behind ONNX's own backend interface, so that ONNX's test runner can drive it.

Source: https://github.com/onnx/onnx/blob/main/docs/ImplementingAnOnnxBackend.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, helper
from onnx.backend import base

from dlc.compiler import compile
from dlc.core.errors import InputError, ModelError, UserError
from dlc.frontend.onnx import import_model, load_model
from dlc.runtime import Module

Array = np.ndarray[Any, Any]


class DlcBackendRep(base.BackendRep):
    """A compiled model, ready to run."""

    def __init__(self, module: Module) -> None:
        self.module = module
        names = tuple(spec.name for spec in module.outputs)
        self._pack = base.namedtupledict("Outputs", names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Run on inputs by name, in order, or on one array; gives the outputs as a named tuple.

        Raises:
            InputError: a missing, unknown or ill-fitting input.
        """
        _refuse_options(kwargs)
        outputs: tuple[Array, ...] = self._pack(*self.module.run(self._feeds(inputs)).values())
        return outputs

    def _feeds(self, inputs: Any) -> dict[str, object]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        names = [spec.name for spec in self.module.inputs]
        if len(values) != len(names):
            wanted = ", ".join(names) or "none"
            raise InputError(
                name=f"number {min(len(values), len(names))}",
                reason=f"{len(values)} arrays are given; the inputs are {wanted}",
            )
        return dict(zip(names, values, strict=True))


class DlcBackend(base.Backend):
    """Compiles models for this machine."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> DlcBackendRep:
        """Compile a model.

        Raises:
            UserError: the device is unknown, or an option is given: there are none.
            ModelError: the model is not valid or not supported.
        """
        _refuse_options(kwargs)
        if not cls.supports_device(device):
            raise UserError(detail=f"there is no device '{device}'", hint="there is: CPU")
        return DlcBackendRep(compile(model))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
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
    ) -> tuple[Array, ...]:
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
        return device.partition(":")[0].upper() == "CPU"

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether a model can be compiled; it is imported, which takes less than compiling it."""
        try:
            import_model(load_model(model))
        except ModelError:
            return False
        return cls.supports_device(device)


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
