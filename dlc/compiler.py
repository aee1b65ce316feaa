"""compile(): a model becomes a library. What was built before is found before it is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlc.artifact_cache import BuiltBefore
from dlc.build_report import BuildReport, report_of_kept, take_kept
from dlc.core.errors import TargetError
from dlc.core.garbage import collected_rarely
from dlc.core.log import enable_topics
from dlc.core.machine import can_run
from dlc.core.precision import Precision
from dlc.core.scratch import scratch_folder
from dlc.core.target import Target
from dlc.find_target import find_target
from dlc.runtime import Module
from dlc.runtime.module import load_as
from dlc.stages import Progress

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dlc.autotune.apply import Tuning
    from dlc.frontend.onnx.interface import Dim
    from dlc.frontend.onnx.load import Model
    from dlc.frontend.onnx.structure import Structure
    from dlc.whole_build import Scheduler


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
        return load_as("the compiled model", path)


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
    machine, path = find_target(target), Path(out_path)
    told = (dims, shapes, variants, precision, half, sorted(keep), optimize)
    is_plain = schedule is None and not values
    before = BuiltBefore.of(model if is_plain else None, machine, tuning, told)
    if (known := take_kept(before.artifact(), path, progress)) is not None:
        return report_of_kept(path, machine, began, known)
    from dlc.whole_build import build_whole  # all that compiles

    report, kept = build_whole(
        model, path, machine, dims=dims, shapes=shapes, values=values, variants=variants,
        precision=precision, half=half, keep=keep, optimize=optimize, schedule=schedule,
        tuning=tuning, jobs=jobs, progress=progress,
    )  # fmt: skip
    before.keep(kept, lambda: _weights_beside(before.model))
    return replace(report, seconds=time.perf_counter() - began)


def _weights_beside(model: Path) -> Iterable[Path]:
    from dlc.frontend.onnx.external_files import external_files

    return external_files(model)
