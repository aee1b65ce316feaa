"""What an artefact says about itself, and the container that holds it.

An artefact is a shared object followed by a trailer, which the dynamic linker ignores:

    ELF shared object | manifest | footer

Footer, the last 48 bytes of the file (all numbers are little endian):

    magic 8 bytes | container version u32 | 0 u32 | manifest offset u64 | manifest bytes u64
    | file bytes u64 | XXH64 of everything before this field u64

Manifest (`str` is a u32 length and UTF-8 bytes, `list` is a u32 count and its items):

    ABI version u32 | dlc version str | architecture str | CPU features list of str
    | sizes list of (name str, min i64, max i64 or -1) | inputs list | outputs list | metadata str
    input, output: name str | DLPack type code u8 | bits u8 | dims list
    dim: 0 u8, constant i64 | 1 u8, index of a size u32 | 2 u8, text of an expression str

The C++ runtime reads the same bytes (`runtime/cpp/src/manifest.cc`, `container.cc`).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dlc.core import xxh64
from dlc.core.errors import ArtifactError, InternalError
from dlc.core.types import DType

MAGIC = b"DLCMODL\x1a"
CONTAINER_VERSION = 2
ABI_VERSION = 3  # DLC_ABI_VERSION of runtime/cpp/include/dlc/abi.h
FOOTER = struct.Struct("<8sIIQQQQ")

# Source: DLDataTypeCode of https://dmlc.github.io/dlpack/latest/c_api.html
_INT, _UINT, _FLOAT, _HANDLE, _BFLOAT, _BOOL = 0, 1, 2, 3, 4, 6
_CODES = {
    DType.STR: (_HANDLE, 128),  # a dlc_text of dlc/runtime.h
    DType.BOOL: (_BOOL, 8),
    DType.BF16: (_BFLOAT, 16),
    DType.F8E4M3FN: (10, 8),
    DType.F8E4M3FNUZ: (11, 8),
    DType.F8E5M2: (12, 8),
    DType.F8E5M2FNUZ: (13, 8),
    DType.F8E8M0: (14, 8),
    DType.F6E2M3: (15, 6),
    DType.F6E3M2: (16, 6),
    DType.F4E2M1: (17, 4),
    **{
        dtype: (_INT if dtype.is_signed else _UINT, dtype.bits)
        for dtype in DType
        if dtype.is_int and dtype is not DType.INDEX
    },
    **{t: (_FLOAT, t.bits) for t in (DType.F16, DType.F32, DType.F64)},
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_CONSTANT, _SIZE, _EXPRESSION = 0, 1, 2


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A size variable and the values it may take; `max` is None where nothing bounds it."""

    name: str
    min: int = 0
    max: int | None = None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output.

    A dimension is a constant, the name of a size variable or, in outputs, the text of an
    expression over size variables.
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a loader must know of an artefact before it runs a byte of it."""

    dlc_version: str
    architecture: str  # x86_64 or aarch64
    cpu_features: tuple[str, ...] = ()  # required; LLVM's names
    sizes: tuple[SizeSpec, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)  # JSON; the runtime ignores it
    abi_version: int = ABI_VERSION


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest; equal manifests have equal bytes."""
    sizes = {size.name: i for i, size in enumerate(manifest.sizes)}
    metadata = json.dumps(dict(manifest.metadata), sort_keys=True, separators=(",", ":"))
    return b"".join(
        (
            struct.pack("<I", manifest.abi_version),
            _encode_str(manifest.dlc_version),
            _encode_str(manifest.architecture),
            _encode_list([_encode_str(name) for name in manifest.cpu_features]),
            _encode_list([_encode_size(size) for size in manifest.sizes]),
            _encode_list([_encode_tensor(t, sizes, is_input=True) for t in manifest.inputs]),
            _encode_list([_encode_tensor(t, sizes, is_input=False) for t in manifest.outputs]),
            _encode_str(metadata),
        )
    )


def decode_manifest(data: bytes) -> Manifest:
    """The manifest with these bytes.

    Raises:
        ArtifactError: the bytes are no manifest of this container version.
    """
    reader = _Reader(data)
    try:
        abi_version = reader.number("<I")
        version, architecture = reader.text(), reader.text()
        features = tuple(reader.text() for _ in range(reader.count()))
        sizes = tuple(_decode_size(reader) for _ in range(reader.count()))
        inputs = tuple(_decode_tensor(reader, sizes) for _ in range(reader.count()))
        outputs = tuple(_decode_tensor(reader, sizes) for _ in range(reader.count()))
        metadata = json.loads(reader.text())
        if reader.position != len(data) or not isinstance(metadata, dict):
            raise ValueError("it does not end where it should")
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise ArtifactError(path="manifest", reason=f"it is damaged: {error}") from error
    return Manifest(version, architecture, features, sizes, inputs, outputs, metadata, abi_version)


def seal(
    path: Path, manifest: Manifest, *, hasher: Callable[[Path], int] = xxh64.hash_file
) -> None:
    """Turn a shared object nobody else can see yet into an artefact: append manifest and footer.

    `hasher` gives the XXH64 of a file; pass `dlc.runtime.hash_file` where the runtime is there.
    """
    encoded = encode_manifest(manifest)
    offset = path.stat().st_size
    total = offset + len(encoded) + FOOTER.size
    footer = FOOTER.pack(MAGIC, CONTAINER_VERSION, 0, offset, len(encoded), total, 0)[:-8]
    with path.open("ab") as out:
        out.write(encoded + footer)
        out.flush()
        out.write(struct.pack("<Q", hasher(path)))


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of the artefact at `path`; the hash is not checked.

    Raises:
        ArtifactError: there is no such file, or it is no artefact.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - FOOTER.size))
            footer = file.read(FOOTER.size)
            offset, size = _check_footer(name, footer, end)
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise ArtifactError(path=name, reason=error.strerror or str(error)) from error
    try:
        return decode_manifest(data)
    except ArtifactError as error:
        raise ArtifactError(path=name, reason=f"the manifest: {error.fields['reason']}") from error


def _check_footer(name: str, footer: bytes, file_size: int) -> tuple[int, int]:
    """Offset and size of the manifest."""
    if len(footer) < FOOTER.size or not footer.startswith(MAGIC):
        raise ArtifactError(
            path=name,
            reason="not a compiled model: the dlc trailer is missing",
            hint="was the file cut short, or stripped? build it again with `dlc build`",
        )
    _, version, _, offset, size, total, _ = FOOTER.unpack(footer)
    if version != CONTAINER_VERSION:
        reason = f"container version {version}; this dlc reads {CONTAINER_VERSION}"
        raise ArtifactError(path=name, reason=reason, hint="build it again with this dlc")
    if total != file_size or offset + size + FOOTER.size != file_size:
        raise ArtifactError(
            path=name,
            reason=f"damaged: it has {file_size} bytes, its footer says {total}",
            hint="copy or build it again",
        )
    return offset, size


def _encode_str(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _encode_list(items: list[bytes]) -> bytes:
    return struct.pack("<I", len(items)) + b"".join(items)


def _encode_size(size: SizeSpec) -> bytes:
    bound = -1 if size.max is None else size.max
    return _encode_str(size.name) + struct.pack("<qq", size.min, bound)


def _encode_tensor(tensor: TensorSpec, sizes: Mapping[str, int], *, is_input: bool) -> bytes:
    def dim(value: int | str) -> bytes:
        if isinstance(value, int):
            return struct.pack("<Bq", _CONSTANT, value)
        if value in sizes:
            return struct.pack("<BI", _SIZE, sizes[value])
        if is_input:
            raise InternalError(detail=f"input '{tensor.name}': '{value}' is no size variable")
        return struct.pack("<B", _EXPRESSION) + _encode_str(value)

    code, bits = _CODES[tensor.dtype]
    dims = _encode_list([dim(value) for value in tensor.shape])
    return _encode_str(tensor.name) + struct.pack("<BB", code, bits) + dims


def _decode_size(reader: _Reader) -> SizeSpec:
    name, low, high = reader.text(), reader.number("<q"), reader.number("<q")
    return SizeSpec(name, low, None if high == -1 else high)


def _decode_tensor(reader: _Reader, sizes: tuple[SizeSpec, ...]) -> TensorSpec:
    def dim() -> int | str:
        match reader.number("<B"):
            case 0:
                return reader.number("<q")
            case 1:
                return sizes[reader.number("<I")].name
            case 2:
                return reader.text()
            case kind:
                raise ValueError(f"unknown kind of dimension {kind}")

    name = reader.text()
    dtype = _DTYPES[reader.number("<B"), reader.number("<B")]
    return TensorSpec(name, dtype, tuple(dim() for _ in range(reader.count())))


class _Reader:
    """Reads from bytes and never past their end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self.data, self.position)
        self.position += struct.calcsize(layout)
        assert isinstance(value, int)
        return value

    def count(self) -> int:
        """A count of items, each of which takes at least one byte."""
        count = self.number("<I")
        if count > len(self.data) - self.position:
            raise ValueError(f"a list of {count} items does not fit")
        return count

    def text(self) -> str:
        size = self.count()
        self.position += size
        return self.data[self.position - size : self.position].decode()
