"""Is all text in a model text? Protobuf hands out fields of broken UTF-8 as bytes."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from dlc.frontend.onnx.messages import messages

_TEXT = 9  # FieldDescriptor.TYPE_STRING of protobuf


def broken_text(proto: Any) -> str:
    """The name of a field, in a message or in those inside of it, that is not UTF-8, or ""."""
    for message, fields in messages(proto):
        if isinstance(message, TensorProto) and isinstance(message.name, bytes):
            return "onnx.TensorProto.name"
        for field, value in fields:
            if field.type != _TEXT:
                continue
            values = [value] if isinstance(value, str | bytes) else value
            if any(isinstance(text, bytes) for text in values):
                return str(field.full_name)
    return ""
