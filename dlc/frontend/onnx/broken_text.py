"""Is all text in a model text? Protobuf hands out fields of broken UTF-8 as bytes."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

_TEXT, _MESSAGE = 9, 11  # FieldDescriptor.TYPE_STRING and TYPE_MESSAGE of protobuf


def broken_text(proto: Any) -> str:
    """The name of a field, in a message or in those inside of it, that is not UTF-8, or ""."""
    pending = [proto]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto):  # listing its fields would copy the elements
            if isinstance(message.name, bytes):
                return "onnx.TensorProto.name"
            pending.extend(message.external_data)
            continue
        for field, value in message.ListFields():
            if field.type not in (_TEXT, _MESSAGE):
                continue
            single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
            values = [value] if single else value
            if field.type == _MESSAGE:
                pending.extend(values)
            elif any(isinstance(text, bytes) for text in values):
                return str(field.full_name)
    return ""
