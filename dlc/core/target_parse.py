"""Target strings: `native`, `llvm -mcpu=NAME -mattr=+a,-b -mtriple=TRIPLE -num-cores=N`, `cuda`.

`native` is this machine, by its features. `llvm` alone means the same; `-mcpu` or a `-mtriple` of
another architecture takes the features from a table instead. `-tile-cycles=N` says how fast the
matrix engine is, which is measured where this machine has one. `cuda -arch=sm_80,sm_90` names GPUs;
the other options are about the machine that they are plugged into, any by default.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dlc.core.count import is_number
from dlc.core.cpus import BASELINE, CPUS, GENERIC, IMPLIES, Cpu, with_dependent, with_implied
from dlc.core.errors import TargetError
from dlc.core.gpus import DEFAULT, PROCESSORS, gpu_for
from dlc.core.machine import Machine, host_arch, read_machine
from dlc.core.target import Gpu, Target

_OPTIONS = {
    "native": ("mattr", "num-cores", "tile-cycles"),
    "llvm": ("mcpu", "mattr", "mtriple", "num-cores", "tile-cycles"),
    "cuda": ("arch", "mcpu", "mattr", "mtriple", "num-cores"),
}
_LATER = {
    "c": "the C backend is not available yet",
}
_ARCHS = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_ABIS = ("gnu", "musl")


@dataclass(frozen=True, slots=True)
class _Text:
    """A target string taken apart."""

    text: str
    kind: str
    options: Mapping[str, str] = field(default_factory=dict)

    def error(self, reason: str, hint: str = "") -> TargetError:
        return TargetError(target=self.text, reason=reason, hint=hint)


def parse_target(text: str, measure: Callable[[Target], int] | None = None) -> Target:
    """Read a target string.

    Args:
        text: the string.
        measure: tells `Target.tile_cycles` of this machine, where it has a matrix engine and the
            string does not tell.

    Raises:
        TargetError: the backend, an option, a CPU, a feature or a triple is unknown, or a feature
            is asked of `native` that this machine lacks.
    """
    spec = _take_apart(text)
    arch, abi = _triple(spec)
    machine = read_machine() if arch == host_arch() else None
    target = _of_cpu(spec, arch, abi, machine)
    target = replace(
        target,
        backend="cuda" if spec.kind == "cuda" else "llvm",
        gpu=_gpu(spec) if spec.kind == "cuda" else None,
        features=_apply_attributes(spec, arch, target.features, machine),
        cores=_number(spec, "num-cores") or target.cores,
    )
    cycles = _number(spec, "tile-cycles")
    if (
        cycles is None
        and measure is not None
        and _is_here(spec, machine)
        and target.has_matrix_engine
    ):
        cycles = measure(target)
    return target if cycles is None else replace(target, tile_cycles=cycles)


def _is_here(spec: _Text, machine: Machine | None) -> bool:
    """Whether code is generated for this very machine."""
    return (
        machine is not None
        and spec.kind != "cuda"
        and spec.options.get("mcpu", "native") == "native"
    )


def target_names() -> tuple[str, ...]:
    """The backends a target string may name, for messages and the command line."""
    return tuple(_OPTIONS)


def _take_apart(text: str) -> _Text:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TargetError(target=text, reason=f"it cannot be read: {error}") from error
    spec = _Text(text, words[0] if words else "")
    if spec.kind in _LATER:
        raise spec.error(_LATER[spec.kind], "use 'native' or 'llvm -mcpu=...'")
    if spec.kind not in _OPTIONS:
        hint = "there are: " + ", ".join(_OPTIONS)
        if spec.kind in CPUS:
            hint = f"write 'llvm -mcpu={spec.kind}'"
        raise spec.error("there is no such backend", hint)
    allowed, options = _OPTIONS[spec.kind], {}
    for word in words[1:]:
        name, equals, value = word.removeprefix("-").partition("=")
        if not word.startswith("-") or name not in allowed:
            listing = ", ".join(f"-{option}=..." for option in allowed)
            raise spec.error(f"there is no option '{word}'", f"'{spec.kind}' takes {listing}")
        if not equals or not value:
            raise spec.error(f"option '-{name}' has no value", f"write -{name}=...")
        if name in options:
            raise spec.error(f"option '-{name}' is given twice")
        options[name] = value
    return _Text(text, spec.kind, options)


def _triple(spec: _Text) -> tuple[str, str]:
    """Architecture and ABI: of `-mtriple`, else of `-mcpu`, else of this machine."""
    triple = spec.options.get("mtriple")
    if triple is None:
        cpu = CPUS.get(spec.options.get("mcpu", ""))
        arch = cpu.arch if cpu else host_arch()
        if arch not in IMPLIES:
            raise spec.error(f"this machine is '{arch}'", "give -mtriple=x86_64-linux-gnu")
        return arch, "gnu"
    parts = triple.split("-")
    known = len(parts) in (3, 4) and parts[0] in _ARCHS and parts[-1] in _ABIS
    if not known or parts[-2] != "linux":
        listing = ", ".join(f"{arch}-linux-{abi}" for arch in IMPLIES for abi in _ABIS)
        raise spec.error(f"there is no triple '{triple}'", f"there are: {listing}")
    return _ARCHS[parts[0]], parts[-1]


def _of_cpu(spec: _Text, arch: str, abi: str, machine: Machine | None) -> Target:
    """The target before `-mattr`: a CPU of the table, or this machine by its features."""
    triple = f"{arch}-unknown-linux-{abi}"
    anything = GENERIC[arch] if spec.kind == "cuda" or machine is None else "native"
    name = spec.options.get("mcpu", anything)
    if name == "native":
        if machine is None:
            raise spec.error(f"this machine is '{host_arch()}', not '{arch}'", "name an -mcpu")
        fallback = CPUS[GENERIC[arch]]
        l1 = machine.l1_bytes or fallback.l1_bytes
        l2 = machine.l2_bytes or fallback.l2_bytes
        name, features, cores = GENERIC[arch], machine.features, machine.cores
        target = Target("llvm", triple, name, features, cores, l1, l2)
        return _with_facts(target, machine)
    cpu = CPUS.get(name)
    if cpu is None or cpu.arch != arch:
        there = [other for other, row in CPUS.items() if row.arch == arch]
        raise spec.error(f"there is no {arch} CPU '{name}'", _suggest(name, there))
    cores = machine.cores if machine else read_machine().cores
    target = Target("llvm", triple, name, cpu.features, cores, cpu.l1_bytes, cpu.l2_bytes)
    return _with_facts(target, cpu)


def _with_facts(target: Target, cpu: Machine | Cpu) -> Target:
    """A target with what is known of the vectors of a machine, or of a CPU of the table."""
    return replace(
        target, in_halves=cpu.in_halves, slow_pairs=cpu.slow_pairs, few_loads=cpu.few_loads
    )


def _apply_attributes(
    spec: _Text, arch: str, features: frozenset[str], machine: Machine | None
) -> frozenset[str]:
    """Features with `-mattr` applied: `+a` brings what a implies, `-a` takes what implies a."""
    for item in filter(None, spec.options.get("mattr", "").split(",")):
        sign, name = item[0], item[1:]
        if sign not in "+-":
            raise spec.error(f"'{item}' in -mattr has no sign", f"write +{item} or -{item}")
        if name not in IMPLIES[arch]:
            raise spec.error(f"there is no {arch} feature '{name}'", _suggest(name, IMPLIES[arch]))
        if sign == "-":
            if name in BASELINE[arch]:
                raise spec.error(f"every {arch} CPU has '{name}'; it cannot be taken away")
            features -= with_dependent(arch, name)
            continue
        if spec.kind == "native" and machine and name not in machine.features:
            hint = "to compile for another machine use 'llvm -mcpu=...'"
            raise spec.error(f"this machine lacks '{name}'", hint)
        features |= with_implied(arch, name)
    return features


def _gpu(spec: _Text) -> Gpu:
    """The GPUs of `-arch`."""
    archs = list(dict.fromkeys(spec.options.get("arch", ",".join(DEFAULT)).split(",")))
    for arch in archs:
        if arch not in PROCESSORS:
            raise spec.error(f"there is no GPU '{arch}'", _suggest(arch, PROCESSORS))
    return gpu_for(archs)


def _number(spec: _Text, option: str) -> int | None:
    text = spec.options.get(option)
    if text is None:
        return None
    if not (is_number(text) and int(text) >= 1):
        raise spec.error(f"-{option} is '{text}'", "give a whole number of at least 1")
    return int(text)


def _suggest(name: str, there: Mapping[str, object] | list[str]) -> str:
    close = difflib.get_close_matches(name, list(there), n=3)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "there are: " + ", ".join(there)
