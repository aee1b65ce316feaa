"""Tables of CPU features and CPU names: what each feature implies and what each CPU has.

Only features that generated code can profit from are listed: an artefact requires every feature of
its target, so a feature nobody uses would only narrow where it runs. Names are LLVM's. What every
64-bit CPU has (SSE2; on Arm, floating point) is not listed.

Source: LLVM, lib/Target/X86/X86.td and lib/Target/AArch64/AArch64Processors.td; x86-64 levels: the
x86-64 psABI, section 3.1.1, table 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Feature -> features it cannot be without. Source: LLVM, lib/Target/X86/X86.td.
X86_IMPLIES: Mapping[str, tuple[str, ...]] = {
    "sse3": (),
    "ssse3": ("sse3",),
    "sse4.1": ("ssse3",),
    "sse4.2": ("sse4.1",),
    "popcnt": (),
    "lzcnt": (),
    "movbe": (),
    "bmi": (),
    "bmi2": (),
    "avx": ("sse4.2",),
    "f16c": ("avx",),
    "fma": ("avx",),
    "avx2": ("avx",),
    "avxvnni": ("avx2",),
    "avx512f": ("avx2", "f16c", "fma"),
    "avx512cd": ("avx512f",),
    "avx512dq": ("avx512f",),
    "avx512bw": ("avx512f",),
    "avx512vl": ("avx512f",),
    "avx512ifma": ("avx512f",),
    "avx512vnni": ("avx512f", "avx512vl"),  # as all CPUs that have it; so do tails of vectors
    "avx512vpopcntdq": ("avx512f",),
    "avx512vbmi": ("avx512bw",),
    "avx512vbmi2": ("avx512bw",),
    "avx512bitalg": ("avx512bw",),
    "avx512bf16": ("avx512bw", "avx512vl"),
    "avx512fp16": ("avx512bw", "avx512vl", "avx512dq"),
    "amx-tile": (),
    "amx-int8": ("amx-tile",),
    "amx-bf16": ("amx-tile",),
    "amx-fp16": ("amx-tile",),
}

# Source: LLVM, lib/Target/AArch64/AArch64Features.td.
AARCH64_IMPLIES: Mapping[str, tuple[str, ...]] = {
    "neon": (),
    "lse": (),
    "rdm": ("neon",),
    "dotprod": ("neon",),
    "fullfp16": ("neon",),
    "fp16fml": ("fullfp16",),
    "bf16": ("neon",),
    "i8mm": ("neon",),
    "sve": ("fullfp16",),
    "sve2": ("sve",),
}

IMPLIES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": X86_IMPLIES,
    "aarch64": AARCH64_IMPLIES,
}

# What every CPU of the architecture has, as far as it is listed above.
BASELINE: Mapping[str, frozenset[str]] = {
    "x86_64": frozenset(),
    "aarch64": frozenset({"neon"}),
}

# The kernel's names of features, where they differ from LLVM's.
# Source: Linux, arch/x86/include/asm/cpufeatures.h and arch/arm64/kernel/cpuinfo.c.
KERNEL_NAMES: Mapping[str, Mapping[str, str]] = {
    "x86_64": {
        "pni": "sse3",
        "sse4_1": "sse4.1",
        "sse4_2": "sse4.2",
        "abm": "lzcnt",
        "bmi1": "bmi",
        "avx_vnni": "avxvnni",
        "avx512_vnni": "avx512vnni",
        "avx512_vpopcntdq": "avx512vpopcntdq",
        "avx512_vbmi2": "avx512vbmi2",
        "avx512_bitalg": "avx512bitalg",
        "avx512_bf16": "avx512bf16",
        "avx512_fp16": "avx512fp16",
        "amx_tile": "amx-tile",
        "amx_int8": "amx-int8",
        "amx_bf16": "amx-bf16",
        "amx_fp16": "amx-fp16",
    },
    "aarch64": {
        "asimd": "neon",
        "atomics": "lse",
        "asimdrdm": "rdm",
        "asimddp": "dotprod",
        "asimdhp": "fullfp16",
        "asimdfhm": "fp16fml",
    },
}


@dataclass(frozen=True, slots=True)
class Cpu:
    """One CPU model: its features and the sizes of its first two data caches.

    `in_halves`: whether it works on vectors of 512 bits in two halves. `slow_pairs`: whether these
    add products of pairs of bf16 more slowly than those of floats. `few_loads`: whether it loads
    little more than one of them in a cycle.
    """

    arch: str
    features: frozenset[str]
    l1_bytes: int
    l2_bytes: int
    in_halves: bool = False
    slow_pairs: bool = False
    few_loads: bool = False


_KIB = 1024
_V2 = frozenset({"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"})
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_ICELAKE = _V4 | {
    "avx512vnni",
    "avx512ifma",
    "avx512vbmi",
    "avx512vbmi2",
    "avx512bitalg",
    "avx512vpopcntdq",
}
_SAPPHIRE = _ICELAKE | {
    "avx512bf16",
    "avx512fp16",
    "avxvnni",
    "amx-tile",
    "amx-int8",
    "amx-bf16",
}
_ARM8_2 = frozenset({"neon", "lse", "rdm", "dotprod", "fullfp16"})
_ARM_V1 = _ARM8_2 | {"fp16fml", "bf16", "i8mm", "sve"}


def _x86(features: frozenset[str], l1_kib: int, l2_kib: int, **more: bool) -> Cpu:
    return Cpu("x86_64", features, l1_kib * _KIB, l2_kib * _KIB, **more)


def _arm(features: frozenset[str], l1_kib: int, l2_kib: int) -> Cpu:
    return Cpu("aarch64", features, l1_kib * _KIB, l2_kib * _KIB)


# Cache sizes, per core. Source: Intel 64 and IA-32 Architectures Optimization Reference Manual,
# section 2; AMD Software Optimization Guides for families 17h, 19h and 1Ah, section 2.6; Arm
# Technical Reference Manuals of the cores. Where a core comes with several sizes, the smallest.
CPUS: Mapping[str, Cpu] = {
    "x86-64": _x86(frozenset(), 32, 256),
    "x86-64-v2": _x86(_V2, 32, 256),
    "x86-64-v3": _x86(_V3, 32, 256),
    "x86-64-v4": _x86(_V4, 32, 1024),
    "haswell": _x86(_V3, 32, 256),
    "broadwell": _x86(_V3, 32, 256),
    "skylake": _x86(_V3, 32, 256),
    "alderlake": _x86(_V3 | {"avxvnni"}, 32, 1280),
    "skylake-avx512": _x86(_V4, 32, 1024),
    "cascadelake": _x86(_V4 | {"avx512vnni"}, 32, 1024),
    "cooperlake": _x86(_V4 | {"avx512vnni", "avx512bf16"}, 32, 1024),
    "icelake-server": _x86(_ICELAKE, 48, 1280, few_loads=True),
    "sapphirerapids": _x86(_SAPPHIRE, 48, 2048, slow_pairs=True),
    "emeraldrapids": _x86(_SAPPHIRE, 48, 2048, slow_pairs=True),
    "graniterapids": _x86(_SAPPHIRE | {"amx-fp16"}, 48, 2048, slow_pairs=True),
    "znver1": _x86(_V3, 32, 512),
    "znver2": _x86(_V3, 32, 512),
    "znver3": _x86(_V3, 32, 512),
    "znver4": _x86(_ICELAKE | {"avx512bf16"}, 32, 1024, in_halves=True),
    "znver5": _x86(_ICELAKE | {"avx512bf16", "avxvnni"}, 48, 1024),
    "generic": _arm(BASELINE["aarch64"], 32, 256),
    "cortex-a53": _arm(BASELINE["aarch64"], 8, 128),
    "cortex-a72": _arm(BASELINE["aarch64"], 32, 512),
    "cortex-a76": _arm(_ARM8_2, 64, 128),
    "neoverse-n1": _arm(_ARM8_2, 64, 512),
    "neoverse-n2": _arm(_ARM_V1 | {"sve2"}, 64, 512),
    "neoverse-v1": _arm(_ARM_V1, 64, 1024),
    "neoverse-v2": _arm(_ARM_V1 | {"sve2"}, 64, 1024),
}

# Vendors, and families of theirs whose cores work on vectors of 512 bits in two halves: Zen 4.
# Source: AMD Software Optimization Guide for family 19h, models 10h and up, section 2.11.
IN_HALVES = {("AuthenticAMD", "25")}

# The same of those that add products of pairs of bf16 at a fourth of the rate of multiply-adds,
# where they have vectors of f16 too: Sapphire Rapids and its successors, but not Cooper Lake.
# Source: measured on Emerald Rapids, two cycles for each instruction of 256 and of 512 bits.
SLOW_PAIRS = {("GenuineIntel", "6")}

# Vendors, families and models of those that load 1.1 vectors of 512 bits in a cycle, two of 256
# bits: the servers of Ice Lake. Source: measured on model 106, 24 loads beside as many
# multiply-adds take 21.7 cycles, 12 take 12.0; on Emerald Rapids and Zen 5 loads are no limit.
FEW_LOADS = {("GenuineIntel", "6", model) for model in ("106", "108")}

GENERIC: Mapping[str, str] = {"x86_64": "x86-64", "aarch64": "generic"}


def with_implied(arch: str, feature: str) -> frozenset[str]:
    """A feature and everything it cannot be without."""
    found = {feature}
    for inner in IMPLIES[arch][feature]:
        found |= with_implied(arch, inner)
    return frozenset(found)


def with_dependent(arch: str, feature: str) -> frozenset[str]:
    """A feature and everything that cannot be without it."""
    return frozenset(name for name in IMPLIES[arch] if feature in with_implied(arch, name))
