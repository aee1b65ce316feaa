"""CUDA C++ to code for GPUs: nvcc where it is installed, else NVRTC, in parallel processes.

Kernels are compiled many at a time, since the header and the start of the compiler cost more than
a kernel. An image is kept in the cache under everything it depends on.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dlc.codegen.cuda.emit import Kernel
from dlc.codegen.cuda.host import Image
from dlc.codegen.cuda.names import SEAM
from dlc.core.cache import Cache, default_cache
from dlc.core.errors import CodegenError, TargetError
from dlc.core.machine import usable_cores
from dlc.core.target import Gpu

KERNELS_PER_UNIT = 12
FALLBACK = "compute_80"  # PTX for GPUs newer than all architectures asked for
OVERLAPPING = "compute_90"  # from here on a launch may begin before the one before is done
_HINT = "pip install dlc[cuda], or put nvcc on the PATH"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A way to compile CUDA C++."""

    name: str  # "nvcc" or "nvrtc"
    path: str
    version: str


def compile_units(
    kernels: Sequence[Kernel], gpu: Gpu, *, jobs: int | None = None, cache: Cache | None = None
) -> tuple[list[Image], dict[str, int]]:
    """Images for all architectures, and the unit that holds each kernel.

    Raises:
        TargetError: no compiler is installed.
        CodegenError: it rejects a kernel.
    """
    compiler = find_compiler()
    store = cache or default_cache()
    texts = list({k.symbol: k for k in kernels}.values())
    groups = [texts[n : n + KERNELS_PER_UNIT] for n in range(0, len(texts), KERNELS_PER_UNIT)]
    units = {k.symbol: n for n, group in enumerate(groups) for k in group}

    def unit(number: int) -> list[Image]:
        source = _source(groups[number])
        ptx = _made(store, compiler, source, FALLBACK)
        made = [(arch, _made(store, compiler, source, arch)) for arch in gpu.archs]
        cubins = [Image(number, "cubin", _number(arch), data) for arch, data in made]
        return [*cubins, Image(number, "ptx", _number(FALLBACK), ptx)]

    with ThreadPoolExecutor(jobs or usable_cores()) as pool:
        return [image for made in pool.map(unit, range(len(groups))) for image in made], units


def _number(arch: str) -> int:
    return int(arch.rpartition("_")[2])


def _made(store: Cache, compiler: Compiler, source: str, arch: str) -> bytes:
    """An image out of the cache, or compiled: by nvcc from PTX.

    Reading C++ takes most of the time, and is the same for all architectures that begin launches
    in the same way.
    """
    key = f"{compiler.name} {compiler.version} {FALLBACK} {arch}\n{source}".encode()
    data = store.get(key)
    if data is None:
        if arch.startswith("sm_") and compiler.name == "nvcc":
            overlaps = _number(arch) >= _number(OVERLAPPING)
            ptx = _made(store, compiler, source, OVERLAPPING if overlaps else FALLBACK)
            data = _compile(compiler, ptx, arch, ".ptx")
        else:
            data = _compile(compiler, source.encode(), arch, ".cu")
        store.put(key, data)
    return data


def _source(kernels: Sequence[Kernel]) -> str:
    """One self-contained source: the seam, then the kernels."""
    seam = SEAM.read_text(encoding="utf-8")
    return seam + "\n" + "\n".join(k.text for k in kernels)


@functools.cache
def find_compiler() -> Compiler:
    """The compiler there is.

    Raises:
        TargetError: there is none.
    """
    path = shutil.which("nvcc")
    if path is not None:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        return Compiler("nvcc", path, done.stdout.strip().splitlines()[-1] if done.stdout else "")
    for path in _nvrtc_libraries():
        return Compiler("nvrtc", path, os.path.basename(path))
    raise TargetError(target="cuda", reason="there is no CUDA compiler", hint=_HINT)


def _nvrtc_libraries() -> Iterator[str]:
    """NVRTC of a Python package, whatever its major version."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = sorted(glob.glob(os.path.join(folder, "*/lib/libnvrtc.so.*")))
        yield from (p for p in found if ".alt." not in p)


def _compile(compiler: Compiler, source: bytes, arch: str, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dlc-cuda-") as name:
        folder = Path(name)
        file, out = folder / f"kernels{suffix}", folder / "image"
        file.write_bytes(source)
        done = subprocess.run(
            _command(compiler, file, out, arch), capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
            raise CodegenError(stage=compiler.name, unit=f"kernels for {arch}", reason=reason)
        return out.read_bytes()


def _command(compiler: Compiler, file: Path, out: Path, arch: str) -> list[str]:
    if compiler.name == "nvrtc":
        names = [compiler.path, str(file), str(out), arch]
        return [sys.executable, "-m", "dlc.codegen.cuda.compile", *names]
    kind = "-ptx" if arch.startswith("compute_") else "-cubin"
    flags = ["-std=c++17", "-diag-suppress=177", f"-arch={arch}"]
    return [compiler.path, kind, *flags, "-o", str(out), str(file)]


def compile_with_nvrtc(library: str, source: str, arch: str) -> bytes:
    """Compile in this process; NVRTC runs on one core, so this is called in one of its own.

    Source: NVRTC 13.0, "User Interface".
    """
    for beside in sorted(Path(library).parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(beside))  # which NVRTC looks for by name only, not in its own folder
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status:
            raise CodegenError(stage="nvrtc", unit=f"kernels for {arch}", reason=log())

    def log() -> str:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(1, size.value))
        nvrtc.nvrtcGetProgramLog(program, text)
        return text.value.decode(errors="replace")

    check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
        )
    )
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--diag-suppress=177"]
    array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    check(nvrtc.nvrtcCompileProgram(program, len(options), array))
    what = "PTX" if arch.startswith("compute_") else "CUBIN"
    size = ctypes.c_size_t()
    check(nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    check(nvrtc[f"nvrtcGet{what}"](program, data))
    return data.raw


def main() -> None:
    """The process that runs NVRTC: library, source file, result, architecture."""
    library, file, out, arch = sys.argv[1:]
    try:
        data = compile_with_nvrtc(library, Path(file).read_text(encoding="utf-8"), arch)
    except CodegenError as error:
        sys.stderr.write(f"{error.fields['reason']}\n")
        sys.exit(1)
    Path(out).write_bytes(data)


if __name__ == "__main__":
    main()
