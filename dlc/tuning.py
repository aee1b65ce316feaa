"""Records of `dlc tune` for programs: `load` them, or let every build in a `with` use them."""

from __future__ import annotations

from dlc.autotune.apply import Records, apply_best
from dlc.autotune.apply import load_records as load

__all__ = ["Records", "apply_best", "load"]
