"""The first half of a build: a model becomes a host program and kernels without schedules."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dlc.core.count import show_bytes, show_count
from dlc.core.dump import Dumper
from dlc.core.errors import UserError
from dlc.core.fork import Choices, Fork
from dlc.core.precision import Precision, check_precision, promised
from dlc.core.target import Target
from dlc.frontend.onnx.convert import Imported
from dlc.frontend.onnx.interface import plain_dims
from dlc.frontend.onnx.load import load_model
from dlc.frontend.onnx.registry import CONVERTERS
from dlc.frontend.onnx.variants import import_variants
from dlc.graph.half import Half, check_kept, half_of
from dlc.graph.lower import lower_graph
from dlc.graph.op import Array
from dlc.graph.pass_ import PassContext, PassReport, run_passes
from dlc.graph.pipeline import PIPELINE, PLAIN
from dlc.schedule.program import Program
from dlc.schedule.round_products import round_program
from dlc.stages import Progress, Stages
from dlc.te.transform import free_vars

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dlc.frontend.onnx.interface import Dim
    from dlc.frontend.onnx.load import Model
    from dlc.frontend.onnx.structure import Structure

_EXAMPLES = {"dims": "{'batch': 1}", "shapes": "{'x': (1, 3)}", "values": "{'rate': 16000}"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asked for, beside the model and the target."""

    precision: Precision
    half: Half | None
    optimize: bool
    choices: Choices = field(default_factory=Choices)
    lists_forks: bool = False  # whether the decisions of the passes are to be known afterwards

    def __post_init__(self) -> None:
        check_precision(self.precision)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model as a host program and its kernels, none of which is scheduled yet."""

    imported: Imported
    target: Target
    precision: Precision
    groups: int
    program: Program
    constants: Mapping[str, Array]
    passes: tuple[PassReport, ...]
    seconds: float
    asked: Asked
    forks: tuple[Fork, ...] = ()  # each as often as it was met; none if nobody asked for them

    @property
    def decided(self) -> int:
        """At how many forks another way than the default was taken."""
        return sum(self.asked.choices.option(f) != f.default for f in self.forks)


def lower_model(
    model: Model,
    machine: Target,
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    variants: Sequence[Mapping[str, Dim]] = (),
    precision: Precision = "highest",
    half: str | None = None,
    keep: Sequence[str] = (),
    optimize: bool = True,
    choices: Choices | None = None,
    lists_forks: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Lowered:
    """The first half of a build: everything before kernels are scheduled; see `compile`.

    `choices` says which ways to take in the graph; with `lists_forks` the result tells which there
    are.
    """
    began = time.perf_counter()
    asked = Asked(precision, half_of(half, keep), optimize, choices or Choices(), lists_forks)
    imported = import_for(
        model, machine, dims=dims, shapes=shapes, values=values, variants=variants,
        progress=progress,
    )  # fmt: skip
    return lower_imported(imported, machine, asked, began, progress)


def import_for(
    model: Model,
    machine: Target,
    *,
    dims: Mapping[str, Dim] | None,
    shapes: Mapping[str, Structure] | None,
    values: Mapping[str, ArrayLike] | None,
    variants: Sequence[Mapping[str, Dim]],
    progress: Callable[[Progress], None] | None,
) -> Imported:
    """Read a model, as the rest of a build takes it; see `compile`."""
    with Stages(progress)("import") as say:
        if isinstance(variants, Mapping):
            hint = "write one mapping for each: variants=[{'batch': 1}]"
            raise UserError(detail="variants are a list, and one was given", hint=hint)
        for name, given in (("dims", dims), ("shapes", shapes), ("values", values)):
            if given is not None and not isinstance(given, Mapping):
                hint = f"write a mapping from names: {name}={_EXAMPLES[name]}"
                raise UserError(detail=f"{name} cannot be {given!r}", hint=hint)
        imported = import_variants(
            load_model(model),
            [plain_dims(sizes) for sizes in variants],
            dims=plain_dims(dims or {}),
            shapes=shapes,
            values=values,
        )
        size = sum(a.nbytes for a in imported.graph.constants.values())
        say(f"{show_count(len(imported.graph.nodes), 'node')}, {show_bytes(size)} of weights")
    return imported


def lower_imported(
    imported: Imported,
    machine: Target,
    asked: Asked,
    began: float,
    progress: Callable[[Progress], None] | None,
) -> Lowered:
    """What a model that was read becomes before kernels are scheduled."""
    check_kept(asked.half, imported.graph, (name for _, name in CONVERTERS))
    stage = Stages(progress)
    reports: list[PassReport] = []
    forks: list[Fork] = []
    listens = asked.lists_forks or len(asked.choices) > 0
    context = PassContext(
        target=machine, precision=asked.precision, half=asked.half, choices=asked.choices,
        on_fork=forks.append if listens else None,
    )  # fmt: skip
    with stage("optimize") as say:
        graph = run_passes(
            imported.graph,
            PIPELINE if asked.optimize else PLAIN,
            context,
            dumper=Dumper.from_environment(),
            report=reports.append,
        )
        nodes = show_count(len(imported.graph.nodes), "node")
        say(f"{nodes} into {show_count(len(graph.nodes), 'group')}")
    with stage("lower") as say:
        program, constants = lower_graph(graph)
        program = round_program(program, machine, asked.precision)
        say(f"{show_count(len(program.kernels), 'kernel')}, {_arena(program)}")
    promise = promised(asked.precision, None if asked.half is None else asked.half.name)
    return Lowered(
        imported,
        machine,
        promise,
        len(graph.nodes),
        program,
        constants,
        tuple(reports),
        time.perf_counter() - began,
        asked,
        tuple(forks),
    )


def lower_again(lowered: Lowered, choices: Choices) -> Lowered:
    """The same model for the same target, with other ways taken in the graph."""
    began = time.perf_counter()
    asked = replace(lowered.asked, choices=choices)
    return lower_imported(lowered.imported, lowered.target, asked, began, None)


def _arena(program: Program) -> str:
    """What the tensors between kernels take; a long formula helps nobody."""
    size = program.arena_bytes
    if names := sorted(free_vars(size)):
        return f"arena of a size set by {', '.join(names)}"
    return f"arena of {show_bytes(int(str(size)))}"
