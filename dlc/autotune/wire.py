"""Messages between the tuner and its workers: JSON, then binary pieces, all after their lengths.

Nothing that is read is ever executed or unpickled: a worker may sit on another machine.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

_HEAD = struct.Struct("<4sII")  # magic, bytes of JSON, number of pieces
_LENGTH = struct.Struct("<Q")
_MAGIC = b"dlcw"
PROTOCOL = 1  # one more where a job or an answer is another: both ends must have the same
MAX_BYTES = 1 << 31  # no message of ours is larger; a length beyond is a broken stream


@dataclass(frozen=True, slots=True)
class Message:
    """What is said, and the bytes that go with it."""

    data: dict[str, Any]
    blobs: tuple[bytes, ...] = field(default=())


def write_message(stream: IO[bytes], data: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Send a message."""
    text = json.dumps(data).encode()
    parts = [_HEAD.pack(_MAGIC, len(text), len(blobs))]
    parts += [_LENGTH.pack(len(blob)) for blob in blobs]
    stream.write(b"".join([*parts, text, *blobs]))
    stream.flush()


def read_message(stream: IO[bytes]) -> Message | None:
    """The next message; None where the other end is gone, or says what is no message."""
    head = _exactly(stream, _HEAD.size)
    if head is None:
        return None
    magic, size, count = _HEAD.unpack(head)
    if magic != _MAGIC or size > MAX_BYTES or count > 1024:
        return None
    lengths = _exactly(stream, _LENGTH.size * count)
    if lengths is None:
        return None
    sizes = [size, *(n for (n,) in _LENGTH.iter_unpack(lengths))]
    if max(sizes) > MAX_BYTES:
        return None
    parts = [_exactly(stream, n) for n in sizes]
    if any(part is None for part in parts):
        return None
    try:
        data = json.loads(parts[0] or b"")
    except ValueError:
        return None
    return Message(data, tuple(p or b"" for p in parts[1:])) if isinstance(data, dict) else None


def _exactly(stream: IO[bytes], size: int) -> bytes | None:
    data = stream.read(size) if size else b""
    return data if len(data) == size else None
