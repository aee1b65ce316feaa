"""`dlc inspect`: what is in a model or an artefact, and whether a model would build."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlc.cli.option import JsonOption, path_argument
from dlc.cli.screen import print_json, show_tensor, stdout, table, tensor_json
from dlc.cli.source import is_artefact
from dlc.core.count import show_bytes, show_count
from dlc.core.errors import UserError

if TYPE_CHECKING:
    from dlc.core.errors import UnsupportedModel
    from dlc.core.manifest import Manifest
    from dlc.frontend.onnx import OnnxModel
    from dlc.frontend.onnx.model import OnnxValue


def inspect(
    path: Annotated[Path, path_argument(metavar="FILE", help="An ONNX file or an artefact.")],
    support: Annotated[
        bool,
        typer.Option("--support", help="Would this model build? Exit code 3 where not."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is in a model or an artefact. Nothing is compiled or run."""
    if is_artefact(path):
        if support:
            raise UserError(detail=f"{path} is compiled already; --support is for ONNX models")
        _artefact(path, as_json)
        return
    from dlc.frontend.onnx import load_model

    model = load_model(path)
    if support:
        _support(path, model, as_json)
        return
    document = _model_document(path, model)
    if as_json:
        print_json("dlc.inspect/1", document)
    else:
        _print_model(path, model)


def _artefact(path: Path, as_json: bool) -> None:
    from dlc.core.manifest import read_manifest
    from dlc.runtime import check_file

    manifest = read_manifest(path)
    check_file(path)
    if as_json:
        print_json("dlc.inspect/1", _artefact_document(path, manifest))
        return
    size = show_bytes(path.stat().st_size)
    console = stdout()
    console.print(
        f"{path}: compiled model, {size}, dlc {manifest.dlc_version}, ABI {manifest.abi_version}",
        soft_wrap=True,
    )
    features = ", ".join(manifest.cpu_features) or "no special features"
    console.print(f"needs {manifest.architecture} with {features}")
    if archs := _gpu_archs(manifest):
        console.print(f"needs an NVIDIA GPU; it has code for {', '.join(archs)} and PTX for others")
    precision = f"precision {manifest.metadata.get('precision', 'highest')}"
    half = manifest.metadata.get("half")
    console.print(f"computed in {half}, judged as {precision}" if half else precision)
    rows = table("", "name", "type", left=("", "name", "type"))
    for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
        for spec in specs:
            rows.add_row(kind, spec.name, show_tensor(spec))
    for open_size in manifest.sizes:
        top = "any" if open_size.max is None else str(open_size.max)
        rows.add_row("size", open_size.name, f"{open_size.min} to {top}")
    console.print(rows)
    kernels = manifest.metadata.get("kernels")
    if isinstance(kernels, list):
        arena = _arena(str(manifest.metadata.get("arena_bytes", "?")))
        console.print(f"{show_count(len(kernels), 'kernel')}, arena of {arena}", soft_wrap=True)
    for variant in _variants(manifest):
        console.print(f"variant for {variant}", soft_wrap=True)


def _arena(formula: str) -> str:
    """The bytes of an arena, or which sizes set them; the formula is for `--json`."""
    if formula.isdecimal():
        return show_bytes(int(formula))
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", formula)) - {"min", "max"})
    return f"a size set by {', '.join(names)}"


def _gpu_archs(manifest: Manifest) -> list[str]:
    """The GPUs that an artefact has code for; none of one that runs on the CPU."""
    target = manifest.metadata.get("target")
    gpu = target.get("gpu") if isinstance(target, dict) else None
    return list(gpu["archs"]) if isinstance(gpu, dict) else []


def _variants(manifest: Manifest) -> list[str]:
    """The sizes that programs of their own were made for, as `dlc build --variant` takes them."""
    found = manifest.metadata.get("variants", [])
    assert isinstance(found, list)
    return [",".join(f"{name}={_show_dim(dim)}" for name, dim in v.items()) for v in found]


def _show_dim(dim: object) -> str:
    match dim:
        case [low, high]:
            return f"{low}..{'' if high is None else high}"
    return str(dim)


def _artefact_document(path: Path, manifest: Manifest) -> dict[str, object]:
    return {
        "kind": "artefact",
        "path": str(path),
        "file_bytes": path.stat().st_size,
        "dlc_version": manifest.dlc_version,
        "abi_version": manifest.abi_version,
        "architecture": manifest.architecture,
        "cpu_features": list(manifest.cpu_features),
        "inputs": [tensor_json(spec) for spec in manifest.inputs],
        "outputs": [tensor_json(spec) for spec in manifest.outputs],
        "sizes": [dataclasses.asdict(size) for size in manifest.sizes],
        "metadata": dict(manifest.metadata),
    }


def _support(path: Path, model: OnnxModel, as_json: bool) -> None:
    """Import the model; all that cannot be compiled is listed.

    Raises:
        ModelError: it would not build.
    """
    from dlc.core.errors import UnsupportedModel
    from dlc.frontend.onnx import import_model

    try:
        import_model(model)
    except UnsupportedModel as error:
        if not as_json:
            stdout().print(_verdict(path, model, len(error.issues)), soft_wrap=True)
            raise
        print_json("dlc.inspect/1", _issues(path, model, error))
        raise typer.Exit(error.exit_code) from error
    if as_json:
        document = {"kind": "support", "path": str(path), "nodes": len(model.graph.nodes)}
        print_json("dlc.inspect/1", document | {"ok": True, "issues": []})
    else:
        stdout().print(_verdict(path, model, 0), soft_wrap=True)


def _verdict(path: Path, model: OnnxModel, bad: int) -> str:
    nodes = len(model.graph.nodes)
    return f"{path}: {nodes - bad} of {show_count(nodes, 'node')} can be compiled"


def _issues(path: Path, model: OnnxModel, error: UnsupportedModel) -> dict[str, object]:
    issues = [
        {
            "node": str(issue.fields["node"]),
            "operator": str(issue.fields["op"]),
            "reason": str(issue.fields["reason"]),
            "hint": issue.hint,
        }
        for issue in error.issues
    ]
    return {
        "kind": "support",
        "path": str(path),
        "nodes": len(model.graph.nodes),
        "ok": False,
        "issues": issues,
    }


def _weight_bytes(model: OnnxModel) -> int:
    """The bytes of constants: what nodes hold of them counts, too."""
    held = (n.attributes.values() for n in model.graph.nodes if n.op_type == "Constant")
    arrays = (*model.graph.constants.values(), *(a for values in held for a in values))
    return sum(getattr(array, "nbytes", 0) for array in arrays)


def _operators(model: OnnxModel) -> list[tuple[str, int]]:
    """Operators and how often they occur, the most frequent first."""
    names = (f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in model.graph.nodes)
    return sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))


def _model_inputs(model: OnnxModel) -> list[OnnxValue]:
    """What a caller must give; older files list constants among the inputs."""
    return [v for v in model.graph.inputs if v.name not in model.graph.constants]


def _model_document(path: Path, model: OnnxModel) -> dict[str, object]:
    def data(value: OnnxValue) -> dict[str, object]:
        shape = None if value.dims is None else list(value.dims)
        return {"name": value.name, "dtype": str(value.dtype), "shape": shape}

    return {
        "kind": "model",
        "path": str(path),
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": number for domain, number in model.opsets.items()},
        "producer": model.producer,
        "nodes": len(model.graph.nodes),
        "parameters_bytes": _weight_bytes(model),
        "inputs": [data(value) for value in _model_inputs(model)],
        "outputs": [data(value) for value in model.graph.outputs],
        "operators": dict(_operators(model)),
    }


def _print_model(path: Path, model: OnnxModel) -> None:
    console = stdout()
    opsets = ", ".join(f"{d or 'ai.onnx'} {n}" for d, n in model.opsets.items())
    producer = f", by {model.producer}" if model.producer else ""
    nodes = show_count(len(model.graph.nodes), "node")
    console.print(
        f"{path}: ONNX model, opset {opsets}{producer}\n"
        f"{nodes}, {show_bytes(_weight_bytes(model))} of weights",
        soft_wrap=True,
    )
    rows = table("", "name", "type", left=("", "name", "type"))
    for kind, values in (("input", _model_inputs(model)), ("output", model.graph.outputs)):
        for value in values:
            dims = "?" if value.dims is None else ", ".join(str(d or "?") for d in value.dims)
            rows.add_row(kind, value.name, f"{value.dtype}[{dims}]")
    console.print(rows)
    console.print(", ".join(f"{name} {count}" for name, count in _operators(model)))
