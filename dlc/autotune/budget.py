"""How long a search may take: `10m`, `2000trials`, `until-flat`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlc.core.count import show_count
from dlc.core.errors import UserError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds or trials; without either, until no task improves any more."""

    seconds: float | None = None
    trials: int | None = None

    def share_spent(self, seconds: float, trials: int) -> float:
        """From 0 to 1; 0 where only flatness ends the search."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append(seconds / self.seconds if self.seconds else 1.0)
        if self.trials is not None:
            shares.append(trials / self.trials if self.trials else 1.0)
        return min(1.0, max(shares))

    def __str__(self) -> str:
        if self.seconds is not None:
            minutes = self.seconds / 60
            return (
                f"{minutes:g} min"
                if minutes >= 1 and minutes == int(minutes)
                else f"{self.seconds:g} s"
            )
        return "until flat" if self.trials is None else show_count(self.trials, "trial")


def parse_budget(text: str) -> Budget:
    """Read a budget.

    Raises:
        UserError: it is not one.
    """
    word = text.strip().lower()
    if word == "until-flat":
        return Budget()
    if found := re.fullmatch(r"(\d{1,15}) ?trials?", word):
        return Budget(trials=int(found[1]))
    if found := re.fullmatch(r"(\d{1,15}(?:\.\d+)?)([smh])", word):
        return Budget(seconds=float(found[1]) * _UNITS[found[2]])
    raise UserError(detail=f"budget '{text}'", hint="write 90s, 10m, 2h, 2000trials or until-flat")
