"""The hand-written model of these tests: compiles models/affine.c and appends its trailer.

`python -m tests.runtime.affine OUTPUT.so [FACTOR]`, for the C++ tests.
"""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys
from pathlib import Path

from dlc.core.manifest import Manifest, SizeSpec, TensorSpec, seal
from dlc.core.types import DType

ROOT = Path(__file__).parents[2]

AFFINE = Manifest(
    dlc_version="0.1.0",
    architecture={"arm64": "aarch64"}.get(platform.machine(), platform.machine()),
    sizes=(SizeSpec("batch", 1, 64),),
    inputs=(TensorSpec("x", DType.F32, ("batch", 3)), TensorSpec("b", DType.F32, (3,))),
    outputs=(TensorSpec("y", DType.F32, ("batch", 3)), TensorSpec("total", DType.F32, (1,))),
    metadata={"model": "affine"},
)


def compile_model(output: Path, source: str = "affine.c", *flags: str, cc: str = "cc") -> None:
    """A shared object without a trailer."""
    path = Path(__file__).parent / "models" / source
    command = [cc, "-shared", "-fPIC", "-O2", "-fvisibility=hidden", *flags]
    include = ROOT / "dlc/runtime/cpp/include"
    subprocess.run([*command, f"-I{include}", str(path), "-o", str(output)], check=True)


def build(output: Path, factor: int = 2, *flags: str, cc: str = "cc", **changes: object) -> Path:
    """The artefact, with some fields of its manifest changed."""
    compile_model(output, "affine.c", f"-DFACTOR={factor}", *flags, cc=cc)
    seal(output, dataclasses.replace(AFFINE, **changes))  # type: ignore[arg-type]
    return output


if __name__ == "__main__":
    cc, arch, output, factor = sys.argv[1:]
    build(Path(output), int(factor), cc=cc, architecture=arch)
