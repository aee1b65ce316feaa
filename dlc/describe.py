"""What an artefact says about itself, under the names that its user knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dlc.core.manifest import Manifest, SizeSpec, TensorSpec
from dlc.core.target import Target
from dlc.frontend.onnx.convert import Imported
from dlc.schedule.program import CallKernel, Copy, Program, steps
from dlc.te.types import TensorType


def describe(
    imported: Imported, program: Program, target: Target, precision: str, half: str | None = None
) -> Manifest:
    """The manifest of a program made from a model.

    `precision` is what results are judged by, and `half` what it was asked to compute in.
    """
    from dlc import __version__

    known = imported.interface.sizes
    sizes = tuple(SizeSpec(known.get(s.name, s.name), s.minimum, s.maximum) for s in program.sizes)

    def spec(name: str, type_: TensorType) -> TensorSpec:
        return TensorSpec(name, type_.dtype, tuple(_dim(str(n), known) for n in type_.shape))

    inputs = zip(imported.interface.inputs, program.inputs, strict=True)
    outputs = zip(imported.interface.outputs, program.outputs, strict=True)
    return Manifest(
        dlc_version=__version__,
        architecture=target.arch,
        cpu_features=tuple(sorted(target.features)),
        sizes=sizes,
        inputs=tuple(spec(n, b.type) for n, b in inputs),
        outputs=tuple(spec(n, b.type) for n, b in outputs),
        metadata={
            "model": imported.graph.name,
            "precision": precision,
            "half": half,
            "target": dataclasses.asdict(target) | {"features": sorted(target.features)},
            "variants": [dict(sizes) for sizes in imported.variants],
            "kernels": [k.name for k in program.kernels],
            "arena_bytes": str(program.arena_bytes),
            "steps": [_step(step) for step in steps(program.body)],
        },
    )


def _step(step: CallKernel | Copy) -> dict[str, object]:
    """What a profile says about a step: its kernel, and the nodes of the model behind it."""
    if isinstance(step, Copy):
        return {"kernel": "copy", "nodes": [step.source]}
    return {"kernel": step.kernel, "nodes": list(step.nodes)}


def _dim(text: str, known: Mapping[str, str]) -> int | str:
    return int(text) if text.isdigit() else known.get(text, text)
