"""Which files beside a model hold its weights: nobody may write over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import TensorProto

from dlc.frontend.onnx.load import read_proto

_MESSAGE = 11  # FieldDescriptor.TYPE_MESSAGE of protobuf


def external_files(model: Path) -> set[Path]:
    """The files that tensors of a model name, whether they are there or not.

    Raises:
        ModelError: as `load_model`, of what is read without weights.
    """
    found: set[Path] = set()
    pending: list[Any] = [read_proto(model)]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto):  # listing its fields would copy the elements
            keys = {entry.key: entry.value for entry in message.external_data}
            if location := keys.get("location"):
                found.add(model.parent / location)
            continue
        for field, value in message.ListFields():
            if field.type == _MESSAGE:
                pending.extend([value] if hasattr(value, "ListFields") else value)
    return found
