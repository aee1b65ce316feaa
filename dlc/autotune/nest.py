"""Names for scheduled loop nests."""

from __future__ import annotations

import hashlib

from dlc.schedule.loop import Func
from dlc.schedule.text import canonical_text


def nest_hash(func: Func) -> str:
    """A name for a scheduled loop nest: equal for nests that are compiled to the same code."""
    return hashlib.sha256(canonical_text(func).encode()).hexdigest()[:24]
