"""Options that several commands have, each with one name, one letter and one help text."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from dlc.core.precision import PRECISIONS

# Why a file cannot be read the commands say, as of other inputs: typer would show how to call them.
path_argument = functools.partial(typer.Argument, readable=False)
path_option = functools.partial(typer.Option, readable=False)

JsonOption = Annotated[bool, typer.Option("--json", help="The result as JSON.")]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target", "-t", help="native, 'llvm -mcpu=…' or 'cuda -arch=…'; see dlc targets."
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Fix the shape of an input: x=1,3,224,224. Repeatable."),
]
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="Of float32 products: " + ", ".join(PRECISIONS) + ".")
]
InputOption = Annotated[
    list[str] | None, typer.Option("--input", "-i", help="As in dlc run; default: random values.")
]
BoundsOption = Annotated[
    list[str] | None,
    typer.Option("--dim", help="Fix or bound a size: batch=1, batch=1..32. Repeatable."),
]
SizeOption = Annotated[
    list[str] | None, typer.Option("--dim", help="An open size: batch=8. Repeatable.")
]
