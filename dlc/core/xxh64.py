"""XXH64 in plain Python: the hash that guards an artefact, for where the runtime is not built.

About 1 MB/s. The C++ runtime has the same hash at memory speed (`dlc.runtime.hash_file`).

Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, section XXH64, seed 0.
"""

from __future__ import annotations

import struct
from pathlib import Path

PIECE_BYTES = 1 << 20
_MASK = (1 << 64) - 1
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5


def xxh64(data: bytes) -> int:
    """The 64-bit hash of `data`."""
    size = len(data)
    position = size - size % 32
    if size >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        for words in struct.iter_unpack("<4Q", data[:position]):
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        value = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        value = _P5
    return _avalanche(_finish((value + size) & _MASK, data[position:]))


def hash_file(path: Path) -> int:
    """The hash of all bytes of a file: of the hashes of each MiB, where it has more than one."""
    data = path.read_bytes()
    if len(data) <= PIECE_BYTES:
        return xxh64(data)
    pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
    return xxh64(b"".join(xxh64(piece).to_bytes(8, "little") for piece in pieces))


def _finish(value: int, tail: bytes) -> int:
    """Mix in the last bytes, fewer than 32."""
    while len(tail) >= 8:
        word = int.from_bytes(tail[:8], "little")
        value = (_rotate(value ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        tail = tail[8:]
    if len(tail) >= 4:
        word = int.from_bytes(tail[:4], "little")
        value = (_rotate(value ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        tail = tail[4:]
    for byte in tail:
        value = _rotate(value ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    return value


def _avalanche(value: int) -> int:
    value = (value ^ value >> 33) * _P2 & _MASK
    value = (value ^ value >> 29) * _P3 & _MASK
    return value ^ value >> 32


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
