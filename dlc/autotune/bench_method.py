"""How candidates are timed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dlc.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Method:
    """How to time.

    `cache` is "cold": the cores' own caches hold other data before each run, as between the kernels
    of a model; "warm": runs follow each other, as in a loop; or "auto": cold where no task says
    otherwise. `rounds` are taken in turn with the anchor's; the budget ends them early, but not
    before three.
    """

    cache: str = "auto"
    rounds: int = 9
    budget_seconds: float = 0.04
    threads: int = 1

    def __post_init__(self) -> None:
        if self.cache not in ("auto", "cold", "warm"):
            raise UserError(detail=f"cache mode '{self.cache}'", hint="auto, cold or warm")

    def to_json(self) -> dict[str, Any]:
        """The method as data."""
        return asdict(self)
