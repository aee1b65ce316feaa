"""How exact products of float32 are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeGuard, get_args

from dlc.core.errors import UserError

Precision = Literal["highest", "high", "tf32", "medium"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""From the most exact to the least."""
_OF_HALVES: Mapping[str, Precision] = {"fp16": "tf32", "bf16": "medium"}
"""By 16-bit floats, the precision whose factors have as many significant bits."""


def check_precision(name: str) -> Precision:
    """The precision of that name.

    Raises:
        UserError: there is none.
    """
    if not _is_precision(name):
        raise UserError(
            detail=f"precision '{name}' is unknown", hint=f"there are: {', '.join(PRECISIONS)}"
        )
    return name


def promised(precision: Precision, half: str | None) -> Precision:
    """What results are judged by: of a precision and of 16-bit floats, if any, the less exact."""
    return precision if half is None else max(precision, _OF_HALVES[half], key=PRECISIONS.index)


def _is_precision(name: str) -> TypeGuard[Precision]:
    return name in PRECISIONS
