"""`dlc run`: run a compiled model, or a model, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlc.cli.archive import write_arrays
from dlc.cli.argument import parse_file, parse_sizes
from dlc.cli.failure import fail
from dlc.cli.option import JsonOption, SizeOption, path_argument
from dlc.cli.screen import print_json, stderr, stdout, table
from dlc.core.errors import InputError, UserError, VerificationError
from dlc.core.staging import staging, writing

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def run(
    path: Annotated[Path, path_argument(metavar="ARTEFACT|MODEL", help="A .so or ONNX file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            help="x=@x.npy, x=random, x=random:uniform:seed=1, x=zeros, x=ones, x=16000, "
            "or @all.npz.",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", help="Write an output: y=@y.npy, or @all.npz."),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option("--expect", help="Compare an output: y=@y.npy. Exit code 4 where it differs."),
    ] = None,
    rtol: Annotated[float, typer.Option(min=0, help="Relative tolerance of --expect.")] = 1e-3,
    atol: Annotated[float, typer.Option(min=0, help="Absolute tolerance of --expect.")] = 1e-4,
    dim: SizeOption = None,
    show: Annotated[bool, typer.Option("--print", help="Print the values.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled model once. An ONNX model is compiled first."""
    from dlc.cli.source import make_feeds, open_module

    for option, texts in (("--output", outputs), ("--expect", expect)):
        for text in texts or ():
            parse_file(option, text)  # whether it is one, before a model is compiled
    sizes = parse_sizes(dim or ())
    module = open_module(path)
    names = [spec.name for spec in module.outputs]
    targets = [parse_file("--output", text, names) for text in outputs or ()]
    wanted = [parse_file("--expect", text, names) for text in expect or ()]
    for option, pairs in (("--output", targets), ("--expect", wanted)):
        _check_names(option, pairs, names)
    feeds = make_feeds(module, inputs or (), sizes)
    if feeds.random:
        listed = ", ".join(feeds.random)
        stderr().print(f"random values for {listed}", style="dim", soft_wrap=True)
    results = module.run(feeds.arrays) if feeds.results is None else feeds.results
    for name, file in targets:
        _save(file, {name: results[name]} if name else results)
    problems = _compare(results, wanted, rtol, atol)
    if as_json:
        print_json("dlc.run/1", _document(results, problems, show))
    else:
        _print(results, show)
    if problems:
        name, reason = next(iter(problems.items()))
        fail(VerificationError(output=f"output '{name}'", reason=reason), has_document=as_json)


def _check_names(option: str, pairs: Sequence[tuple[str, str]], names: Sequence[str]) -> None:
    for name, _ in pairs:
        if name and name not in names:
            hint = f"the outputs are {', '.join(names)}"
            raise UserError(detail=f"{option}: there is no output '{name}'", hint=hint)


def _save(file: str, arrays: Mapping[str, Array]) -> None:
    import numpy as np

    # An array of Python's objects would be pickled, and no longer be read.
    arrays = {name: a.astype(str) if _has_texts(a) else a for name, a in arrays.items()}
    zipped = file.endswith(".npz")
    if not zipped and len(arrays) != 1:
        hint = "name one: --output y=@y.npy; or write them all: --output @all.npz"
        raise UserError(detail=f"{file} cannot hold {len(arrays)} outputs", hint=hint)
    with staging(Path(file)) as draft, writing(file):
        with draft.open("wb") as stream:  # NumPy would append .npy to another name
            if zipped:
                write_arrays(stream, arrays)
            else:
                np.save(stream, next(iter(arrays.values())))
        draft.replace(file)


def _compare(
    results: Mapping[str, Array], wanted: Sequence[tuple[str, str]], rtol: float, atol: float
) -> dict[str, str]:
    """What is wrong, by output.

    Raises:
        UserError: a file cannot be read, or holds what is no output.
    """
    from dlc.cli.source import read_array, read_arrays, with_dtype
    from dlc.compare_arrays import why_not_close

    problems = {}
    for name, file in wanted:
        try:
            arrays = {name: read_array(file, name)} if name else read_arrays(file, file)
        except InputError as error:
            what = f"output '{name}'" if name else "outputs"
            reason = error.fields["reason"]
            raise UserError(detail=f"--expect: {what}: {reason}", hint=error.hint) from error
        if not name and list(arrays) == [""]:  # a .npy, which names nothing
            arrays = {next(iter(results)): arrays[""]}
        _check_names("--expect", [(inner, file) for inner in arrays], list(results))
        for inner, array in arrays.items():
            result = results[inner]
            array = with_dtype(array, result.dtype, inner)
            if reason := why_not_close(result, array, file, rtol, atol):
                problems[inner] = reason
    return problems


def _has_texts(array: Array) -> bool:
    from dlc.runtime.arrays import has_texts  # NumPy, which --help does without

    return has_texts(array)


def _dtype(array: Array) -> str:
    return "str" if _has_texts(array) else str(array.dtype)


def _summary(array: Array) -> dict[str, float | None]:
    """Smallest, largest and mean value; None where there is no number."""
    import numpy as np

    if _has_texts(array) or not array.size:
        return {"min": None, "max": None, "mean": None}
    numbers = np.asarray(array, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "min": float(numbers.min()),
            "max": float(numbers.max()),
            "mean": float(numbers.mean()),
        }


def _document(
    results: Mapping[str, Array], problems: Mapping[str, str], show: bool
) -> dict[str, object]:
    outputs = []
    for name, array in results.items():
        entry: dict[str, object] = {
            "name": name,
            "dtype": _dtype(array),
            "shape": list(array.shape),
            **_summary(array),
            "problem": problems.get(name, ""),
        }
        if show:
            plain = array.dtype.kind in "biuf" or _has_texts(array)
            values = array.tolist() if plain else array.astype(float).tolist()
            entry["values"] = values
        outputs.append(entry)
    return {"ok": not problems, "outputs": outputs}


def _print(results: Mapping[str, Array], show: bool) -> None:
    console = stdout()
    rows = table("output", "type", "shape", "min", "max", "mean", left=("output", "type", "shape"))
    for name, array in results.items():
        numbers = ["-" if v is None else f"{v:.6g}" for v in _summary(array).values()]
        rows.add_row(name, _dtype(array), str(array.shape), *numbers)
    console.print(rows)
    if show:
        for name, array in results.items():
            console.print(f"\n{name} =\n{array}", soft_wrap=True)
