"""A model's bytes without its weights: protobuf would copy each weight, here they stay in the file.

The fields of the message are walked just deep enough to find the raw data of initializers. What
is left is a small message, which protobuf parses, and a list of where the weights lie.

Source: https://protobuf.dev/programming-guides/encoding/, and the field numbers of
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

Buffer = bytes | mmap.mmap

_GRAPH = 7  # ModelProto.graph
_INITIALIZER = 5  # GraphProto.initializer
_RAW_DATA = 9  # TensorProto.raw_data
_SMALL = 4096
"""Raw data of fewer bytes is left in the message."""


class Skeleton(NamedTuple):
    """A message without weights, and for each initializer that lost them (offset, length)."""

    message: bytes
    weights: dict[int, tuple[int, int]]


class _Field(NamedTuple):
    number: int
    kind: int
    start: int  # of the whole field, its key included
    inside: int  # of what the field holds
    end: int


class _NotUnderstoodError(Exception):
    """The bytes are not what this module expects; protobuf shall judge them."""


def without_weights(data: Buffer) -> Skeleton | None:
    """The model without the raw data of its initializers; None if that is not surely the same."""
    try:
        return _split(data)
    except _NotUnderstoodError:
        return None


def _split(data: Buffer) -> Skeleton:
    parts: list[bytes] = []
    weights: dict[int, tuple[int, int]] = {}
    graphs = 0
    for field in _fields(data, 0, len(data)):
        if field.number != _GRAPH:
            parts.append(data[field.start : field.end])
            continue
        if field.kind != 2:
            raise _NotUnderstoodError
        graphs += 1
        graph = _graph(data, field, weights)
        parts += [_key(_GRAPH), _varint(len(graph)), graph]
    if graphs != 1:  # protobuf would merge several
        raise _NotUnderstoodError
    return Skeleton(b"".join(parts), weights)


def _graph(data: Buffer, graph: _Field, weights: dict[int, tuple[int, int]]) -> bytes:
    parts: list[bytes] = []
    number = 0
    for field in _fields(data, graph.inside, graph.end):
        if field.number != _INITIALIZER:
            parts.append(data[field.start : field.end])
            continue
        if field.kind != 2:
            raise _NotUnderstoodError
        tensor, place = _tensor(data, field)
        parts += [_key(_INITIALIZER), _varint(len(tensor)), tensor]
        if place is not None:
            weights[number] = place
        number += 1
    return b"".join(parts)


def _tensor(data: Buffer, tensor: _Field) -> tuple[bytes, tuple[int, int] | None]:
    parts: list[bytes] = []
    places: list[tuple[int, int]] = []
    for field in _fields(data, tensor.inside, tensor.end):
        if field.number != _RAW_DATA:
            parts.append(data[field.start : field.end])
            continue
        places.append((field.inside, field.end - field.inside))
        if field.kind != 2 or len(places) > 1:  # of several, protobuf takes the last
            raise _NotUnderstoodError
        if places[0][1] < _SMALL:
            return data[tensor.inside : tensor.end], None
    return b"".join(parts), places[0] if places else None


def _fields(data: Buffer, start: int, end: int) -> Iterator[_Field]:
    """The fields of one message."""
    while start < end:
        key, inside = _read_varint(data, start, end)
        number, kind = key >> 3, key & 7
        match kind:
            case 0:
                _, after = _read_varint(data, inside, end)
            case 1:
                after = inside + 8
            case 2:
                length, inside = _read_varint(data, inside, end)
                after = inside + length
            case 5:
                after = inside + 4
            case _:
                raise _NotUnderstoodError
        if after > end or number == 0:
            raise _NotUnderstoodError
        yield _Field(number, kind, start, inside, after)
        start = after


def _read_varint(data: Buffer, start: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while start < end and shift < 64:
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7
    raise _NotUnderstoodError


def _key(number: int) -> bytes:
    return _varint(number << 3 | 2)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
