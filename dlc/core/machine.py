"""Facts about the machine dlc runs on, read from the kernel: CPU features, caches, usable cores.

`root` is the file system to read from; tests give a folder of their own.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from dlc.core.cpus import (
    BASELINE,
    FEW_LOADS,
    IMPLIES,
    IN_HALVES,
    KERNEL_NAMES,
    SLOW_PAIRS,
    with_dependent,
    with_implied,
)
from dlc.core.target import Target

_ROOT = Path("/")
_NAMES = ("vendor_id", "cpu family", "model", "stepping", "model name")
_ARCH_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to know about a machine."""

    arch: str
    features: frozenset[str]
    cores: int
    l1_bytes: int | None
    l2_bytes: int | None
    in_halves: bool = False
    """Whether it works on vectors of 512 bits in two halves, if it has any."""
    slow_pairs: bool = False
    """Whether its vectors add products of pairs of bf16 more slowly than those of floats."""
    few_loads: bool = False
    """Whether it loads little more than one vector of 512 bits in a cycle, if it has any."""
    name: str = ""
    """What the kernel calls its first CPU."""


def read_machine(root: Path = _ROOT) -> Machine:
    """Describe this machine."""
    arch = host_arch()
    l1, l2 = _cache_bytes(root, 1), _cache_bytes(root, 2)
    cpu = _first_cpu(root)
    features = _features(cpu, arch)
    if "amx-tile" in features and not may_use_tiles():
        features -= with_dependent(arch, "amx-tile")
    family = cpu.get("vendor_id", ""), cpu.get("cpu family", "")
    in_halves = "avx512f" in features and family in IN_HALVES
    slow_pairs = "avx512fp16" in features and family in SLOW_PAIRS
    few_loads = "avx512f" in features and (*family, cpu.get("model", "")) in FEW_LOADS
    name = " ".join(cpu.get(key, "") for key in _NAMES)
    facts = (in_halves, slow_pairs, few_loads)
    return Machine(arch, features, usable_cores(root), l1, l2, *facts, name)


def may_use_tiles() -> bool:
    """Whether this process may use the tile registers of AMX: Linux hands them out on request.

    Source: Documentation/arch/x86/xstate.rst of the Linux kernel.
    """
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def can_run(target: Target) -> bool:
    """Whether the CPU of this machine runs code for a target."""
    here = read_machine()
    return target.arch == here.arch and target.features <= here.features


def host_arch() -> str:
    """The architecture of this machine, by LLVM's name."""
    name = platform.machine().lower()
    return _ARCH_NAMES.get(name, name)


def usable_cores(root: Path = _ROOT) -> int:
    """How many physical cores this process may use: affinity, then the quota of its cgroup.

    A quota of 1.5 CPUs is one: two threads would be stopped for a quarter of the time. The runtime
    counts so, too.
    """
    allowed = os.sched_getaffinity(0)
    siblings = {_siblings(root, cpu) for cpu in allowed}
    quota = _quota(root)
    return max(1, min(len(siblings), len(siblings) if quota is None else int(quota)))


def _features(cpu: dict[str, str], arch: str) -> frozenset[str]:
    """Listed features of a CPU; one whose prerequisites are missing does not count."""
    known, names = IMPLIES.get(arch, {}), KERNEL_NAMES.get(arch, {})
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    listed = {names.get(flag, flag) for flag in flags} & set(known)
    found = listed | BASELINE.get(arch, frozenset())
    return frozenset(f for f in found if with_implied(arch, f) <= found)


def _first_cpu(root: Path) -> dict[str, str]:
    """What the kernel lists of the first CPU."""
    about, _, _ = _read(root / "proc/cpuinfo").partition("\n\n")
    lines = (line.partition(":") for line in about.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _cache_bytes(root: Path, level: int) -> int | None:
    """Bytes of the data cache of a level, or None where the kernel does not tell."""
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if _read(folder / "level") != str(level) or _read(folder / "type") == "Instruction":
            continue
        size = _read(folder / "size")
        if size.endswith("K") and size[:-1].isdecimal():
            return int(size[:-1]) * 1024
    return None


def _siblings(root: Path, cpu: int) -> str:
    """The hardware threads of a CPU's core, in the kernel's spelling; the CPU itself if unknown."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return _read(topology / "thread_siblings_list") or str(cpu)


def _quota(root: Path) -> float | None:
    """CPUs' worth of time the cgroups of this process allow, or None without a limit.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst.
    """
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += _v2_quotas(root / "sys/fs/cgroup", path)
        elif "cpu" in controllers.split(","):
            for mount in ("cpu", "cpu,cpuacct"):
                quotas += _v1_quotas(root / "sys/fs/cgroup" / mount, path)
    return min(quotas, default=None)


def _ancestors(base: Path, path: str) -> list[Path]:
    """The folder of a cgroup and of all groups above it; the mount point if it is hidden."""
    inner = Path(path.lstrip("/"))
    return [base / inner, *(base / parent for parent in inner.parents)]


def _v2_quotas(base: Path, path: str) -> list[float]:
    lines = (_read(folder / "cpu.max").split() for folder in _ancestors(base, path))
    return [int(x[0]) / int(x[1]) for x in lines if len(x) == 2 and x[0] != "max" and int(x[1])]


def _v1_quotas(base: Path, path: str) -> list[float]:
    found = []
    for folder in _ancestors(base, path):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return found


def _read(path: Path) -> str:
    """The text of a small kernel file, or "" where there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
