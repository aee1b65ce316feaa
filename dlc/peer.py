"""Another engine to compare with: onnxruntime, where it is installed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlc.core.errors import UserError
from dlc.runtime.arrays import has_texts

if TYPE_CHECKING:
    import numpy as np

    from dlc.frontend.onnx.load import Model

    Array = np.ndarray[Any, Any]

OLDEST_IR_VERSION = 8
"""Tried where onnxruntime does not know the version of a file; nothing newer concerns it."""
_NOT_OF_NUMPY = re.compile(r"tensor\((bfloat16|float[48]e\w+|u?int[24])\)")
"""What onnxruntime calls tensors for whose elements NumPy has no type of its own."""
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


def has_onnxruntime() -> bool:
    """Whether onnxruntime is installed; it is not imported."""
    return importlib.util.find_spec("onnxruntime") is not None


class OnnxRuntime:
    """A model in onnxruntime.

    Args:
        model: a path, the bytes of a model, or a `ModelProto`.
        threads: how many threads work on one run.
        optimize: whether onnxruntime may rewrite the model.

    Raises:
        UserError: onnxruntime is not installed, or refuses the model.
    """

    def __init__(self, model: Model, *, threads: int, optimize: bool = True) -> None:
        if not has_onnxruntime():
            hint = "pip install onnxruntime"
            raise UserError(detail="onnxruntime is not installed", hint=hint)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.name = f"onnxruntime {onnxruntime.__version__}"
        self._session = _open_session(model, options)
        self._model = model
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name; a list of maps as an array, as dlc has it.

        Raises:
            UserError: onnxruntime refuses the inputs.
        """
        try:
            found = self._session.run(self._outputs, dict(feeds))
        except Exception as error:  # it has many kinds of errors, and no common base
            raise self._refused(error) from error
        outputs = dict(zip(self._outputs, found, strict=True))
        for name, value in outputs.items():
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
                outputs[name] = _columns(value, _labels(self._model, name))
        return outputs

    def bind(self, feeds: Mapping[str, Array]) -> Callable[[], object]:
        """A function that runs on these arrays, for timing; only texts are copied.

        Raises:
            UserError: onnxruntime refuses the inputs.
        """
        if any(has_texts(array) for array in feeds.values()):
            return lambda: self.run(feeds)
        binding = self._session.io_binding()
        try:
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
        except Exception as error:
            raise self._refused(error) from error
        for name in self._outputs:
            binding.bind_output(name)

        def run() -> None:
            self._session.run_with_iobinding(binding)

        return run

    def _refused(self, error: Exception) -> UserError:
        """Why a run is refused; of types that NumPy lacks, onnxruntime only tells numbers."""
        if "numpy" not in str(error).lower():
            return _refused(error)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        for role, values in (("input", inputs), ("output", outputs)):
            for value in values:
                if found := _NOT_OF_NUMPY.fullmatch(value.type):
                    reason = f"cannot pass {found[1]} from or to Python ({role} '{value.name}')"
                    return UserError(detail=f"onnxruntime {reason}")
        return _refused(error)


def _open_session(model: Model, options: Any) -> Any:
    from onnxruntime import InferenceSession

    providers = ["CPUExecutionProvider"]
    known = _text(model) if isinstance(model, str | Path) else None
    try:
        return InferenceSession(known or _bytes(model), options, providers=providers)
    except Exception as error:
        if "ir version" not in str(error).lower():
            raise _refused(error) from error
    try:
        return InferenceSession(_bytes(model, OLDEST_IR_VERSION), options, providers=providers)
    except Exception as error:
        raise _refused(error) from error


def _columns(rows: Sequence[Mapping[Any, float]], labels: Sequence[Any]) -> Array:
    """Maps of scores as rows of an array, with a column for each label."""
    import numpy as np

    order = labels or list(rows[0])
    return np.array([[row[label] for label in order] for row in rows], np.float32)


def _labels(model: Model, output: str) -> list[Any]:
    """The labels of the ZipMap that makes an output, in its order, which its maps do not keep."""
    from onnx import ModelProto, helper

    for node in ModelProto.FromString(_bytes(model)).graph.node:
        if node.op_type == "ZipMap" and output in node.output:
            (labels,) = map(helper.get_attribute_value, node.attribute)
            return [label.decode() if isinstance(label, bytes) else label for label in labels]
    return []


def _text(path: str | Path) -> str | None:
    """A path as onnxruntime takes it; None where its name is no UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return None
    return str(path)


def _bytes(model: Model, ir_version: int | None = None) -> bytes:
    """The bytes of a model, on request with another IR version."""
    from onnx import ModelProto

    if isinstance(model, str | Path):
        model = Path(model).read_bytes()
    if ir_version is None:
        return model if isinstance(model, bytes) else bytes(model.SerializeToString())
    proto = ModelProto.FromString(model if isinstance(model, bytes) else model.SerializeToString())
    proto.ir_version = ir_version
    return bytes(proto.SerializeToString())


def _refused(error: Exception) -> UserError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UserError(detail=f"onnxruntime: {_STATUS.sub('', lines[0])}")
