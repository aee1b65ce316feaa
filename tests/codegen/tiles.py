"""Tiles of a matrix engine where the CPU has none: what raises SIGILL is executed by tiles.c."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

from dlc.core.target import Target

TILES = frozenset({"amx-tile", "amx-bf16", "amx-int8"})
_SOURCE = Path(__file__).with_name("tiles.c")
_COMPILE = ("-std=gnu11", "-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def why_no_tiles(native: Target, folder: Path) -> str:
    """Why this process cannot use tiles, or "" once it can, for as long as it lives."""
    if native.arch != "x86_64" or "avx512bf16" not in native.features:
        return "this machine lacks the conversions to bf16 that go with a matrix engine"
    if native.features >= TILES:
        return ""
    compiler = shutil.which("cc")
    if compiler is None:
        return "this machine has no matrix engine, nor a C compiler to build the emulation of one"
    library = folder / "tiles.so"
    subprocess.run([compiler, *_COMPILE, "-o", str(library), str(_SOURCE)], check=True)
    ctypes.CDLL(str(library))
    return ""
