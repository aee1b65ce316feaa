"""`dlc verify`: compare a compiled model with onnxruntime and a float64 reference."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlc.cli.argument import parse_sizes
from dlc.cli.failure import fail
from dlc.cli.option import InputOption, JsonOption, SizeOption, path_argument
from dlc.cli.screen import print_json, stderr, stdout, table
from dlc.core.errors import UserError, VerificationError

if TYPE_CHECKING:
    from dlc.compare_arrays import Error
    from dlc.verify_report import VerifyReport

_JUDGES = "onnxruntime,float64"


def verify(
    model: Annotated[Path, path_argument(metavar="MODEL", help="The ONNX file.")],
    artefact: Annotated[
        Path | None,
        path_argument(metavar="[ARTEFACT]", help="What was built from it; default: build it."),
    ] = None,
    inputs: InputOption = None,
    against: Annotated[str, typer.Option(help="Whom to ask, separated by commas.")] = _JUDGES,
    trials: Annotated[int, typer.Option(min=1, help="Random inputs, without --input.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the first random input.")] = 0,
    rtol: Annotated[float, typer.Option(min=0, help="Relative tolerance.")] = 1e-3,
    atol: Annotated[float, typer.Option(min=0, help="Absolute tolerance.")] = 1e-4,
    dim: SizeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a compiled model with onnxruntime and float64.

    An output is right if it is within the tolerances of the float64 reference, or no more than
    twice as far off as onnxruntime.
    """
    from dlc.cli.source import bind_sizes, is_artefact, make_feeds, open_module
    from dlc.frontend.onnx import load_model
    from dlc.verify_model import verify as compare

    sizes = parse_sizes(dim or ())
    judges = [name.strip() for name in against.split(",") if name.strip()]
    if not judges:
        raise UserError(detail=f"--against '{against}' names nobody", hint=f"there are: {_JUDGES}")
    if inputs and (trials, seed) != (1, 0):
        hint = "leave out --input, or write --input x=random:seed=1"
        raise UserError(detail="--trials and --seed are of random inputs alone", hint=hint)
    if is_artefact(model):
        hint = f"name the ONNX file it was built from first: dlc verify MODEL {model}"
        raise UserError(detail=f"{model} is compiled, and says not what is right", hint=hint)
    load_model(model)  # whether it is a model, before it is compiled
    module = open_module(artefact or model)
    feeds = make_feeds(module, inputs, sizes).arrays if inputs else None
    bind_sizes(module, {}, sizes)
    report = compare(
        model,
        module,
        feeds,
        trials=trials,
        seed=seed,
        sizes=sizes,
        against=judges,
        rtol=rtol,
        atol=atol,
    )
    if as_json:
        print_json(
            "dlc.verify/1", {"ok": report.ok and report.trials > 0, **dataclasses.asdict(report)}
        )
    else:
        _print(report)
    try:
        report.check()
    except VerificationError as error:
        fail(error, has_document=as_json)
    if not report.trials:
        reason = f"nothing was compared: {'; '.join(report.notes) or 'nobody was asked'}"
        fail(VerificationError(output=str(model), reason=reason), has_document=as_json)


def _print(report: VerifyReport) -> None:
    console = stdout()
    rows = table("output", "dlc", "onnxruntime", "dlc vs onnxruntime", "", left=("output", ""))
    for output in report.outputs:
        errors = (output.dlc, output.peer, output.apart)
        verdict = "wrong" if output.problem else "ok"
        rows.add_row(output.name, *map(_show, errors), verdict)
    console.print("Largest error against float64: absolute, and as a share of the largest value")
    console.print(rows)
    for note in report.notes:
        stderr().print(f"note: {note}", style="yellow", soft_wrap=True)


def _show(error: Error | None) -> str:
    return "-" if error is None else f"{error.max_abs:.1e} {error.max_rel:.0e}"
