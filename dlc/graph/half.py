"""What `half=` asks for: 16-bit floats, and where not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dlc.core.errors import UserError
from dlc.core.types import DType
from dlc.graph.graph import Graph
from dlc.graph.op import OPS
from dlc.graph.sizes import bodies

HALVES = {"fp16": DType.F16, "bf16": DType.BF16}


@dataclass(frozen=True, slots=True)
class Half:
    """Which 16-bit floats to compute in, and what stays float32.

    `keep` names operators (`conv`, or ONNX's `Conv`), nodes of the model, and their results.
    """

    dtype: DType
    keep: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """What a user calls it."""
        return next(name for name, dtype in HALVES.items() if dtype is self.dtype)


def half_of(name: str | None, keep: Sequence[str] = ()) -> Half | None:
    """What was asked for; None for nothing.

    Raises:
        UserError: there are no such 16-bit floats; something is kept of nothing.
    """
    if name is None:
        if keep:
            detail = "what stays in float32 is named, and no half precision for the rest"
            raise UserError(detail=detail, hint="give one as well: --half fp16 or bf16")
        return None
    if name not in HALVES:
        raise UserError(detail=f"half '{name}' is unknown", hint=f"there are: {', '.join(HALVES)}")
    return Half(HALVES[name], frozenset(keep))


def check_kept(half: Half | None, graph: Graph, operators: Iterable[str]) -> None:
    """Refuse names of what shall stay float32 that mean nothing, as misspelt ones do.

    An operator that a model has not got is no mistake: lists of them are used for many models.
    `operators` are those of ONNX.

    Raises:
        UserError: neither an operator nor anything of the model has that name.
    """
    if half is None or not half.keep:
        return
    known = {*OPS, *operators, *graph.operators.values(), *_names(graph)}
    for name in sorted(half.keep - known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "keep operators, nodes or their results"
        raise UserError(
            detail=f"nothing is called '{name}', which is to stay in float32", hint=hint
        )


def _names(graph: Graph) -> Iterator[str]:
    """What nodes and their results are called, also in bodies."""
    for node in graph.nodes:
        yield node.source
        yield from (v.name for v in node.outputs)
        for body in bodies(node.op):
            yield from _names(body)
