"""How exact products of float32 are."""

from __future__ import annotations

from typing import Literal, TypeGuard, get_args

from dlc.core.errors import UserError

Precision = Literal["highest", "high", "tf32", "medium"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


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


def _is_precision(name: str) -> TypeGuard[Precision]:
    return name in PRECISIONS
