"""Quantize models to eight bits or four, as onnxruntime's tool does: what users deploy on CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

_IMAGES = 2  # whose ranges are those of activations


class _Images(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Random inputs of a model of one input of a fixed shape."""

    def __init__(self, path: Path) -> None:
        (given,) = onnxruntime.InferenceSession(path).get_inputs()
        rng = np.random.default_rng(0)
        shape = [n if isinstance(n, int) else 1 for n in given.shape]
        self._feeds: Iterator[dict[str, Any]] = iter(
            [{given.name: rng.standard_normal(shape, np.float32)} for _ in range(_IMAGES)]
        )

    def get_next(self) -> dict[str, Any] | None:
        """The next input, None behind the last one."""
        return next(self._feeds, None)


def quantize(origin: Path, path: Path, kind: str) -> None:
    """Write a model with weights of i8.

    Activations have the range of some inputs, and are the bytes that `kind` names, "u8" or "i8"; or
    "dynamic": the range that they have in a run. Or "four": only weights are quantized, to 4 bits,
    and rows may be rounded to bytes.
    """
    if kind == "four":
        made = MatMulNBitsQuantizer(str(origin), block_size=32, is_symmetric=True, accuracy_level=4)
        made.process()
        onnx.save(made.model.model, path)
        return
    if kind == "dynamic":
        quantize_dynamic(origin, path, weight_type=QuantType.QInt8)
        return
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(onnx.load(origin), ready, skip_symbolic_shape=True)
        bytes_ = {"u8": QuantType.QUInt8, "i8": QuantType.QInt8}[kind]
        quantize_static(
            ready,
            path,
            _Images(ready),
            activation_type=bytes_,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
