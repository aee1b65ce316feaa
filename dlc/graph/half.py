"""What `half=` asks for: 16-bit floats, and where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlc.core.errors import UserError
from dlc.core.types import DType

HALVES = {"fp16": DType.F16, "bf16": DType.BF16}


@dataclass(frozen=True, slots=True)
class Half:
    """Which 16-bit floats to compute in, and what stays float32.

    `keep` names operators (`conv`), nodes of the model, and their results.
    """

    dtype: DType
    keep: frozenset[str] = frozenset()


def half_of(name: str | None, keep: Sequence[str] = ()) -> Half | None:
    """What was asked for; None for nothing.

    Raises:
        UserError: there are no such 16-bit floats; something is kept of nothing.
    """
    if name is None:
        if keep:
            raise UserError(detail="what is kept in float32 is said, and no half precision")
        return None
    if name not in HALVES:
        raise UserError(detail=f"half '{name}' is unknown", hint=f"there are: {', '.join(HALVES)}")
    return Half(HALVES[name], frozenset(keep))
