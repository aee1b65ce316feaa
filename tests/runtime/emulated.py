"""Builds models for a GPU whose images the stub of libcuda runs, and runs them in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dlc.codegen.cuda.build as gpu_build
from dlc.codegen.cuda.emit import Kernel
from dlc.codegen.cuda.emulate import Emulator
from dlc.codegen.cuda.host import Image
from dlc.compiler import build
from dlc.whole_build import rules_own

MAGIC = b"DLC-EMULATED "
SOURCE = Path(__file__).with_name("stub_cuda.cc")
_RUN = """
import sys
import numpy as np
import dlc.runtime
model, inputs, outputs, times = sys.argv[1:]
arrays = dict(np.load(inputs))
module = dlc.runtime.load(model)
for _ in range(int(times)):
    found = module.run(arrays)
np.savez(outputs, **found)
"""


def build_stub(folder: Path) -> Path:
    """A folder that holds the stub as `libcuda.so.1`."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run([*command, "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return folder


def build_emulated(
    model: Any,
    path: Path,
    monkeypatch: Any,
    *,
    archs: Sequence[int] = (80,),
    optimize: bool = False,
    **options: Any,
) -> None:
    """Build a model for a GPU with images that only the stub can load.

    Given a scheduler, a build keeps no artefact: nobody else may find images of these.
    """
    compile_units = emulated_units(path.parent, archs, optimize=optimize)
    monkeypatch.setattr(gpu_build, "compile_units", compile_units)
    build(model, path, "cuda", schedule=rules_own, **options)


def emulated_units(
    folder: Path, archs: Sequence[int] = (80,), *, optimize: bool = False
) -> Callable[..., Any]:
    """What takes the place of `compile_units`: images that only the stub can load."""

    def compile_units(kernels: Sequence[Kernel], *_: Any, **__: Any) -> Any:
        library = Emulator(kernels, folder=folder, optimize=optimize).path
        data = MAGIC + os.fsencode(library) + b"\0"
        images = [Image(0, "cubin", arch, data) for arch in archs]
        return images, {k.symbol: 0 for k in kernels}

    return compile_units


def run_on_stub(
    path: Path,
    stub: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    times: int = 1,
    **environment: str,
) -> tuple[dict[str, np.ndarray], list[str], str]:
    """Outputs, the calls of the driver, and what was printed as an error."""
    log, inputs, outputs = (path.with_suffix(s) for s in (".log", ".in.npz", ".out.npz"))
    for old in (log, outputs):
        old.unlink(missing_ok=True)
    np.savez(inputs, **arrays)
    env = os.environ | {"LD_LIBRARY_PATH": str(stub), "STUB_CUDA_LOG": str(log)} | environment
    command = [sys.executable, "-c", _RUN, str(path), str(inputs), str(outputs), str(times)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    calls = log.read_text().splitlines() if log.exists() else []
    found = dict(np.load(outputs)) if outputs.exists() else {}
    return found, calls, done.stderr
