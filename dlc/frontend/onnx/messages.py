"""All messages of a model: protobuf has no walk of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import TensorProto

_MESSAGE = 11  # FieldDescriptor.TYPE_MESSAGE of protobuf


def messages(proto: Any) -> Iterator[tuple[Any, list[tuple[Any, Any]]]]:
    """A message and those inside of it, each with its fields: none of a tensor's are listed."""
    pending = [proto]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto):  # listing its fields would copy the elements
            pending.extend(message.external_data)
            yield message, []
            continue
        fields = message.ListFields()
        yield message, fields
        for field, value in fields:
            if field.type == _MESSAGE:
                pending.extend([value] if hasattr(value, "ListFields") else value)
