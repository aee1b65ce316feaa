"""Make an artefact: link objects and weights into one shared object, then seal it.

The shared object exports one symbol and needs nothing but `memcpy` and its like. Weights are a
page-aligned read-only section, so processes that load one artefact share them. Equal inputs give
equal bytes: no time stamp, no path and no build id gets in.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dlc.codegen.elf import fill_reservation, read_dynamic_symbols, write_reservation
from dlc.codegen.llvm.host import MODEL_SYMBOL
from dlc.codegen.llvm.toolchain import find_driver
from dlc.codegen.weight_offsets import WEIGHTS_SYMBOL, weight_offsets
from dlc.core import xxh64
from dlc.core.errors import CodegenError, InternalError
from dlc.core.manifest import Manifest, seal
from dlc.core.staging import staging, writing
from dlc.core.target import Target
from dlc.schedule.loop import Buffer
from dlc.schedule.program import Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALLOWED_SYMBOLS = frozenset({"memcpy", "memmove", "memset", "snprintf"})
# The largest page size of a Linux of the architecture.
_PAGE_BYTES = {"x86_64": 4096, "aarch64": 65536}
_FLAGS = (
    "-shared",
    "-nostdlib",
    "-Wl,-z,noexecstack",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-Bsymbolic",
    "-Wl,--exclude-libs,ALL",
    "-Wl,--build-id=none",
    "-Wl,--hash-style=gnu",
)


def export_library(
    program: Program,
    constants: Mapping[str, NDArray[Any]],
    objects: Sequence[bytes],
    manifest: Manifest,
    out_path: Path,
    target: Target,
    *,
    hasher: Callable[[Path], int] = xxh64.hash_file,
) -> None:
    """Write the artefact of a program.

    Args:
        program: the program; its constants are the weights, in order.
        constants: the data of every constant, dense and of the declared shape and type.
        objects: object files: the host program's and those of its kernels; equal ones link once.
        manifest: what the artefact says about itself.
        out_path: where to write it; a file there is replaced once the new one is complete.
        target: the machine it is for.
        hasher: XXH64 of a file; default: the slow one in Python.

    Raises:
        UserError: nothing can be written at `out_path`.
        TargetError: there is no C compiler to link with.
        CodegenError: the linker fails, or the result needs or offers a symbol it must not.
    """
    with staging(out_path) as draft, writing(out_path):
        size = weight_offsets(program.constants)[1]
        linked = link(program, size, objects, draft.parent, target)
        _check_symbols(program, linked)
        if size:
            fill_reservation(linked, lambda f: write_weights(program.constants, constants, f))
        seal(linked, manifest, hasher=hasher)
        # No fsync, which takes longer than linking: the loader refuses a file that a power failure
        # cut short.
        linked.replace(out_path)


def link(
    program: Program, weight_bytes: int, objects: Sequence[bytes], folder: Path, target: Target
) -> Path:
    """Link objects, with a place for weights that is still empty."""
    page = _PAGE_BYTES[target.arch]
    write_reservation(folder / "weights.o", target.arch, WEIGHTS_SYMBOL, page, weight_bytes)
    exports = f"{{ global: {MODEL_SYMBOL}; local: *; }};\n"
    (folder / "exports.map").write_text(exports, encoding="ascii")
    names = []
    for index, data in enumerate(dict.fromkeys(objects)):
        names.append(f"{index:04d}.o")
        (folder / names[-1]).write_bytes(data)
    command = [*find_driver(target), *_FLAGS, "-Wl,--version-script=exports.map", "-o", "out.so"]
    done = subprocess.run(
        [*command, *names, "weights.o"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        # A linker says so in any language.
        _check_room(folder / "room", sum(map(len, dict.fromkeys(objects))))
        reason = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise CodegenError(stage="the linker", unit=program.name, reason=reason)
    return folder / "out.so"


def _check_room(path: Path, size: int) -> None:
    """Ask the system for a file of so many bytes.

    Raises:
        OSError: it has no room for it.
    """
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))


def write_weights(
    buffers: tuple[Buffer, ...], constants: Mapping[str, NDArray[Any]], file: BinaryIO
) -> int:
    """Write the constants one after the other, each aligned, without copying dense ones.

    Returns:
        The bytes written.
    """
    offsets, end = weight_offsets(buffers)
    done = 0
    for buffer in buffers:
        array, kind = constants[buffer.name], buffer.type
        if array.shape != kind.static_shape or array.itemsize != kind.dtype.size_bytes:
            detail = f"constant '{buffer.name}' is {array.dtype}{list(array.shape)}, not {kind}"
            raise InternalError(detail=detail)
        if array.dtype.byteorder == ">":  # every target is little endian
            array = array.astype(array.dtype.newbyteorder("<"))
        dense = array if array.flags.c_contiguous else array.copy()
        data = dense.reshape(-1).view("u1").data  # bytes: memoryview knows no bfloat16
        file.write(bytes(offsets[buffer.name] - done))
        file.write(data)
        done = offsets[buffer.name] + len(data)
    file.write(bytes(end - done))
    return end


def _check_symbols(program: Program, path: Path) -> None:
    """The one exported symbol is there, and nothing is needed but what any process has."""
    symbols = read_dynamic_symbols(path)
    problems = []
    if symbols.defined != {MODEL_SYMBOL}:
        problems.append(f"exported are {', '.join(sorted(symbols.defined)) or 'no symbols'}")
    if unknown := symbols.undefined - ALLOWED_SYMBOLS:
        problems.append(f"no object defines {', '.join(sorted(unknown))}")
    if problems:
        reason = "; ".join(problems)
        raise CodegenError(stage="the check of symbols", unit=program.name, reason=reason)
