"""`dlc build`: an ONNX model into a shared library."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlc.cli.argument import parse_dims, parse_shapes, parse_values, parse_variants
from dlc.cli.depfile import sources_of, write_depfile
from dlc.cli.option import (
    BoundsOption,
    JsonOption,
    PrecisionOption,
    ShapeOption,
    TargetOption,
    path_argument,
    path_option,
)
from dlc.cli.progress import BuildDisplay
from dlc.cli.screen import print_json, show_seconds, show_target, stderr, stdout
from dlc.core.count import show_bytes, show_count
from dlc.core.elf import is_elf
from dlc.core.errors import ModelError, UserError, why_unreadable
from dlc.core.precision import Precision, check_precision, promised
from dlc.core.staging import staging

if TYPE_CHECKING:
    from dlc.build_report import BuildReport
    from dlc.core.target import Target
    from dlc.verify_report import VerifyReport

_FORGIVEN = 10  # times onnxruntime's own error; a wrong program is off by far more


def build(
    model: Annotated[Path, path_argument(metavar="MODEL", help="The ONNX file.")],
    out: Annotated[
        Path | None,
        path_option("--output", "-o", help="What to write; default: MODEL with suffix .so."),
    ] = None,
    target: TargetOption = "native",
    shape: ShapeOption = None,
    dim: BoundsOption = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value", help="Make an input a constant: sr=16000. Repeatable. Not verified."
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", help="Also a program for some sizes alone: batch=1,seq=1..64. Repeatable."
        ),
    ] = None,
    precision: PrecisionOption = "highest",
    half: Annotated[
        str | None,
        typer.Option("--half", help="fp16 or bf16: compute in 16-bit floats where that is safe."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="An operator or node that stays float32. Repeatable."),
    ] = None,
    tuning: Annotated[
        str,
        typer.Option(
            "--tuning",
            help="Schedules: a log of dlc tune, none, or auto: MODEL.tune.db and what dlc has.",
        ),
    ] = "auto",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Kernels compiled at a time.")
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Compare with onnxruntime on random inputs; default: unless the same files were.",
        ),
    ] = None,
    depfile: Annotated[
        Path | None,
        path_option("--depfile", help="Also write which files OUTPUT depends on, for Make."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile an ONNX model into a shared library."""
    # What the command line says is checked before the rest of the compiler is imported.
    from dlc.find_target import find_target

    dims, shapes = parse_dims(dim or ()), parse_shapes(shape or ())
    values, variants = parse_values(value or ()), parse_variants(variant or ())
    exact = check_precision(precision)
    machine = find_target(target)
    path = out or model.parent / f"{model.stem}.so"
    _check_apart(model, path, "--output model.so")
    if depfile is not None:
        _check_apart(model, depfile, "--depfile model.d")
    console = stderr()
    with staging(path) as draft:
        if not quiet:
            name = "native = " if target == "native" else ""
            title = _title(model, path, name + show_target(machine), machine.cores)
            console.print(title, soft_wrap=True)
        from dlc.compiler import build as compile_to_file

        began = time.perf_counter()
        with BuildDisplay(console, quiet=quiet) as display:
            report = compile_to_file(
                model,
                draft,
                machine,
                dims=dims,
                shapes=shapes,
                values=values,  # type: ignore[arg-type]  # numbers, or lists of them
                variants=variants,
                precision=exact,
                half=half,
                keep=keep or (),
                tuning=tuning,
                jobs=jobs,
                progress=display,
            )
            # With values, onnxruntime would need them as inputs.
            compared = verify is not False and not values
            checked = None
            if compared:
                promise = promised(exact, half)
                checked = _verify(model, draft, machine, promise, display, anew=verify is True)
        if depfile is not None:
            write_depfile(depfile, path, sources_of(model, tuning))
        draft.replace(path)
    seconds = time.perf_counter() - began
    if as_json:
        print_json("dlc.build/1", _document(report, path, seconds, checked))
    else:
        _tell(report, path, seconds)
        if not quiet and not _why_not_here(machine):
            stderr().print(f"Try:  {_next_command(model, path)}", style="dim", soft_wrap=True)


def _check_apart(model: Path, path: Path, other: str) -> None:
    """Leave the model and its weights where they are: they may be the only ones there are.

    `other` is an option to propose instead.

    Raises:
        UserError: `path` is one of their files.
        ModelError: the model cannot be looked for.
    """
    try:
        if not model.exists():
            return
    except OSError as error:
        raise ModelError(model=str(model), reason=why_unreadable(error)) from error
    if not os.path.isfile(path):  # which raises nothing: writing says what is wrong
        return
    what = "it is the model" if path.samefile(model) else ""
    if not what and not _is_library(path):
        from dlc.frontend.onnx.external_files import external_files

        with contextlib.suppress(ModelError):  # which the build will tell
            holds = any(f.exists() and path.samefile(f) for f in external_files(model))
            what = "it holds weights of the model" if holds else ""
    if what:
        detail = f"cannot write {path}: {what}"
        raise UserError(detail=detail, hint=f"name another file: {other}")


def _is_library(path: Path) -> bool:
    """Whether a file is one that an earlier build may have written, which holds no weights."""
    with contextlib.suppress(OSError):
        return is_elf(path)
    return False


def _tell(report: BuildReport, path: Path, seconds: float) -> None:
    """What was written."""
    size, weights = path.stat().st_size, report.parameters_bytes
    parts = f"{show_bytes(size - weights)} code + {show_bytes(weights)} weights"
    stdout().print(f"Wrote {path} ({parts}) in {show_seconds(seconds)}", soft_wrap=True)


def _next_command(model: Path, path: Path) -> str:
    """What to do with an artefact that runs here, as a shell takes it."""
    from dlc.peer import has_onnxruntime

    words = ["dlc", "bench", str(path)]
    if has_onnxruntime():
        words += ["--against", "onnxruntime"]
        beside = path.with_suffix(".onnx")  # where bench looks
        if not (beside.exists() and beside.samefile(model)):
            words += ["--model", str(model)]
    return shlex.join(words)


def _title(model: Path, path: Path, target: str, cores: int) -> str:
    from dlc import __version__

    to = f"{path.name}  target {target}  {show_count(cores, 'thread')}"
    return f"dlc {__version__}  {model.name} → {to}"


def _verify(
    model: Path,
    draft: Path,
    machine: Target,
    precision: Precision,
    display: BuildDisplay,
    *,
    anew: bool,
) -> VerifyReport | None:
    """Compare with onnxruntime, and where they differ let the float64 reference decide.

    Files that were compared before, and found right, are compared again only where that is asked.

    Raises:
        VerificationError: the compiled model is wrong.
    """
    from dlc.peer import has_onnxruntime

    began = time.perf_counter()
    reason = _why_not_here(machine)
    if not reason and not has_onnxruntime():
        reason = "no onnxruntime: pip install 'dlc[verify]'"
    if reason:
        display.line("warning", "verify", f"skipped: {reason}", time.perf_counter() - began)
        return None
    from dlc.verified import comparison_key, find_comparison, keep_comparison

    # What a GPU gave is not known of another one, or of another driver.
    key = comparison_key(model, draft) if machine.gpu is None else None
    if key is not None and not anew and (known := find_comparison(key)):
        detail = f"compared before: max abs {_apart(known):.1e}"
        display.line("done", "verify", detail, time.perf_counter() - began)
        return known
    from dlc.verify_model import TIMES_PEER
    from dlc.verify_precision import BITS

    report = _compare(model, draft)
    seconds = time.perf_counter() - began
    if not report.ok:
        factor = f"more than {TIMES_PEER}× as far from float64 as onnxruntime"
        display.line("warning", "verify", f"{factor}: see dlc verify", seconds)
        return report
    if not report.trials:
        reason = f"skipped: {'; '.join(report.notes)}; dlc verify asks float64"
        display.line("warning", "verify", reason, seconds)
        return report
    if key is not None:
        keep_comparison(key, report)
    detail = f"random inputs vs onnxruntime: max abs {_apart(report):.1e}"
    if precision in BITS:
        detail = f"max abs {_apart(report):.1e}, as precision {precision} promises"
    display.line("done", "verify", detail, seconds)
    return report


def _apart(report: VerifyReport) -> float:
    return max((o.apart.max_abs for o in report.outputs if o.apart), default=0.0)


def _compare(model: Path, draft: Path) -> VerifyReport:
    """What onnxruntime says, or where they differ the float64 reference.

    Raises:
        VerificationError: the compiled model is wrong.
    """
    from dlc import verify_model

    report = verify_model.verify(model, draft, against=[verify_model.ONNXRUNTIME])
    if not report.ok:
        report = verify_model.verify(model, draft)
        _forgive(report)
    return report


def _why_not_here(machine: Target) -> str:
    """Why this machine cannot run what is compiled for `machine`, or ""."""
    from dlc.core.machine import can_run
    from dlc.runtime import why_no_gpu

    if not can_run(machine):
        return "this machine cannot run it"
    return why_no_gpu().partition(";")[0] if machine.gpu is not None else ""


def _forgive(report: VerifyReport) -> None:
    """Let pass what is off by little more than onnxruntime: random inputs can magnify rounding.

    Raises:
        VerificationError: an output is off by much more.
    """
    for output in report.outputs:
        ours, theirs = output.dlc, output.peer
        forgiven = ours and theirs and ours.max_abs <= _FORGIVEN * theirs.max_abs
        if output.problem and not forgiven:
            report.check()


def _document(
    report: BuildReport, path: Path, seconds: float, checked: VerifyReport | None
) -> dict[str, object]:
    target = dataclasses.asdict(report.target) | {"features": sorted(report.target.features)}
    return {
        "path": str(path),
        "target": target,
        "nodes": report.nodes,
        "groups": report.groups,
        "kernels": report.kernels,
        "file_bytes": path.stat().st_size,
        "parameters_bytes": report.parameters_bytes,
        "arena_bytes": report.arena_bytes,
        "seconds": seconds,
        "passes": [dataclasses.asdict(step) for step in report.passes],
        "verify": None if checked is None else dataclasses.asdict(checked),
    }
