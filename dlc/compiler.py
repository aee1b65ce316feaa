"""compile(): the walk of one model through the house. Every step lives elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlc.artifact_cache import ArtifactCache
from dlc.autotune.apply import Records, Tuning, find_records
from dlc.codegen.cuda.build import compile_for_gpu, host_target
from dlc.codegen.export import export_library
from dlc.codegen.llvm.compile import compile_host
from dlc.codegen.llvm.host import emit_program
from dlc.codegen.llvm.toolchain import find_driver
from dlc.codegen.llvm.worker import KernelJob, compile_kernels, start_workers, symbol_of
from dlc.core.count import show_bytes, show_count
from dlc.core.errors import TargetError
from dlc.core.garbage import collected_rarely
from dlc.core.log import enable_topics
from dlc.core.machine import can_run
from dlc.core.precision import Precision
from dlc.core.scratch import scratch_folder
from dlc.core.staging import staging
from dlc.core.target import Target
from dlc.describe import describe
from dlc.find_target import find_target
from dlc.graph.half import half_of
from dlc.graph.pass_ import PassReport
from dlc.lowering import Asked, Lowered, import_for, lower_imported
from dlc.runtime import Module, hash_file, load
from dlc.schedule.gpu_program import why_not_on_gpu
from dlc.schedule.loop import Func
from dlc.schedule.primitive import Step
from dlc.schedule.program import Program
from dlc.stages import Progress, Stages

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dlc.frontend.onnx.interface import Dim
    from dlc.frontend.onnx.load import Model
    from dlc.frontend.onnx.structure import Structure

_LOG = logging.getLogger("dlc.schedule")

Scheduler = Callable[[Func, Target], "tuple[Step, ...] | None"]
"""The steps that schedule a kernel for a target; None for those of the rule that fits it."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did. Sizes in bytes, times in seconds."""

    path: Path
    target: Target
    nodes: int
    groups: int
    kernels: int
    tuned: int
    parameters_bytes: int
    arena_bytes: str
    seconds: float
    passes: tuple[PassReport, ...]


# What is known of a build from the cache.
_KEPT = ("nodes", "groups", "kernels", "tuned", "parameters_bytes", "arena_bytes")


def compile(
    model: Model,
    target: str | Target = "native",
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    variants: Sequence[Mapping[str, Dim]] = (),
    precision: Precision = "highest",
    half: str | None = None,
    keep: Sequence[str] = (),
    optimize: bool = True,
    tuning: Tuning = "auto",
    progress: Callable[[Progress], None] | None = None,
) -> Module:
    """Compile an ONNX model and load it.

    Args:
        model: a path, the bytes of a model, or a `ModelProto`.
        target: a target string (`native`, `llvm -mcpu=haswell`, ...) or a `Target`.
        dims: fixes or bounds dimensions by name: `{"batch": 1}`, `{"seq": (1, 512)}`.
        shapes: fixes shapes of inputs: `{"x": (1, 3, 224, 224)}`. A sequence needs one for each
            element, `{"s": [(2, 3), (4, 3)]}`; None stands for an optional without a value.
        values: makes inputs constants: `{"sample_rate": 16000}`.
        variants: programs for some sizes alone, in the same artefact: `[{"batch": 1}, {"seq": (1,
            64)}]`. A run takes the first that fits, and else the general one.
        precision: how float32 products are computed; `highest` is at least as accurate as float32.
        half: `fp16` or `bf16`: compute a float32 model in these where it bears it.
        keep: operators, nodes of the model and their results that stay float32 then.
        optimize: False compiles each node by itself, as plain loops: slow, to find out whether an
            optimisation is why a result is wrong.
        tuning: schedules that a search found: a log of `dlc tune`, `Records`, "none", or "auto":
            the log beside the model (`model.tune.db`) and what comes with dlc. A record is used
            only for the loop nest and the machine it was made for.
        progress: called at every step.

    Raises:
        ModelError: the model cannot be read or holds something not supported.
        TargetError: the target is unknown, is none that runs here, or its tools are missing.
        UserError: the precision is unknown, or another argument says what cannot be.
    """
    machine = find_target(target)
    if not can_run(machine):
        reason = "this machine cannot run what is compiled for it"
        hint = "dlc build --target writes a file for another machine"
        name = target if isinstance(target, str) else machine.triple
        raise TargetError(target=name, reason=reason, hint=hint)
    with scratch_folder() as folder:
        path = folder / "model.so"
        build(
            model,
            path,
            machine,
            dims=dims,
            shapes=shapes,
            values=values,
            variants=variants,
            precision=precision,
            half=half,
            keep=keep,
            optimize=optimize,
            tuning=tuning,
            progress=progress,
        )
        return load(path)


@collected_rarely()
def build(
    model: Model,
    out_path: str | Path,
    target: str | Target = "native",
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    variants: Sequence[Mapping[str, Dim]] = (),
    precision: Precision = "highest",
    half: str | None = None,
    keep: Sequence[str] = (),
    optimize: bool = True,
    schedule: Scheduler | None = None,
    tuning: Tuning = "auto",
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> BuildReport:
    """Compile an ONNX model into a shared library at `out_path`; see `compile`.

    `schedule` chooses the steps of each kernel; default: those of the rule that fits it, or of a
    record.
    `jobs` is the number of kernels compiled at the same time; default: one for each core.
    """
    enable_topics()
    began = time.perf_counter()
    machine = find_target(target)
    records = find_records(tuning, model if isinstance(model, str | Path) else None)
    start_workers(jobs)
    path = Path(out_path)
    asked = Asked(precision, half_of(half, keep), optimize, records.ways)
    imported = import_for(
        model, machine, dims=dims, shapes=shapes, values=values, variants=variants,
        progress=progress,
    )  # fmt: skip
    options = (precision, half, sorted(keep), optimize, dict(records.choices), records.ways)
    kept = ArtifactCache.of(imported, machine, options, own=schedule is None)
    if (known := _find(kept, path, progress)) is not None:
        seconds = time.perf_counter() - began
        return BuildReport(path=path, target=machine, seconds=seconds, passes=(), **known)
    find_driver(machine)  # says what is missing before what takes long
    lowered = lower_imported(imported, machine, asked, began, progress)
    choose = schedule or (rules_own if optimize else _none)
    with staging(path) as draft:  # another build may write to `path` meanwhile
        report = assemble(lowered, draft, records, choose, jobs=jobs, progress=progress)
        kept.keep(draft, {name: getattr(report, name) for name in _KEPT})
        draft.replace(path)
    return replace(report, path=path)


def _find(
    kept: ArtifactCache, path: Path, progress: Callable[[Progress], None] | None
) -> Mapping[str, Any] | None:
    """Take the artefact from the cache, if it is there; what its build reported."""
    began = time.perf_counter()
    found = kept.find(path)
    if found is not None and progress is not None:
        detail = f"built before: {show_bytes(path.stat().st_size)}"
        progress(Progress("cache", detail, time.perf_counter() - began))
    return found


def assemble(
    lowered: Lowered,
    path: Path,
    records: Records,
    schedule: Scheduler,
    *,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> BuildReport:
    """The second half of a build: schedule, compile and link; see `build`."""
    began = time.perf_counter()
    stage = Stages(progress)
    imported, machine, program = lowered.imported, lowered.target, lowered.program
    found = [KernelJob(k.name, k, machine, schedule(k, machine)) for k in program.kernels]
    tuned = 0
    if len(records) or lowered.decided:
        with stage("tuning") as say:
            better = [records.tuned(job) for job in found]
            tuned = sum(a is not b for a, b in zip(found, better, strict=True))
            found = better
            ways = f", {show_count(lowered.decided, 'way')} through the graph"
            say(f"{tuned} of {len(found)} kernels have records{ways * (lowered.decided > 0)}")
    with stage("codegen") as say:
        objects = _compile(program, machine, found, jobs, stage.kernel)
        say(show_count(len(program.kernels), "kernel"))
    with stage("link") as say:
        runs_on = host_target(machine) if why_not_on_gpu(program) else machine
        manifest = describe(imported, program, runs_on, lowered.precision)
        weights = lowered.constants
        export_library(program, weights, objects, manifest, path, machine, hasher=hash_file)
        say(show_bytes(path.stat().st_size))
    return BuildReport(
        path=path,
        target=machine,
        nodes=len(imported.graph.nodes),
        groups=lowered.groups,
        kernels=len(program.kernels),
        tuned=tuned,
        parameters_bytes=sum(a.nbytes for a in lowered.constants.values()),
        arena_bytes=str(program.arena_bytes),
        seconds=lowered.seconds + time.perf_counter() - began,
        passes=lowered.passes,
    )


def _compile(
    program: Program,
    target: Target,
    found: list[KernelJob],
    jobs: int | None,
    report: Callable[[str, int, int], None],
) -> list[bytes]:
    """The objects of a program: its kernels, and the host's side of them."""
    if target.gpu is not None:
        reason = why_not_on_gpu(program)
        if not reason:
            steps_of = {job.name: job.steps for job in found}
            code = compile_for_gpu(program, target, steps_of, jobs=jobs, progress=report)
            return list(code.objects)
        _LOG.warning("the whole model stays on the host: %s", reason)
        target = host_target(target)
        found = [KernelJob(k.name, k, target) for k in program.kernels]
    symbols = {job.name: symbol_of(job) for job in found}
    with ThreadPoolExecutor(1) as beside:  # this process only waits for those that compile kernels
        host = beside.submit(lambda: compile_host(emit_program(program, target, symbols), target))
        kernels = compile_kernels(found, jobs=jobs, progress=report)
        return [host.result(), *(c.code for c in kernels)]


def rules_own(func: Func, target: Target) -> None:
    """The `Scheduler` of a build that is told nothing else."""
    return None


def _none(func: Func, target: Target) -> tuple[Step, ...]:
    return ()
