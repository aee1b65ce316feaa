"""Read an ONNX file safely.

`onnx.load` is never called: it would follow external data wherever the file points.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from dlc.core.errors import ModelError, why_unreadable
from dlc.frontend.onnx.broken_text import broken_text
from dlc.frontend.onnx.decode import Decoder
from dlc.frontend.onnx.external import ExternalData
from dlc.frontend.onnx.limits import DEFAULT_LIMITS, Limits
from dlc.frontend.onnx.model import OnnxModel
from dlc.frontend.onnx.tensors import TensorReader
from dlc.frontend.onnx.wire import Buffer, Skeleton, without_weights
from dlc.graph.op import Array

Model = str | Path | bytes | ModelProto
"""A path, the bytes of a file, or a parsed model."""


def load_model(
    source: Model,
    *,
    external_data_dir: str | Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> OnnxModel:
    """Read a model.

    Args:
        source: A path, the bytes of a file, or a parsed model.
        external_data_dir: Where external data lies; by default beside the model's file, and
            nowhere if there is no file.
        limits: What the model may ask for.

    Raises:
        ModelError: no such file, not ONNX, truncated, or not valid; the message says where.
        LimitError: the model asks for more than `limits`.
    """
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    label = str(path) if path else "the model"
    if not isinstance(source, str | os.PathLike | bytes | ModelProto):
        reason = (
            f"expected a path, the bytes of a file or a ModelProto, got {type(source).__name__}"
        )
        raise ModelError(model=label, reason=reason)
    folder = Path(external_data_dir) if external_data_dir else path.parent if path else None
    if isinstance(source, ModelProto):
        proto = source
        weights: dict[int, Array] = {}
    else:
        proto, weights = _parse(label, _contents(label, source))
    if not proto.HasField("graph"):
        raise ModelError(model=label, reason="not an ONNX model: it has no graph")
    if field := broken_text(proto):
        raise ModelError(model=label, reason=f"a text in it ({field}) is not UTF-8")
    reader = TensorReader(label, ExternalData(folder, path), limits)
    return Decoder(label, reader, limits, weights).model(proto)


def read_proto(path: Path) -> ModelProto:
    """A model without its large weights, and whatever else is checked of it.

    Raises:
        ModelError: no such file, not ONNX or truncated.
    """
    return _parse(str(path), _contents(str(path), path))[0]


def _contents(label: str, source: str | Path | bytes) -> Buffer:
    """The bytes of a file, mapped into memory where that is possible."""
    if isinstance(source, bytes):
        return source
    try:
        with open(source, "rb") as file:
            info = os.fstat(file.fileno())
            if stat.S_ISCHR(info.st_mode):  # which may give bytes without end
                raise ModelError(model=label, reason="it is a device, not a file")
            if stat.S_ISREG(info.st_mode) and info.st_size:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return file.read()
    except OSError as error:
        raise ModelError(model=label, reason=why_unreadable(error)) from error


_OTHER_FORMATS = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself; run `git lfs pull`",
    b"PK\x03\x04": "a zip archive, perhaps a PyTorch checkpoint; export it to ONNX first",
    b"<": "a web page or XML file; was the download complete?",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"\x7fELF": "a shared library, perhaps compiled already; name the model it was made of",
    b"\x89HDF": "an HDF5 file, perhaps of Keras; export it to ONNX first",
}
_OTHER_NAMES = {  # flat buffers have theirs behind the offset of the root
    b"TFL3": "a TensorFlow Lite model; convert it to ONNX first",
    b"ORTM": "in onnxruntime's own format; take the .onnx file it was made of",
}


def _parse(label: str, data: Buffer) -> tuple[ModelProto, dict[int, Array]]:
    """The message without its large weights, and those of each initializer by its position."""
    for start, what in _OTHER_FORMATS.items():
        if data[: len(start)] == start:
            raise ModelError(model=label, reason=f"not an ONNX model: {what}")
    if name := _OTHER_NAMES.get(bytes(data[4:8])):
        raise ModelError(model=label, reason=f"not an ONNX model: {name}")
    if not data:
        raise ModelError(model=label, reason="the file is empty")
    skeleton = without_weights(data) or Skeleton(data[:], {})
    try:
        proto = ModelProto.FromString(skeleton.message)
    except DecodeError as error:
        reason = "not an ONNX model, or cut short: the protobuf does not parse"
        raise ModelError(model=label, reason=reason) from error
    weights = {
        number: np.frombuffer(data, np.uint8, length, offset)
        for number, (offset, length) in skeleton.weights.items()
    }
    return proto, weights
