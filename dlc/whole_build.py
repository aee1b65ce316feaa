"""A whole build: a model is read, scheduled, compiled and linked. Every step lives elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlc.artifact_cache import ArtifactCache
from dlc.artifact_key import artifact_key
from dlc.autotune.apply import Records, Tuning, find_records
from dlc.build_report import BuildReport, report_of_kept, take_kept
from dlc.codegen.cuda.build import compile_for_gpu, host_target
from dlc.codegen.export import export_library
from dlc.codegen.llvm.compile import compile_host
from dlc.codegen.llvm.host import emit_program
from dlc.codegen.llvm.toolchain import find_driver
from dlc.codegen.llvm.worker import KernelJob, compile_kernels, start_workers, symbol_of
from dlc.core.cache import default_cache
from dlc.core.count import show_bytes, show_count
from dlc.core.precision import Precision
from dlc.core.staging import staging
from dlc.core.target import Target
from dlc.describe import describe
from dlc.graph.half import half_of
from dlc.lowering import Asked, Lowered, import_for, lower_imported
from dlc.runtime import hash_file
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


def build_whole(
    model: Model,
    path: Path,
    machine: Target,
    *,
    dims: Mapping[str, Dim] | None,
    shapes: Mapping[str, Structure] | None,
    values: Mapping[str, ArrayLike] | None,
    variants: Sequence[Mapping[str, Dim]],
    precision: Precision,
    half: str | None,
    keep: Sequence[str],
    optimize: bool,
    schedule: Scheduler | None,
    tuning: Tuning,
    jobs: int | None,
    progress: Callable[[Progress], None] | None,
) -> tuple[BuildReport, ArtifactCache]:
    """Compile a model that is read first; see `build`. Also the place of the artefact in the cache.

    The artefact may be there: of another file that means the same.
    """
    began = time.perf_counter()
    records = find_records(tuning, model if isinstance(model, str | Path) else None)
    start_workers(jobs)
    asked = Asked(precision, half_of(half, keep), optimize, records.ways)
    imported = import_for(
        model, machine, dims=dims, shapes=shapes, values=values, variants=variants,
        progress=progress,
    )  # fmt: skip
    options = (precision, half, sorted(keep), optimize, dict(records.choices), records.ways)
    key = artifact_key(imported, machine, options) if schedule is None else None
    kept = ArtifactCache(key, default_cache())
    if (known := take_kept(kept, path, progress)) is not None:
        return report_of_kept(path, machine, began, known), kept
    find_driver(machine)  # says what is missing before what takes long
    lowered = lower_imported(imported, machine, asked, began, progress)
    choose = schedule or (rules_own if optimize else _none)
    with staging(path) as draft:  # another build may write to `path` meanwhile
        report = assemble(lowered, draft, records, choose, jobs=jobs, progress=progress)
        kept.keep(draft, report.kept)
        draft.replace(path)
    return replace(report, path=path), kept


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
            kernels = show_count(len(found), "kernel")
            say(f"records for {tuned} of {kernels}{ways * (lowered.decided > 0)}")
    with stage("codegen") as say:
        objects = _compile(program, machine, found, jobs, stage.kernel)
        say(show_count(len(program.kernels), "kernel"))
    with stage("link") as say:
        runs_on = host_target(machine) if why_not_on_gpu(program) else machine
        half = None if lowered.asked.half is None else lowered.asked.half.name
        manifest = describe(imported, program, runs_on, lowered.precision, half)
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
