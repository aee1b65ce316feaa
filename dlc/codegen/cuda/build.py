"""A program for a GPU as objects to link: launches, images, the host's side of both.

A kernel that no GPU can run stays on the host: its stub fetches its operands and sends its results
back. Where the host must look at data, to choose or repeat, it fetches the few elements it needs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlc.codegen.cuda.compile import compile_units
from dlc.codegen.cuda.emit import Kernel, emit_kernel, why_not_printable
from dlc.codegen.cuda.explain import emit_explain
from dlc.codegen.cuda.host import (
    CHECKED,
    DATA,
    GPU,
    TABLE,
    emit_host_stubs,
    emit_stubs,
    emit_tables,
)
from dlc.codegen.llvm.compile import compile_host, compile_ir
from dlc.codegen.llvm.host import Table, emit_program
from dlc.codegen.llvm.worker import KernelJob, compile_kernels
from dlc.codegen.weight_offsets import weight_offsets
from dlc.core.target import Target
from dlc.schedule.fetch_ahead import fetched_ahead
from dlc.schedule.gpu import IndexCheck, Launches, split_launches
from dlc.schedule.gpu_program import (
    constant_params,
    launch_program,
    misaligned,
    waits_for_data,
    with_copy_kernels,
)
from dlc.schedule.index_checks import looks_of, with_checks_at_readers, with_index_checks
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import Step
from dlc.schedule.program import CheckRange, Program, statements
from dlc.schedule.verify_copies import widest_copy
from dlc.schedule.verify_gpu import verify_gpu

_LOG = logging.getLogger("dlc.schedule")
Progress = Callable[[str, int, int], None]
Schedules = Mapping[str, Sequence[Step] | None]  # by kernel


@dataclass(frozen=True, slots=True)
class GpuCode:
    """What to link, and what became of the program."""

    objects: tuple[bytes, ...]
    kernels: int  # that run on the GPU
    on_host: tuple[str, ...]  # kernels that do not


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A program of launches, and their text. Kernels on the host have no text."""

    program: Program
    kernels: Mapping[str, Kernel]  # by the name of the launch
    on_host: tuple[Func, ...]
    checks: tuple[CheckRange, ...] = ()  # by the number of the report that launches make


def host_target(target: Target) -> Target:
    """The machine that a GPU is plugged into."""
    return replace(target, backend="llvm", gpu=None)


def schedule_program(
    program: Program, target: Target, steps: Schedules, progress: Progress | None = None
) -> Scheduled:
    """Schedule and print every kernel of a program."""
    assert target.gpu is not None, "the target is a GPU"
    reasons = {k.name: why_not_printable(k) for k in program.kernels}
    program = with_checks_at_readers(program, {name for name, why in reasons.items() if why})
    program = with_copy_kernels(program)
    looks = looks_of(program)
    launches: dict[str, Launches] = {}
    kernels: dict[str, Kernel] = {}
    on_host: list[Func] = []
    unaligned = misaligned(program, target.gpu.copy_bytes)
    constants = constant_params(program)
    for number, func in enumerate(program.kernels):
        if reason := reasons.get(func.name):
            _LOG.info("kernel %s stays on the host: %s", func.name, reason)
            launches[func.name] = Launches((), (func,))
            on_host.append(func)
            continue
        found = split_launches(_optimized(func, target, steps.get(func.name), unaligned[func.name]))
        for launch in found.funcs:
            verify_gpu(launch, target.gpu, when="before printing")
        found = launches[func.name] = with_index_checks(found, func, looks.get(func.name, ()))
        for launch in found.funcs:
            ahead = fetched_ahead(launch, constants[func.name])
            checks = tuple(c for c in found.checks if c.launch == launch.name)
            symbol = _symbol(launch, ahead, checks)
            kernels[launch.name] = emit_kernel(launch, symbol, ahead, checks)
        if progress:
            progress(func.name, number + 1, len(program.kernels))
    if on_host:
        _LOG.warning(
            "%d of %d kernels stay on the host, which fetches their operands (DLC_LOG=schedule)",
            len(on_host),
            len(program.kernels),
        )
    checked = tuple(s for s in statements(program.body) if isinstance(s, CheckRange))
    return Scheduled(launch_program(program, launches), kernels, tuple(on_host), checked)


def _optimized(
    func: Func, target: Target, steps: Sequence[Step] | None, unaligned: frozenset[str]
) -> Func:
    """The scheduled function; it copies element by element where a tensor is not aligned."""
    assert target.gpu is not None, "the target is a GPU"
    result = optimize(func, target, steps)
    sizes = {b.name: b.type.dtype.size_bytes for b in func.params}
    if all(widest_copy(result, name) <= sizes[name] for name in unaligned):
        return result
    return optimize(func, replace(target, gpu=replace(target.gpu, copy_bytes=0)))


def _symbol(func: Func, ahead: Sequence[Buffer], checks: Sequence[IndexCheck]) -> str:
    """A name that tells people which kernel it is, and kernels of different text apart."""
    text = f"{func}{[b.name for b in ahead]}{list(checks) or ''}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    readable = "".join(c if c.isascii() else "_" for c in func.name)
    return f"{readable[:40]}_{digest}"


def compile_for_gpu(
    program: Program,
    target: Target,
    steps: Schedules,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> GpuCode:
    """Schedule, print and compile a program; `steps` are those of kernels with a record.

    Raises:
        TargetError: there is no CUDA compiler.
        CodegenError: it rejects a kernel.
    """
    assert target.gpu is not None, "the target is a GPU"
    host = host_target(target)
    scheduled = schedule_program(program, target, steps, progress)
    kernels = {k.symbol: k for k in scheduled.kernels.values()}
    images, units = compile_units(list(kernels.values()), target.gpu, jobs=jobs)
    on_host = compile_kernels([KernelJob(f.name, f, host) for f in scheduled.on_host], jobs=jobs)
    symbols = {name: kernel.symbol for name, kernel in scheduled.kernels.items()}
    symbols |= {c.name: f"{c.symbol}_fetched" for c in on_host}
    offsets, weight_bytes = weight_offsets(program.constants)
    constants = [offsets[b.name] for b in program.constants]
    data = waits_for_data(scheduled.program)
    waits = data or bool(on_host)
    checks = scheduled.checks
    tables = emit_tables(
        scheduled.program, constants, weight_bytes, kernels, units, images,
        waits=waits, reports=len(checks),
    )  # fmt: skip
    stubs = emit_stubs(kernels, host)
    pairs = zip(on_host, scheduled.on_host, strict=True)
    fetching = emit_host_stubs({code.symbol: func for code, func in pairs}, host)
    flag = CHECKED if checks else DATA if data else GPU
    table = Table(flag, TABLE, tables, alone=flag != GPU)
    text = emit_program(scheduled.program, host, symbols, table)
    objects = [compile_host(text, host), compile_ir(stubs, host)]
    if checks:
        objects.append(compile_ir(emit_explain(scheduled.program, checks, host), host))
    if on_host:
        objects += [compile_ir(fetching, host), *(c.code for c in on_host)]
    return GpuCode(tuple(objects), len(scheduled.kernels), tuple(f.name for f in scheduled.on_host))
