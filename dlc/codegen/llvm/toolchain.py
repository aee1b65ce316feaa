"""Find a C compiler driver that assembles and links for a target."""

from __future__ import annotations

import shutil

from dlc.core.errors import TargetError
from dlc.core.machine import host_arch
from dlc.core.target import Target

_NATIVE = ("cc", "gcc", "clang")


def find_driver(target: Target) -> tuple[str, ...]:
    """The command of a C compiler driver for a target: its path and the flags that select it.

    Raises:
        TargetError: there is none; the hint names a package.
    """
    if target.arch == host_arch():
        for name in _NATIVE:
            if path := shutil.which(name):
                return (path,)
        reason = "linking needs a C compiler; there is no cc, gcc or clang on the PATH"
        raise TargetError(target=target.triple, reason=reason, hint="install gcc or clang")
    triple = gnu_triple(target)
    if path := shutil.which(f"{triple}-gcc"):
        return (path,)
    # clang needs a linker for the other architecture, which lld is.
    clang, lld = shutil.which("clang"), shutil.which("ld.lld")
    if clang and lld:
        return (clang, f"--target={triple}", "-fuse-ld=lld")
    raise TargetError(
        target=target.triple,
        reason=f"linking needs {triple}-gcc, or clang with lld; neither is on the PATH",
        hint=f"install gcc-{triple.replace('_', '-')}, or clang and lld",
    )


def gnu_triple(target: Target) -> str:
    """The triple as names of cross compilers spell it: without a vendor."""
    parts = target.triple.split("-")
    return "-".join([parts[0], *parts[-2:]])
